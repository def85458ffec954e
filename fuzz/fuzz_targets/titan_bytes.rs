//! Any bytes as a blob file of Titan's, also with records whose checksums hold, as an edit of its
//! MANIFEST, as a pointer, as a table's note: answers or errors, within the bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_base::checksum::{crc32c, mask};
use orogen_base::coding::{put_length_prefixed, put_varint64};
use orogen_blob::titan::{
    FOOTER_LEN, RECORD_HEADER_LEN, TitanEdit, TitanFile, TitanLive, TitanPointer, TitanWindow,
    referenced_sizes,
};
use orogen_fuzz::{Choices, file};

/// Bytes that a record may expand to, and is asked for all the same.
const VALUE_LEN_MAX: u64 = 64 << 20;

fn pointer(bytes: &[u8]) {
    let Ok(pointer) = TitanPointer::decode(bytes) else {
        return;
    };
    assert!(pointer.is_deletion() || pointer.size >= RECORD_HEADER_LEN as u64);
    let mut again = Vec::new();
    pointer.encode(&mut again);
    assert!(again.len() <= bytes.len());
    assert_eq!(TitanPointer::decode(&again).expect("it was encoded"), pointer);
}

/// Edits, each behind its length.
fn edits(mut rest: &[u8]) {
    let mut live = TitanLive::default();
    let mut came = 0;
    while let Some((&len, after)) = rest.split_first() {
        let (edit, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        if let Ok(edit) = TitanEdit::decode(edit) {
            came += edit.added.len();
            live.apply(edit);
        }
    }
    if let Ok(files) = live.finish() {
        assert!(files.len() <= came);
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(len.min(rest.len()));
    *rest = tail;
    head
}

fn block(out: &mut Vec<u8>, content: &[u8]) -> (u64, u64) {
    let place = (out.len() as u64, content.len() as u64);
    out.extend_from_slice(content);
    out.push(0);
    let start = out.len() - content.len() - 1;
    let crc = mask(crc32c(&out[start..]));
    out.extend_from_slice(&crc.to_le_bytes());
    place
}

/// A file of records of any content, whose checksums hold, and where they are.
fn put_together(data: &[u8]) -> (Vec<u8>, Vec<TitanPointer>) {
    let mut rest = data;
    let mut byte = || take(&mut rest, 1).first().copied().unwrap_or(0);
    let (version, flags, alignment) = (byte() % 3 + 1, byte() & 1, usize::from(byte() % 3) * 16);
    let mut out = vec![0x14, 0xa6, 0xe0, 0x2b, version, 0, 0, 0];
    if version >= 2 {
        out.extend_from_slice(&[flags, 0, 0, 0]);
    }
    if version >= 3 {
        out.extend_from_slice(&(alignment as u64).to_le_bytes());
    }
    let mut pointers = Vec::new();
    let mut dictionary = None;
    while let Some((&what, after)) = rest.split_first() {
        rest = after;
        let len = |rest: &mut &[u8]| usize::from(take(rest, 1).first().copied().unwrap_or(0));
        if what == 255 {
            let n = len(&mut rest);
            dictionary = Some(take(&mut rest, n));
            break;
        }
        if alignment > 0 {
            out.resize(out.len().next_multiple_of(alignment), 0);
        }
        let mut body = Vec::new();
        if what % 2 == 0 {
            let (key_len, value_len) = (len(&mut rest) % 4, len(&mut rest));
            put_length_prefixed(&mut body, take(&mut rest, key_len));
            put_length_prefixed(&mut body, take(&mut rest, value_len));
        } else {
            let n = len(&mut rest);
            body.extend_from_slice(take(&mut rest, n));
        }
        let mut head = (body.len() as u32).to_le_bytes().to_vec();
        head.push(if what % 2 == 0 { 0 } else { what / 2 % 9 });
        let mut all = head;
        all.extend_from_slice(&body);
        pointers.push(TitanPointer {
            file: 7,
            offset: out.len() as u64,
            size: 4 + all.len() as u64,
        });
        out.extend_from_slice(&crc32c(&all).to_le_bytes());
        out.extend_from_slice(&all);
    }
    let mut index_at = (0, 0);
    if let Some(dictionary) = dictionary {
        let (offset, size) = block(&mut out, dictionary);
        let mut handle = Vec::new();
        put_varint64(&mut handle, offset);
        put_varint64(&mut handle, size);
        let mut index = vec![0, 24, handle.len() as u8];
        index.extend_from_slice(b"rocksdb.compression_dict");
        index.extend_from_slice(&handle);
        index.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        // And what is no index.
        index_at = block(&mut out, if rest.is_empty() { &index[..] } else { rest });
    }
    let start = out.len();
    put_varint64(&mut out, index_at.0);
    put_varint64(&mut out, index_at.1);
    out.resize(start + 20, 0);
    out.extend_from_slice(&0x2be0_a614_8e39_edc6_u64.to_le_bytes());
    let crc = crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(out.len(), start + FOOTER_LEN);
    (out, pointers)
}

fn explore(titan: &TitanFile, bytes: &[u8], pointers: &[TitanPointer]) {
    let _ = titan.first_codec();
    let mut window = TitanWindow::new(100);
    for pointer in pointers {
        let start = pointer.offset as usize;
        let body = &bytes[start + RECORD_HEADER_LEN..start + pointer.size as usize];
        let codec = orogen_codec::CompressionType::from_u8(bytes[start + 8]);
        let claimed = codec.map(|c| orogen_codec::decompressed_len(c, body));
        if matches!(claimed, Some(Ok(n)) if n > VALUE_LEN_MAX) {
            continue;
        }
        for key in [&b""[..], b"k", body.get(1..2).unwrap_or(b"")] {
            if let Ok(value) = titan.read(&mut window, pointer, key) {
                let value = value.to_vec();
                let mut alone = TitanWindow::new(0);
                let again = titan.read(&mut alone, pointer, key);
                assert_eq!(again.expect("it was read"), &value[..]);
            }
        }
    }
    for offset in [0, 8, 20, bytes.len() as u64 - 33, u64::MAX - 5] {
        for size in [9, 30, u64::MAX - offset] {
            let file = 7;
            let pointer = TitanPointer { file, offset, size };
            let _ = titan.read(&mut window, &pointer, b"k");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let what = choices.byte();
    let rest = choices.rest();
    let (bytes, pointers) = match what % 6 {
        0 => return pointer(rest),
        1 => return edits(rest),
        2 => {
            let _ = referenced_sizes(rest);
            return;
        }
        3 => (rest.to_vec(), Vec::new()),
        _ => put_together(rest),
    };
    if let Ok(titan) = TitanFile::open(file(&bytes[..]), 7) {
        explore(&titan, &bytes, &pointers);
    }
});
