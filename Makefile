# The two commands of the README, and the benches. Everything else is `cargo x`.

.PHONY: run test bench

# Builds the orogen command and lets it show itself on data of this machine.
run:
	cargo run --release --locked --package orogen-cli -- demo packages

# Installs what the tests need where it is missing, then runs all of the gate.
test:
	cargo x setup
	cargo x check

# Runs the named set of workloads beside RocksDB's db_bench.
bench:
	cargo x setup
	cargo x bench peers
