//! Workloads that read.

use orogen_base::Result;

use crate::generate::Key;
use crate::workload::Worker;

/// Gets random keys. A worker with longer keys than were written finds none.
pub(crate) fn random(w: &mut Worker) -> Result<()> {
    let mut key = w.key();
    let options = w.read_options();
    let (num, reads) = (w.flags.num, w.flags.reads());
    let mut budget = w.budget(reads);
    let (mut found, mut read) = (0, 0);
    while budget.take(1) {
        let key = key.set(w.rng.below(num));
        read += 1;
        if let Some(value) = w.db.get_opt(&options, &w.family, key)? {
            found += 1;
            w.stats.bytes += (key.len() + value.len()) as u64;
        }
        w.stats.finished(1);
    }
    w.stats.found = Some((found, read));
    Ok(())
}

/// Keys of a multi-get that are looked for without an allocation.
const KEYS_ON_STACK: usize = 128;

/// Gets `--batch_size` random keys at a time.
pub(crate) fn multi_random(w: &mut Worker) -> Result<()> {
    let entries = w.flags.batch_size;
    let mut keys: Vec<Key> = (0..entries).map(|_| w.key()).collect();
    let options = w.read_options();
    let (num, reads) = (w.flags.num, w.flags.reads());
    let mut budget = w.budget(reads);
    let (mut found, mut read) = (0, 0);
    while budget.take(entries as u64) {
        for key in &mut keys {
            key.set(w.rng.below(num));
        }
        let mut on_stack = [&[][..]; KEYS_ON_STACK];
        let on_heap: Vec<&[u8]>;
        let slices = if let Some(slices) = on_stack.get_mut(..entries) {
            slices
                .iter_mut()
                .zip(&keys)
                .for_each(|(s, k)| *s = k.bytes());
            &*slices
        } else {
            on_heap = keys.iter().map(Key::bytes).collect();
            &on_heap
        };
        for value in w.db.multi_get(&options, &w.family, slices) {
            if let Some(value) = value? {
                found += 1;
                w.stats.bytes += (w.key_size + value.len()) as u64;
            }
        }
        read += entries as u64;
        w.stats.finished(entries as u64);
    }
    w.stats.found = Some((found, read));
    Ok(())
}

/// Reads up to `--reads` entries from the first key on.
pub(crate) fn forward(w: &mut Worker) -> Result<()> {
    let mut iter = w.db.iter(&w.read_options(), &w.family)?;
    iter.seek_to_first();
    let mut left = w.flags.reads();
    while left > 0 && iter.valid() {
        w.stats.bytes += (iter.key().len() + iter.value().len()) as u64;
        w.stats.finished(1);
        left -= 1;
        iter.next();
    }
    iter.status()
}

/// Reads up to `--reads` entries from the last key back.
pub(crate) fn backward(w: &mut Worker) -> Result<()> {
    let mut iter = w.db.iter(&w.read_options(), &w.family)?;
    iter.seek_to_last();
    let mut left = w.flags.reads();
    while left > 0 && iter.valid() {
        w.stats.bytes += (iter.key().len() + iter.value().len()) as u64;
        w.stats.finished(1);
        left -= 1;
        iter.prev();
    }
    iter.status()
}

/// Seeks a random key with a new iterator each time and reads `--seek_nexts` entries.
pub(crate) fn seek_random(w: &mut Worker) -> Result<()> {
    let mut key = w.key();
    let options = w.read_options();
    let (num, reads, nexts) = (w.flags.num, w.flags.reads(), w.flags.seek_nexts);
    let reverse = w.flags.reverse_iterator;
    let mut copy = [0u8; 256];
    let mut budget = w.budget(reads);
    let (mut found, mut read) = (0, 0);
    while budget.take(1) {
        let key = key.set(w.rng.below(num));
        let mut iter = w.db.iter(&options, &w.family)?;
        iter.seek(key);
        read += 1;
        found += u64::from(iter.valid() && iter.key() == key);
        let mut left = nexts;
        while left > 0 && iter.valid() {
            // The value is touched, as a user would.
            let value = iter.value();
            let n = value.len().min(copy.len());
            copy[..n].copy_from_slice(&value[..n]);
            std::hint::black_box(&copy);
            w.stats.bytes += (iter.key().len() + value.len()) as u64;
            left -= 1;
            if reverse {
                iter.prev();
            } else {
                iter.next();
            }
        }
        iter.status()?;
        w.stats.finished(1);
    }
    w.stats.found = Some((found, read));
    Ok(())
}
