//! The proof: what the writer told of is there, whole, and nothing else.
//!
//! 1. Batches are atomic: of each batch all records are there or none.
//! 2. Batches are in order: behind one that is missing there is none.
//! 3. What was acknowledged is there: each entry of each acknowledged batch is read by its key
//!    and compared byte by byte.
//! 4. The families agree: all of them are scanned side by side with what the batches that are
//!    there amount to, so an index entry without its record, a record without its index entries,
//!    and anything else too many or too few is found.

use std::collections::HashMap;

use orogen::{ColumnFamily, Db, ReadOptions};

use super::control::{Record, Records};
use super::index::{self, FAMILIES, Model, PACKAGES};
use super::load;
use crate::failure::Failure;
use crate::text;

/// What a proof looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Proof {
    /// Batches that are there.
    pub(super) batches: usize,
    /// Entries that were acknowledged and read by key.
    pub(super) point_reads: u64,
    /// Entries that were scanned and compared.
    pub(super) scanned: u64,
}

fn failed(what: &str) -> Failure {
    Failure::Damaged(format!("the proof failed: {what}"))
}

fn place(family: usize, key: &[u8]) -> String {
    format!("'{}' of {}", text::escape(key), FAMILIES[family])
}

/// Compares all families with a model, entry by entry; gives how many there are.
///
/// # Errors
/// `Damaged` with how many entries are missing, different and too many, and the first of them.
pub(super) fn compare(db: &Db, model: &Model) -> Result<u64, Failure> {
    let families = load::families(db)?;
    let (mut scanned, mut missing, mut different, mut extra) = (0u64, 0u64, 0u64, 0u64);
    let mut first: Option<String> = None;
    let options = ReadOptions {
        fill_cache: false,
        ..ReadOptions::default()
    };
    for (family, handle) in families.iter().enumerate() {
        let mut note = |counter: &mut u64, what: &str, key: &[u8]| {
            *counter += 1;
            first.get_or_insert_with(|| format!("{} {what}", place(family, key)));
        };
        let mut expected = model.families[family].iter().peekable();
        let mut iter = db.iter(&options, handle)?;
        iter.seek_to_first();
        while iter.valid() {
            scanned += 1;
            while let Some((key, _)) = expected.next_if(|(key, _)| key.as_slice() < iter.key()) {
                note(&mut missing, "is missing", key);
            }
            match expected.next_if(|(key, _)| key.as_slice() == iter.key()) {
                None => note(&mut extra, "is too many", iter.key()),
                Some((key, value)) if value != iter.value() => {
                    note(&mut different, "has other bytes", key);
                }
                Some(_) => {}
            }
            iter.next();
        }
        iter.status()?;
        for (key, _) in expected {
            note(&mut missing, "is missing", key);
        }
    }
    match first {
        None => Ok(scanned),
        Some(first) => Err(failed(&format!(
            "{missing} entries missing, {different} different, {extra} too many; first: {first}"
        ))),
    }
}

/// How many batches are there, from the first on.
fn batches_present(
    db: &Db,
    packages: &ColumnFamily,
    batches: &[&[Record<'_>]],
) -> Result<usize, Failure> {
    let mut batch_of: HashMap<Vec<u8>, usize> = HashMap::new();
    for (i, batch) in batches.iter().enumerate() {
        batch_of.extend(batch.iter().map(|r| (index::package_key(r), i)));
    }
    let mut found = vec![0usize; batches.len()];
    let mut iter = db.iter(&ReadOptions::default(), packages)?;
    iter.seek_to_first();
    while iter.valid() {
        match batch_of.get(iter.key()) {
            Some(&i) => found[i] += 1,
            None => {
                let place = place(PACKAGES, iter.key());
                return Err(failed(&format!("{place} was never written")));
            }
        }
        iter.next();
    }
    iter.status()?;
    let whole = batches
        .iter()
        .zip(&found)
        .take_while(|(b, n)| b.len() == **n)
        .count();
    match found.iter().enumerate().skip(whole).find(|(_, n)| **n > 0) {
        None => Ok(whole),
        Some((i, n)) if i == whole => {
            let of = batches[i].len();
            Err(failed(&format!(
                "batch {i} was torn: {n} of {of} records are there"
            )))
        }
        Some((i, _)) => Err(failed(&format!(
            "batch {i} is there, batch {whole} before it is not"
        ))),
    }
}

/// Proves that the first `acknowledged` batches are there and that the database is whole.
///
/// `model` holds what the first `*modelled` batches amount to, and is brought up to what is
/// there.
///
/// # Errors
/// `Damaged` if the proof fails; what the database met.
pub(super) fn prove(
    db: &Db,
    records: &Records<'_>,
    batch_records: usize,
    acknowledged: usize,
    (model, modelled): (&mut Model, &mut usize),
) -> Result<Proof, Failure> {
    let families = load::families(db)?;
    let batches: Vec<&[Record<'_>]> = records.list.chunks(batch_records).collect();
    let present = batches_present(db, &families[PACKAGES], &batches)?;
    if present < acknowledged {
        return Err(failed(&format!(
            "{acknowledged} batches were acknowledged, {present} are there"
        )));
    }
    for record in batches[*modelled..present].iter().copied().flatten() {
        model.add(record);
    }
    *modelled = present;
    let mut point_reads = 0u64;
    let mut wrong: Option<String> = None;
    let mut error = None;
    let options = ReadOptions::default();
    for record in batches[..acknowledged].iter().copied().flatten() {
        index::entries(record, |family, key, _| {
            point_reads += 1;
            match db.get_opt(&options, &families[family], key) {
                Ok(Some(value))
                    if model.families[family]
                        .get(key)
                        .is_some_and(|v| value == v[..]) => {}
                Ok(_) => {
                    wrong.get_or_insert_with(|| place(family, key));
                }
                Err(e) => error = Some(e),
            }
        });
    }
    if let Some(e) = error {
        return Err(e.into());
    }
    if let Some(place) = wrong {
        return Err(failed(&format!(
            "{place} was acknowledged and is missing or different"
        )));
    }
    let scanned = compare(db, model)?;
    Ok(Proof {
        batches: present,
        point_reads,
        scanned,
    })
}

#[cfg(test)]
mod tests;
