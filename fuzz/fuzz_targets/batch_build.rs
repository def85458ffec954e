//! Operations added to write batches come back as they were added, from the batch, from its bytes,
//! and from a batch that it was appended to.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_engine::batch::{BatchOp, HEADER_LEN, WriteBatch};
use orogen_fuzz::Choices;

struct Operation {
    kind: u8,
    cf: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Operation {
    fn add_to(&self, batch: &mut WriteBatch) {
        match self.as_op() {
            BatchOp::Put { cf, key, value } => batch.put(cf, key, value),
            BatchOp::Merge { cf, key, operand } => batch.merge(cf, key, operand),
            BatchOp::Delete { cf, key } => batch.delete(cf, key),
            BatchOp::SingleDelete { cf, key } => batch.single_delete(cf, key),
            BatchOp::DeleteRange { cf, start, end } => batch.delete_range(cf, start, end),
            BatchOp::LogData(data) => batch.put_log_data(data),
            _ => unreachable!("markers are not made here"),
        }
    }

    fn as_op(&self) -> BatchOp<'_> {
        let (cf, key, value) = (self.cf, &self.key[..], &self.value[..]);
        match self.kind {
            0 => BatchOp::Put { cf, key, value },
            1 => BatchOp::Merge {
                cf,
                key,
                operand: value,
            },
            2 => BatchOp::Delete { cf, key },
            3 => BatchOp::SingleDelete { cf, key },
            4 => BatchOp::DeleteRange {
                cf,
                start: key,
                end: value,
            },
            _ => BatchOp::LogData(value),
        }
    }
}

fn check(batch: &WriteBatch, operations: &[Operation]) {
    let want: Vec<BatchOp<'_>> = operations.iter().map(Operation::as_op).collect();
    let got: Vec<BatchOp<'_>> = batch.iter().map(|op| op.expect("added by us")).collect();
    assert_eq!(got, want);
    let counted = operations.iter().filter(|op| op.kind < 5);
    assert_eq!(batch.count() as usize, counted.clone().count());
    let mut families: Vec<u32> = counted.map(|op| op.cf).collect();
    families.sort_unstable();
    families.dedup();
    assert_eq!(batch.column_families(), families);
    assert_eq!(batch.size_bytes(), HEADER_LEN + batch.operations().len());
    assert_eq!(batch.is_empty(), operations.is_empty());
    let again = WriteBatch::from_bytes(batch.as_bytes()).expect("written by us");
    assert!(again.iter().map(|op| op.expect("checked")).eq(want));
    // A batch that was cut off is refused.
    if let Some((_, rest)) = batch.as_bytes().split_last() {
        assert!(WriteBatch::from_bytes(rest).is_err());
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let is_protected = choices.byte() & 1 == 1;
    let make = |protect: bool| {
        if protect {
            WriteBatch::with_protection()
        } else {
            WriteBatch::new()
        }
    };
    let (mut batch, mut tail) = (make(is_protected), make(choices.byte() & 1 == 1));
    let (mut all, mut behind) = (Vec::new(), Vec::new());
    while !choices.is_empty() && all.len() < 200 {
        let flags = choices.byte();
        if flags == 0xff {
            batch.clear();
            all.clear();
            continue;
        }
        let operation = Operation {
            kind: flags % 6,
            cf: if flags & 64 == 0 {
                0
            } else {
                u32::from(choices.byte()) << (choices.byte() % 25)
            },
            key: choices.key(),
            value: vec![choices.byte(); choices.short() >> (flags >> 4 & 7)],
        };
        if flags & 128 == 0 {
            operation.add_to(&mut batch);
            all.push(operation);
        } else {
            operation.add_to(&mut tail);
            behind.push(operation);
        }
    }
    check(&batch, &all);
    check(&tail, &behind);
    batch.append(&tail);
    all.append(&mut behind);
    check(&batch, &all);
    let mut plain = WriteBatch::with_capacity(usize::from(is_protected) * 100);
    for operation in &all {
        operation.add_to(&mut plain);
    }
    assert_eq!(plain.as_bytes(), batch.as_bytes());
});
