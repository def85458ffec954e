//! Any bytes as a write batch: what decodes decodes the same again, and its count is right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_engine::batch::{BatchOp, WriteBatch};

fuzz_target!(|data: &[u8]| {
    let Ok(batch) = WriteBatch::from_bytes(data) else {
        return;
    };
    let ops: Vec<BatchOp<'_>> = batch.iter().map(|op| op.expect("checked")).collect();
    let counted = ops.iter().filter(|op| op.counts()).count();
    assert_eq!(counted, batch.count() as usize);
    if ops.iter().any(BatchOp::is_marker) {
        return;
    }
    let mut again = WriteBatch::new();
    for op in &ops {
        match *op {
            BatchOp::Put { cf, key, value } => again.put(cf, key, value),
            BatchOp::Merge { cf, key, operand } => again.merge(cf, key, operand),
            BatchOp::Delete { cf, key } => again.delete(cf, key),
            BatchOp::SingleDelete { cf, key } => again.single_delete(cf, key),
            BatchOp::DeleteRange { cf, start, end } => again.delete_range(cf, start, end),
            BatchOp::LogData(data) => again.put_log_data(data),
            _ => unreachable!("markers were looked for"),
        }
    }
    let read: Vec<BatchOp<'_>> = again.iter().map(|op| op.expect("written by us")).collect();
    assert_eq!(read, ops);
});
