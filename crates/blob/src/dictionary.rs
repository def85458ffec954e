//! A dictionary for the values of files that are yet to be written, if it is worth it.
//!
//! Seven of eight samples are trained on, and the others compressed with it and without: what a
//! dictionary does to the values that it was made of tells nothing. Source: RocksDB
//! `table/block_based/block_based_table_builder.cc`, for how tables sample their blocks.

use orogen_base::Result;
use orogen_codec::{CompressionOptions, CompressionType, Compressor, make_dictionary};

/// One sample in so many is not trained on.
const TRIED_EVERY: usize = 8;
/// Samples that a dictionary is tried on at most.
const TRIED_MAX: usize = 128;
/// What values shrink to with a dictionary, in 16ths of what they shrink to without, to be worth it.
const WORTH_16THS: u64 = 15;

/// A dictionary for zstd, made of samples as the options say; `None` if it would save less than a 16th of
/// what it is tried on. With `is_all` the samples are all values that there will be, and it must
/// save more than itself.
///
/// # Errors
/// `NoMemory`; those of the codec.
pub fn dictionary_for(
    samples: &[&[u8]],
    options: &CompressionOptions,
    is_all: bool,
) -> Result<Option<Vec<u8>>> {
    let (mut trained, mut tried) = (Vec::new(), Vec::new());
    for (i, &sample) in samples.iter().enumerate() {
        match i % TRIED_EVERY {
            0 => tried.push(sample),
            _ => trained.push(sample),
        }
    }
    if trained.is_empty() {
        return Ok(None);
    }
    let dictionary = make_dictionary(&trained, options)?;
    if dictionary.is_empty() {
        return Ok(None);
    }
    let step = tried.len().div_ceil(TRIED_MAX);
    let tried: Vec<&[u8]> = tried.into_iter().step_by(step).collect();
    let without = compressed_len(&tried, options, &[])?;
    let with = compressed_len(&tried, options, &dictionary)?;
    if with * 16 > without * WORTH_16THS {
        return Ok(None);
    }
    let raw = |values: &[&[u8]]| values.iter().map(|v| v.len() as u128).sum::<u128>();
    let saved = raw(samples) * u128::from(without - with);
    let pays = saved > raw(&tried) * dictionary.len() as u128;
    Ok((pays || !is_all).then_some(dictionary))
}

/// Bytes that values take as they would be stored.
fn compressed_len(
    values: &[&[u8]],
    options: &CompressionOptions,
    dictionary: &[u8],
) -> Result<u64> {
    let mut compressor = Compressor::new(CompressionType::Zstd, options, dictionary)?;
    let mut out = Vec::new();
    let mut sum = 0;
    for value in values {
        compressor.compress_always(value, &mut out)?;
        sum += out.len() as u64;
    }
    Ok(sum)
}
