//! Varints, fixed widths and length-prefixed strings, read by a script that the input holds.
//!
//! What was read is written again: the bytes must be readable as the same values.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_base::coding::{self, Decoder};

fuzz_target!(|data: &[u8]| {
    let Some((&len, rest)) = data.split_first() else {
        return;
    };
    let (script, bytes) = rest.split_at(rest.len().min(usize::from(len)));
    let mut decoder = Decoder::new(bytes);
    for step in script {
        let before = decoder.position();
        let mut again = Vec::new();
        let read = match step % 5 {
            0 => decoder
                .varint64("v")
                .map(|v| coding::put_varint64(&mut again, v)),
            1 => decoder
                .varint32("v")
                .map(|v| coding::put_varint32(&mut again, v)),
            2 => decoder
                .fixed32("v")
                .map(|v| coding::put_fixed32(&mut again, v)),
            3 => decoder
                .fixed64("v")
                .map(|v| coding::put_fixed64(&mut again, v)),
            _ => decoder
                .length_prefixed("v")
                .map(|v| coding::put_length_prefixed(&mut again, v)),
        };
        if read.is_err() {
            return;
        }
        assert!(decoder.position() > before);
        assert!(
            again.len() <= decoder.position() - before,
            "written longer than it was read"
        );
    }
});
