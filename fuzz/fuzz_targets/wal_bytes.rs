//! Any bytes as a log: read to the end without a panic, and within the bytes there are.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_fuzz::{Choices, file};
use orogen_wal::{ReadOutcome, Reader};

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let log_number = u64::from(choices.byte());
    let bytes = choices.rest();
    let len = bytes.len() as u64;
    let mut reader = Reader::new(file(bytes), log_number).expect("memory can be read");
    let mut record = Vec::new();
    let mut held = 0;
    let mut next = 0;
    // An outcome takes at least a byte, but for the end and the first damage.
    for _ in 0..bytes.len() + 3 {
        match reader.read_record(&mut record) {
            Ok(ReadOutcome::Record { offset }) => {
                assert!(offset >= next && offset < len.max(1));
                next = offset + 1;
                held += record.len();
                assert!(held <= bytes.len());
                assert!(reader.valid_until() > offset && reader.valid_until() <= len);
            }
            Ok(ReadOutcome::Damage(damage)) => {
                assert!(damage.offset <= len);
                assert!(!reader.error(&damage).to_string().is_empty());
            }
            Ok(ReadOutcome::EndOfLog { valid_until, .. }) => {
                assert!(valid_until <= len);
                let again = reader
                    .read_record(&mut record)
                    .expect("nothing is left to read");
                assert!(matches!(again, ReadOutcome::EndOfLog { .. }));
                return;
            }
            Err(_) => return,
        }
    }
    panic!("more outcomes than bytes");
});
