//! Writes blob files, pointers and edits as Titan does: from the byte tables, knowing nothing of the
//! code that reads them.

/// CRC32C, one bit at a time.
#[must_use]
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in parts.iter().copied().flatten() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Appends a varint.
pub fn varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push((v & 0x7f) as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Appends a string behind its length.
pub fn prefixed(out: &mut Vec<u8>, s: &[u8]) {
    varint(out, s.len() as u64);
    out.extend_from_slice(s);
}

/// The value of an entry of kind 0x11.
#[must_use]
pub fn pointer(file: u64, offset: u64, size: u64) -> Vec<u8> {
    let mut out = vec![1];
    for v in [file, offset, size] {
        varint(&mut out, v);
    }
    out
}

/// How a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As it is.
    Plain,
    /// As LZ4 stores what it cannot shrink.
    Lz4,
    /// As Snappy stores what it cannot shrink.
    Snappy,
}

/// A blob file while it is written.
pub struct BlobFile {
    bytes: Vec<u8>,
    block_size: usize,
}

impl BlobFile {
    /// A file with a header of a version; from 3 on records begin at multiples of `block_size`, if
    /// that is not 0.
    #[must_use]
    pub fn new(version: u32, block_size: usize) -> Self {
        let mut bytes = vec![0x14, 0xa6, 0xe0, 0x2b];
        bytes.extend_from_slice(&version.to_le_bytes());
        if version >= 2 {
            bytes.extend_from_slice(&[0; 4]);
        }
        if version >= 3 {
            bytes.extend_from_slice(&(block_size as u64).to_le_bytes());
        }
        let mut this = Self { bytes, block_size };
        this.pad();
        this
    }

    fn pad(&mut self) {
        if self.block_size > 0 {
            let len = self.bytes.len().next_multiple_of(self.block_size);
            self.bytes.resize(len, 0);
        }
    }

    /// Adds a record, and gives its offset and its size.
    pub fn add(&mut self, key: &[u8], value: &[u8], stored: Stored) -> (u64, u64) {
        let mut pair = Vec::new();
        prefixed(&mut pair, key);
        prefixed(&mut pair, value);
        let (codec, body) = match stored {
            Stored::Plain => (0, pair),
            Stored::Lz4 => (4, lz4_literals(&pair)),
            Stored::Snappy => (1, snappy_literals(&pair)),
        };
        let offset = self.bytes.len() as u64;
        let mut head = (body.len() as u32).to_le_bytes().to_vec();
        head.push(codec);
        let crc = crc32c(&[&head, &body]);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(&body);
        self.pad();
        (offset, 9 + body.len() as u64)
    }

    /// The whole file.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let mut footer = vec![0; 20];
        footer.extend_from_slice(&0x2be0_a614_8e39_edc6_u64.to_le_bytes());
        let crc = crc32c(&[&footer]);
        self.bytes.extend_from_slice(&footer);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.bytes
    }
}

fn lz4_literals(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, raw.len() as u64);
    if raw.len() < 15 {
        out.push((raw.len() as u8) << 4);
    } else {
        out.push(0xf0);
        let mut rest = raw.len() - 15;
        while rest >= 255 {
            out.push(255);
            rest -= 255;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(raw);
    out
}

fn snappy_literals(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, raw.len() as u64);
    for part in raw.chunks(60) {
        out.push((part.len() as u8 - 1) << 2);
        out.extend_from_slice(part);
    }
    out
}

/// Which of its forms an added file is noted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedAs {
    /// Number and size.
    V1,
    /// And entries, level, keys.
    V2,
    /// And a block size.
    V3,
}

/// An edit of Titan's MANIFEST: files as number, size, first and last key.
#[must_use]
pub fn edit(
    next_file: Option<u64>,
    family: u32,
    form: AddedAs,
    added: &[(u64, u64, &[u8], &[u8])],
    deleted: &[u64],
) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(next) = next_file {
        varint(&mut out, 1);
        varint(&mut out, next);
    }
    varint(&mut out, 10);
    varint(&mut out, u64::from(family));
    for &(number, size, smallest, largest) in added {
        varint(
            &mut out,
            match form {
                AddedAs::V1 => 11,
                AddedAs::V2 => 13,
                AddedAs::V3 => 14,
            },
        );
        varint(&mut out, number);
        varint(&mut out, size);
        if form != AddedAs::V1 {
            varint(&mut out, 7);
            varint(&mut out, 6);
            if form == AddedAs::V3 {
                varint(&mut out, 0);
            }
            prefixed(&mut out, smallest);
            prefixed(&mut out, largest);
        }
    }
    for &number in deleted {
        varint(&mut out, 12);
        varint(&mut out, number);
    }
    out
}
