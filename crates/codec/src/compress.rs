//! The codecs of blocks, framed as RocksDB frames them.
//!
//! ```text
//! snappy                       the codec's own bytes, which begin with the size
//! lz4, lz4hc, zlib, bzip2, zstd   varint32: size before compression | the codec's bytes
//! in tables of format 0 and 1  lz4: fixed64 size first; zlib, bzip2: no size
//! ```
//! Invariants: (1) a size that the codec cannot have produced from so few bytes is refused
//! before memory is taken; (2) a block that decompresses to another size is damaged.
//! Source: RocksDB `util/compression.cc`, `include/rocksdb/compression_type.h`.

mod lz4;

use std::cell::RefCell;

use orogen_base::coding::{get_fixed32, get_varint32, put_varint32};
use orogen_base::limits::BLOCK_SIZE_MAX;
use orogen_base::{Error, Result, memory};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DDict};

use crate::options::{CompressionOptions, DEFAULT_COMPRESSION_LEVEL};

/// A codec. The numbers stand in the trailer of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum CompressionType {
    /// Bytes as they are.
    #[default]
    None = 0x0,
    /// Snappy.
    Snappy = 0x1,
    /// Deflate; read only, with feature `legacy-codecs`.
    Zlib = 0x2,
    /// bzip2; read only, with feature `legacy-codecs`.
    Bzip2 = 0x3,
    /// LZ4.
    Lz4 = 0x4,
    /// LZ4 with a slower, better search; decompressed like LZ4.
    Lz4hc = 0x5,
    /// A codec of Windows; neither read nor written.
    Xpress = 0x6,
    /// Zstandard.
    Zstd = 0x7,
    /// Zstandard before its format was final; neither read nor written.
    ZstdNotFinal = 0x40,
}

impl CompressionType {
    /// All codecs.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Snappy,
        Self::Zlib,
        Self::Bzip2,
        Self::Lz4,
        Self::Lz4hc,
        Self::Xpress,
        Self::Zstd,
        Self::ZstdNotFinal,
    ];

    /// The codec with this number.
    #[must_use]
    pub fn from_u8(v: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| *c as u8 == v)
    }

    /// The name in option files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "kNoCompression",
            Self::Snappy => "kSnappyCompression",
            Self::Zlib => "kZlibCompression",
            Self::Bzip2 => "kBZip2Compression",
            Self::Lz4 => "kLZ4Compression",
            Self::Lz4hc => "kLZ4HCCompression",
            Self::Xpress => "kXpressCompression",
            Self::Zstd => "kZSTD",
            Self::ZstdNotFinal => "kZSTDNotFinalCompression",
        }
    }

    /// The codec with this name in option files.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name() == name)
    }

    /// The name in table properties.
    #[must_use]
    pub fn property_name(self) -> &'static str {
        match self {
            Self::None => "NoCompression",
            Self::Snappy => "Snappy",
            Self::Zlib => "Zlib",
            Self::Bzip2 => "BZip2",
            Self::Lz4 => "LZ4",
            Self::Lz4hc => "LZ4HC",
            Self::Xpress => "Xpress",
            Self::Zstd => "ZSTD",
            Self::ZstdNotFinal => "ZSTDNotFinal",
        }
    }

    /// True if this build reads what was written with it.
    #[must_use]
    pub fn can_read(self) -> bool {
        let is_legacy = matches!(self, Self::Zlib | Self::Bzip2);
        self.can_write() || (is_legacy && cfg!(feature = "legacy-codecs"))
    }

    /// True if blocks can be written with it.
    #[must_use]
    pub fn can_write(self) -> bool {
        matches!(
            self,
            Self::None | Self::Snappy | Self::Lz4 | Self::Lz4hc | Self::Zstd
        )
    }
}

/// What memory is asked for.
const COMPRESSED: &str = "compressed block";
const DICTIONARY: &str = "compression dictionary";

/// Bytes before compression that every codec here can take at once: what LZ4 can.
pub const COMPRESSED_SIZE_MAX: usize = 0x7e00_0000;

/// Compresses the blocks of one table, or the values of one file.
pub struct Compressor {
    kind: CompressionType,
    level: i32,
    lz4: Option<lz4::State>,
    snappy: Option<Box<snap::raw::Encoder>>,
    zstd: Option<CCtx<'static>>,
}

