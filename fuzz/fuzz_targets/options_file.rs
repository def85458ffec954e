//! Any text as an OPTIONS file: what is read and written again is read as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_engine::options_file::OptionsFile;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(file) = OptionsFile::parse(text) else {
        return;
    };
    let again = OptionsFile::parse(&file.to_text()).expect("written by us");
    assert_eq!(again, file);
});
