//! Any bytes as a table's footer: what is read and written again is read as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_fuzz::Choices;
use orogen_sst::Footer;

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let offset = choices.short() as u64;
    let tail = choices.rest();
    let Ok(footer) = Footer::decode(tail, offset) else {
        return;
    };
    // The meta index ends where the footer begins.
    let offset = offset + (tail.len() - footer.len) as u64;
    let mut again = Vec::new();
    // Formats before 2 are read and not written.
    if footer.format_version >= 2 && footer.encode(offset, &mut again).is_ok() {
        let mut read = Footer::decode(&again, offset).expect("written by us");
        read.len = footer.len;
        assert_eq!(read, footer);
    }
});