impl Compressor {
    /// A compressor of `kind`; zstd uses `dict` unless it is empty, the others do without.
    ///
    /// # Errors
    /// `NotSupported` for a codec that is not written; `NoMemory`.
    pub fn new(kind: CompressionType, options: &CompressionOptions, dict: &[u8]) -> Result<Self> {
        if !kind.can_write() {
            return Err(
                Error::not_supported("codec cannot be written").with("compression", kind.name())
            );
        }
        let default = options.level == DEFAULT_COMPRESSION_LEVEL;
        // The slower search, for fewer bytes. Both names of LZ4 have all levels, as in RocksDB 11.
        let is_hc = match kind {
            CompressionType::Lz4hc if default => true,
            CompressionType::Lz4 | CompressionType::Lz4hc => !default && options.level >= 1,
            _ => false,
        };
        let level = match kind {
            CompressionType::Zstd if default => 3,
            CompressionType::Lz4 if default => 1,
            CompressionType::Lz4 | CompressionType::Lz4hc if !is_hc => {
                options.level.saturating_neg().max(1)
            }
            _ if default => 0,
            _ => options.level,
        };
        let mut this = Self {
            kind,
            level,
            lz4: None,
            snappy: None,
            zstd: None,
        };
        match kind {
            CompressionType::Lz4 | CompressionType::Lz4hc => {
                this.lz4 = Some(lz4::State::new(is_hc)?);
            }
            CompressionType::Snappy => this.snappy = Some(Box::new(snap::raw::Encoder::new())),
            CompressionType::Zstd => {
                let mut context = CCtx::create();
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .map_err(zstd_error)?;
                context
                    .set_parameter(CParameter::ChecksumFlag(options.checksum))
                    .map_err(zstd_error)?;
                if !dict.is_empty() {
                    // With the parameters above: those of a prepared one would leave the checksum out.
                    context.load_dictionary(dict).map_err(zstd_error)?;
                }
                this.zstd = Some(context);
            }
            _ => {}
        }
        Ok(this)
    }

    /// The codec.
    #[must_use]
    pub fn kind(&self) -> CompressionType {
        self.kind
    }

    /// Compresses `raw` into `out`, which is emptied first; false if that takes more than
    /// `limit` bytes.
    ///
    /// # Errors
    /// `Corruption` if the codec fails for another reason than its output's size.
    ///
    /// # Panics
    /// Never: what a codec needs was made with the compressor.
    pub fn compress(&mut self, raw: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let Ok(size) = u32::try_from(raw.len()) else {
            return Ok(false);
        };
        match self.kind {
            CompressionType::Snappy => {
                let encoder = self.snappy.as_mut().expect("made with the compressor");
                let len_max = snap::raw::max_compress_len(raw.len());
                if len_max == 0 {
                    // Longer than its lengths go.
                    return Ok(false);
                }
                memory::resize(out, len_max, COMPRESSED)?;
                let n = encoder
                    .compress(raw, out)
                    .map_err(|e| Error::corruption("snappy failed to compress").caused_by(e))?;
                out.truncate(n);
                Ok(n <= limit)
            }
            CompressionType::Lz4 | CompressionType::Lz4hc => {
                put_varint32(out, size);
                let Some(room) = limit.checked_sub(out.len()) else {
                    return Ok(false);
                };
                memory::reserve(out, room, COMPRESSED)?;
                let state = self.lz4.as_mut().expect("made with the compressor");
                Ok(state.compress(raw, self.level, room, out))
            }
            CompressionType::Zstd => {
                put_varint32(out, size);
                if limit <= out.len() {
                    return Ok(false);
                }
                let header = out.len();
                let context = self.zstd.as_mut().expect("made with the compressor");
                memory::resize(out, limit, COMPRESSED)?;
                let room = &mut out[header..];
                match context.compress2(room, raw) {
                    Ok(n) => {
                        out.truncate(header + n);
                        Ok(true)
                    }
                    // The only failure that a sound call can have: no room.
                    Err(_) => Ok(false),
                }
            }
            _ => Ok(false),
        }
    }
}

