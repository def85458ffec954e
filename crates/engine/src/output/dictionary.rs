//! Entries that wait until it is known whether new blob files get a dictionary.
//!
//! ```text
//! entry with a large value -> held, as all behind it -> enough of them -> trained on most,
//!   tried on the others -> kept or given up -> all that is held goes on, in its order
//! ```
//! One dictionary serves all files of a run: pointers stand in tables as soon as a value is added, so
//! a file cannot begin before it has its dictionary. Invariants: (1) entries leave in the order in which they
//! came, none is lost: who ends the run asks for those that are held; (2) what is held, samples included, is
//! bounded ([`HELD_BYTES_MAX`]) and reserved; where nothing is granted it is decided with what there is;
//! (3) without a gain on values that it was not trained on there is no dictionary.
//! Source: RocksDB `table/block_based/block_based_table_builder.cc`, for what a table does with blocks.

use std::sync::Arc;

use orogen_base::{PinnedValue, Result, memory};
use orogen_blob::dictionary_for;
use orogen_cache::Reservation;
use orogen_sst::{BlockCache, CachedBlock, CompressionOptions};

/// Bytes of entries that are held at most.
const HELD_BYTES_MAX: usize = 16 << 20;
/// What an entry takes beside its bytes.
const ENTRY_OVERHEAD: usize = 96;
/// The reservation grows in such steps.
const RESERVED_STEP: usize = 256 << 10;
const HELD: &str = "values for a dictionary";

/// An entry that waits.
pub(super) struct HeldEntry {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// What the pointer of an entry leads to.
    fetched: Option<PinnedValue>,
    is_sample: bool,
}

impl HeldEntry {
    fn sample(&self) -> Option<&[u8]> {
        match &self.fetched {
            Some(fetched) => Some(fetched),
            None => self.is_sample.then_some(&self.value[..]),
        }
    }
}

/// What came of it.
pub(super) struct Decided {
    pub(super) dictionary: Option<Arc<[u8]>>,
    pub(super) entries: Vec<HeldEntry>,
    /// Until the entries are gone.
    _reservation: Option<Reservation<CachedBlock>>,
}

/// What is held.
pub(super) struct Samples {
    options: CompressionOptions,
    entries: Vec<HeldEntry>,
    bytes: usize,
    sample_bytes: u64,
    /// Bytes of samples that are enough.
    wanted: u64,
    bytes_max: usize,
    reservation: Option<Reservation<CachedBlock>>,
    is_refused: bool,
}

impl Samples {
    /// For a dictionary as the options say; `None` if they ask for none.
    pub(super) fn new(
        options: &CompressionOptions,
        reserve_in: Option<&Arc<BlockCache>>,
    ) -> Option<Self> {
        if options.max_dict_bytes == 0 {
            return None;
        }
        let wanted = match options.zstd_max_train_bytes {
            0 => options.max_dict_bytes,
            train => train,
        };
        let asked = match options.max_dict_buffer_bytes {
            0 => HELD_BYTES_MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        Some(Self {
            options: *options,
            entries: Vec::new(),
            bytes: 0,
            sample_bytes: 0,
            // And those that it is tried on.
            wanted: u64::from(wanted) + u64::from(wanted) / 7,
            bytes_max: asked.min(HELD_BYTES_MAX),
            reservation: reserve_in.map(|cache| Reservation::new(cache.clone())),
            is_refused: false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True once there is nothing more to wait for.
    pub(super) fn are_enough(&self) -> bool {
        self.sample_bytes >= self.wanted || self.bytes >= self.bytes_max || self.is_refused
    }

    /// Holds an entry, whose value is a sample, or leads to one, or is neither.
    pub(super) fn hold(
        &mut self,
        key: &[u8],
        value: &[u8],
        is_sample: bool,
        fetched: Option<PinnedValue>,
    ) -> Result<()> {
        let len = fetched.as_ref().map_or(0, |f| f.len());
        self.bytes += key.len() + value.len() + len + ENTRY_OVERHEAD;
        let entry = HeldEntry {
            key: memory::copied(key, HELD)?,
            value: memory::copied(value, HELD)?,
            fetched,
            is_sample,
        };
        self.sample_bytes += entry.sample().map_or(0, |s| s.len() as u64);
        memory::push(&mut self.entries, entry, HELD)?;
        if let Some(reservation) = &mut self.reservation {
            // Samples are copied once more to be trained on.
            let held = self.bytes
                + usize::try_from(self.wanted)
                    .unwrap_or(usize::MAX)
                    .min(self.bytes);
            let wanted = held.next_multiple_of(RESERVED_STEP);
            self.is_refused = !reservation.try_grow(wanted);
        }
        Ok(())
    }

    /// The dictionary, if one is worth it, and the entries. `is_all`: no more values follow.
    pub(super) fn decide(self, is_all: bool) -> Result<Decided> {
        let samples: Vec<&[u8]> = self.entries.iter().filter_map(HeldEntry::sample).collect();
        let dictionary = dictionary_for(&samples, &self.options, is_all)?;
        Ok(Decided {
            dictionary: dictionary.map(Arc::from),
            entries: self.entries,
            _reservation: self.reservation,
        })
    }
}
