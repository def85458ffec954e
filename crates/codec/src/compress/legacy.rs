//! zlib and bzip2, for reading old tables.

use std::io::Read;

use orogen_base::limits::BLOCK_SIZE_MAX;

use super::{CompressionType, Error, Result, memory, unreadable};

/// Decompresses a block; `size` is 0 where the format does not store it.
pub(super) fn decompress(
    kind: CompressionType,
    body: &[u8],
    with_dict: bool,
    size: usize,
    format_version: u32,
) -> Result<Vec<u8>> {
    if with_dict && kind == CompressionType::Zlib {
        return Err(Error::not_supported("zlib with a dictionary is not read"));
    }
    let limit = if format_version < 2 {
        BLOCK_SIZE_MAX
    } else {
        size
    };
    let out = match kind {
        CompressionType::Zlib => {
            // Written raw unless the window was set otherwise.
            read_up_to(flate2::read::DeflateDecoder::new(body), limit)
                .or_else(|_| read_up_to(flate2::read::ZlibDecoder::new(body), limit))
        }
        CompressionType::Bzip2 => read_up_to(bzip2::read::BzDecoder::new(body), limit),
        _ => return Err(unreadable(kind)),
    };
    match out {
        Ok(out) if format_version < 2 || out.len() == size => Ok(out),
        Ok(out) => Err(Error::corruption("compressed block is damaged")
            .with("codec", kind.name())
            .with("claimed_size", size)
            .with("size", out.len())),
        Err(e) if e.kind() == std::io::ErrorKind::OutOfMemory => {
            Err(memory::refused("block", size))
        }
        Err(e) => Err(Error::corruption("compressed block is damaged")
            .with("codec", kind.name())
            .caused_by(e)),
    }
}

fn read_up_to(from: impl Read, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    // One byte more than allowed shows that there is more.
    from.take(limit as u64 + 1).read_to_end(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use orogen_base::coding::put_varint32;

    use super::CompressionType;
    use crate::compress::decompress;

    #[test]
    fn bzip2_may_shrink_one_value_by_a_million() {
        let raw = vec![7; 30 << 20];
        let mut block = Vec::new();
        put_varint32(&mut block, raw.len() as u32);
        let mut encoder = bzip2::write::BzEncoder::new(block, bzip2::Compression::best());
        encoder.write_all(&raw).unwrap();
        let block = encoder.finish().unwrap();
        assert!(block.len() < 100);
        let out = decompress(CompressionType::Bzip2, &block, None, 5, Vec::new()).unwrap();
        assert!(out == raw);
    }
}