impl Compressor {
    /// Compresses `raw` into `out`, which is emptied first, also where that makes it longer.
    ///
    /// # Errors
    /// `InvalidArgument` if it has more than [`COMPRESSED_SIZE_MAX`] bytes; as [`Self::compress`].
    pub fn compress_always(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<()> {
        // Above what any of the codecs can need.
        let limit = raw.len() + raw.len() / 6 + 128;
        if raw.len() <= COMPRESSED_SIZE_MAX && self.compress(raw, limit, out)? {
            return Ok(());
        }
        Err(Error::invalid_argument("value is too large for its codec")
            .with("codec", self.kind.name())
            .with("size", raw.len()))
    }
}

/// The size before compression that `data` claims, in the framing of tables of format 2 and later.
///
/// # Errors
/// `Corruption` if it claims none; `NotSupported` for a codec that is never read.
pub fn decompressed_len(kind: CompressionType, data: &[u8]) -> Result<u64> {
    let damaged = || Error::corruption("compressed block is damaged").with("codec", kind.name());
    match kind {
        CompressionType::None => Ok(data.len() as u64),
        CompressionType::Snappy => snap::raw::decompress_len(data)
            .map(|n| n as u64)
            .map_err(|e| damaged().caused_by(e)),
        CompressionType::Xpress | CompressionType::ZstdNotFinal => Err(unreadable(kind)),
        _ => get_varint32(data)
            .map(|(n, _)| u64::from(n))
            .ok_or_else(damaged),
    }
}

fn zstd_error(code: usize) -> Error {
    Error::corruption("zstd failed").with("reason", zstd::zstd_safe::get_error_name(code))
}

/// A dictionary, ready for every block of a table.
pub struct Dictionary {
    raw: Vec<u8>,
    zstd: DDict<'static>,
}

impl Dictionary {
    /// The dictionary of these bytes: what zstd trained, or any content.
    ///
    /// # Errors
    /// `Corruption` if zstd refuses it, or if it is empty.
    pub fn new(raw: Vec<u8>) -> Result<Self> {
        if raw.is_empty() {
            return Err(Error::corruption("compression dictionary is empty"));
        }
        let zstd = DDict::try_create(&raw)
            .ok_or_else(|| Error::corruption("compression dictionary is malformed"))?;
        Ok(Self { raw, zstd })
    }

    /// Bytes of memory held, about.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        2 * self.raw.len()
    }
}

