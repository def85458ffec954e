//! Locks of all that a batch writes, for who holds no others.
//!
//! Keys and ranges are taken by family, then by where they begin. Where there are keys alone, who waits for one holds only
//! lower ones, so nobody waits in a circle. A range may wait for who holds a key in the midst of it, and who holds that stand in line behind
//! the range for another: that is found as a deadlock, and who finds it gives all back and begins again. The
//! others of the circle go on then.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_engine::batch::BatchOp;
use orogen_engine::{Db, WriteBatch};

use crate::lock_manager::{FamilyLocks, KeyRange, LockManager, LockMode, TxnLocks};

/// Each time somebody else has gone on.
const TRIES_MAX: u32 = 100;

/// A key, or the keys up to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) family: u32,
    pub(crate) start: &'a [u8],
    /// Where a range ends, without it.
    pub(crate) end: Option<&'a [u8]>,
}

impl<'a> Part<'a> {
    pub(crate) fn key(family: u32, key: &'a [u8]) -> Self {
        Self {
            family,
            start: key,
            end: None,
        }
    }
}

/// The locks of a family, new ones.
///
/// # Errors
/// `InvalidArgument` if there is none of this number.
pub(crate) fn family(db: &Db, locks: &LockManager, id: u32) -> Result<Arc<FamilyLocks>> {
    let all = db.column_families();
    let family = all.iter().find(|f| f.id() == id).ok_or_else(|| {
        Error::invalid_argument("column family does not exist").with("column_family_id", id)
    })?;
    Ok(locks.add_family(id, family.options().comparator.clone()))
}

/// Of what a batch writes, that which is `wanted`.
///
/// # Errors
/// `Corruption` of a batch that is none; `NoMemory`.
pub(crate) fn parts_of(
    batch: &WriteBatch,
    wanted: impl Fn(&Part<'_>) -> bool,
) -> Result<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    for op in batch {
        let part = match op? {
            BatchOp::Put { cf, key, .. }
            | BatchOp::Merge { cf, key, .. }
            | BatchOp::Delete { cf, key }
            | BatchOp::SingleDelete { cf, key } => Part::key(cf, key),
            BatchOp::DeleteRange { cf, start, end } => Part {
                end: Some(end),
                ..Part::key(cf, start)
            },
            _ => continue,
        };
        if wanted(&part) {
            memory::push(&mut parts, part, "keys of a batch")?;
        }
    }
    Ok(parts)
}

/// Locks them all exclusively, each of a family of `family`; `held` holds nothing.
///
/// # Errors
/// Those of `family`, `LockTimeout`, `LockLimit`, `Expired`; `Deadlock` if it comes again and again. Nothing is held then.
pub(crate) fn lock(
    locks: &LockManager,
    held: &mut TxnLocks,
    mut family: impl FnMut(u32) -> Result<Arc<FamilyLocks>>,
    mut parts: Vec<Part<'_>>,
    timeout: Option<Duration>,
) -> Result<()> {
    parts.sort_by_key(|part| part.family);
    for tries in 1.. {
        let Err(e) = try_all(locks, held, &mut family, &mut parts, timeout) else {
            break;
        };
        locks.unlock_all(held);
        if e.kind() != ErrorKind::Deadlock || tries == TRIES_MAX {
            return Err(e);
        }
    }
    Ok(())
}

fn try_all(
    locks: &LockManager,
    held: &mut TxnLocks,
    family: &mut dyn FnMut(u32) -> Result<Arc<FamilyLocks>>,
    parts: &mut [Part<'_>],
    timeout: Option<Duration>,
) -> Result<()> {
    for parts in parts.chunk_by_mut(|a, b| a.family == b.family) {
        let family = family(parts[0].family)?;
        let order = family.order().clone();
        parts.sort_by(|a, b| order.compare(a.start, b.start));
        let mut before = None;
        for &mut part in parts {
            // Written more than once.
            if before == Some(part) {
                continue;
            }
            before = Some(part);
            match part.end {
                None => {
                    locks.try_lock(held, &family, part.start, LockMode::Exclusive, timeout)?;
                }
                Some(end) => {
                    let range = KeyRange::new(part.start, end, false);
                    if !range.is_empty(&order) {
                        let mode = LockMode::Exclusive;
                        locks.try_lock_range(held, &family, &range, mode, timeout)?;
                    }
                }
            }
        }
    }
    Ok(())
}
