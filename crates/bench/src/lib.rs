//! Workload tool with db_bench's names.