thread_local! {
    static ZSTD: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// What a dictionary begins with that was trained (RFC 8878, 5).
const TRAINED_MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();

/// A dictionary of at most `size` bytes, trained on `samples`.
///
/// Empty where zstd finds too little to learn from.
fn train_dictionary(samples: &[u8], lens: &[usize], size: usize) -> Result<Vec<u8>> {
    let mut dict = memory::zeroed(size, DICTIONARY)?;
    Ok(
        match zstd::zstd_safe::train_from_buffer(&mut dict[..], samples, lens) {
            Ok(n) => {
                dict.truncate(n);
                dict
            }
            Err(_) => Vec::new(),
        },
    )
}

/// Takes blocks from all over the table until there are enough bytes, and makes a dictionary.
///
/// There must be a block.
///
/// # Errors
/// `NoMemory`.
pub fn make_dictionary<B: AsRef<[u8]>>(
    blocks: &[B],
    options: &CompressionOptions,
) -> Result<Vec<u8>> {
    let dict_len = options.max_dict_bytes as usize;
    let train_len = options.zstd_max_train_bytes as usize;
    let want = if train_len > 0 { train_len } else { dict_len };
    // A large prime is a generator of the block numbers, whatever their count.
    let step = (545_055_921_143 % blocks.len() as u64) as usize;
    let mut at = blocks.len() / 2;
    let (mut samples, mut lens) = (Vec::new(), Vec::new());
    for _ in 0..blocks.len() {
        if samples.len() >= want {
            break;
        }
        let block = blocks[at].as_ref();
        let n = block.len().min(want - samples.len());
        memory::append(&mut samples, &block[..n], DICTIONARY)?;
        memory::push(&mut lens, n, DICTIONARY)?;
        at = (at + step) % blocks.len();
    }
    if train_len > 0 {
        train_dictionary(&samples, &lens, dict_len)
    } else if samples.starts_with(&TRAINED_MAGIC) {
        // zstd would take it for one that was trained, and refuse it.
        Ok(Vec::new())
    } else {
        Ok(samples)
    }
}

/// How many bytes each compressed byte can become at most; a bit above what the codecs can do.
fn expansion_max(kind: CompressionType) -> u64 {
    match kind {
        CompressionType::Snappy => 24,
        CompressionType::Lz4 | CompressionType::Lz4hc => 256,
        // Runs, of up to 255 bytes in 5, before blocks of 900 kB; what it makes is read as it
        // comes, not into memory of the claimed size.
        CompressionType::Bzip2 => 2 << 20,
        _ => 48 << 10,
    }
}

/// Memory for `size` bytes: `spare`, if it is large enough and wastes little.
#[inline]
///
/// # Errors
/// `NoMemory`.
pub fn fitting(mut spare: Vec<u8>, size: usize) -> Result<Vec<u8>> {
    if (size..=size + size / 8).contains(&spare.capacity()) {
        spare.clear();
        return Ok(spare);
    }
    memory::with_capacity(size, "block")
}

/// Decompresses a block of a table of `format_version`, into the memory of `spare` if it fits.
///
/// # Errors
/// `Corruption` if it is damaged or larger than a block may be; `NotSupported` if the codec is not
/// built in.
pub fn decompress(
    kind: CompressionType,
    data: &[u8],
    dict: Option<&Dictionary>,
    format_version: u32,
    spare: Vec<u8>,
) -> Result<Vec<u8>> {
    let damaged = || Error::corruption("compressed block is damaged").with("codec", kind.name());
    let (size, body) = match kind {
        CompressionType::None => {
            let mut out = fitting(spare, data.len())?;
            out.extend_from_slice(data);
            return Ok(out);
        }
        CompressionType::Snappy => {
            let size = snap::raw::decompress_len(data).map_err(|e| damaged().caused_by(e))?;
            (size as u64, data)
        }
        CompressionType::Lz4 | CompressionType::Lz4hc if format_version < 2 => {
            let size = get_fixed32(data).ok_or_else(damaged)?;
            (u64::from(size), data.get(8..).ok_or_else(damaged)?)
        }
        CompressionType::Zlib | CompressionType::Bzip2 if format_version < 2 => (0, data),
        CompressionType::Zlib
        | CompressionType::Bzip2
        | CompressionType::Lz4
        | CompressionType::Lz4hc
        | CompressionType::Zstd => {
            let (size, n) = get_varint32(data).ok_or_else(damaged)?;
            (u64::from(size), &data[n..])
        }
        CompressionType::Xpress | CompressionType::ZstdNotFinal => return Err(unreadable(kind)),
    };
    if size > BLOCK_SIZE_MAX as u64 || size > body.len() as u64 * expansion_max(kind) + 64 {
        return Err(damaged().with("claimed_size", size));
    }
    let size = size as usize;
    let out = match kind {
        CompressionType::Snappy => {
            let mut out = fitting(spare, size)?;
            out.resize(size, 0);
            let n = snap::raw::Decoder::new()
                .decompress(body, &mut out)
                .map_err(|e| damaged().caused_by(e))?;
            out.truncate(n);
            out
        }
        CompressionType::Lz4 | CompressionType::Lz4hc => {
            let dict = dict.map_or(&[][..], |d| &d.raw);
            lz4::decompress(body, dict, size, fitting(spare, size)?).ok_or_else(damaged)?
        }
        CompressionType::Zstd => {
            let mut out = fitting(spare, size)?;
            ZSTD.with_borrow_mut(|context| match dict {
                Some(dict) => context.decompress_using_ddict(&mut out, body, &dict.zstd),
                None => context.decompress(&mut out, body),
            })
            .map_err(|code| damaged().with("reason", zstd::zstd_safe::get_error_name(code)))?;
            out
        }
        _ => return legacy::decompress(kind, body, dict.is_some(), size, format_version),
    };
    if out.len() != size {
        return Err(damaged().with("claimed_size", size).with("size", out.len()));
    }
    Ok(out)
}

#[cold]
fn unreadable(kind: CompressionType) -> Error {
    Error::not_supported("block is compressed with a codec that is not built in")
        .with("codec", kind.name())
}

#[cfg(not(feature = "legacy-codecs"))]
mod legacy {
    //! Without feature `legacy-codecs`: zlib and bzip2 are refused by name.

    use super::{CompressionType, Result, unreadable};

    pub(super) fn decompress(
        kind: CompressionType,
        _body: &[u8],
        _with_dict: bool,
        _size: usize,
        _format_version: u32,
    ) -> Result<Vec<u8>> {
        Err(unreadable(kind))
    }
}

#[cfg(feature = "legacy-codecs")]
mod legacy;

#[cfg(test)]
mod tests;
