//! Any bytes as a version edit: what is read and written again is read as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_engine::version::VersionEdit;

fuzz_target!(|data: &[u8]| {
    let Ok(edit) = VersionEdit::decode(data) else {
        return;
    };
    let again = VersionEdit::decode(&edit.encode()).expect("written by us");
    assert_eq!(again, edit);
});
