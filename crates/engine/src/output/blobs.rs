//! Where a job's large values go.
//!
//! Stands between the entries that stay and the table that they go into: a value that is large
//! enough goes to a blob file, and the table gets a pointer. A pointer that came in passes unread,
//! unless its file is to be left and its value is whole. Blob files go on over the ends of tables, and
//! with [`BlobCarry`] over those of a job's runs.
//!
//! Invariant: what the tables of the job point to is what was passed on and what is in the new
//! files, value for value; so what was read and not passed on is garbage.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::key::{TRAILER_LEN, ValueKind, trailer, user_key};
use orogen_base::metrics::{Histogram, HistogramKind, Statistics};
use orogen_base::sync::Mutex;
use orogen_base::{Error, FileNo, PinnedValue, Result};
use orogen_blob::{BlobFileBuilder, BlobFileBuilderOptions, BlobPointer};
use orogen_cache::Reservation;
use orogen_sst::{BlockCache, CachedBlock, CompressionOptions};

use super::NewFile;
use super::breaks::Breaks;
use super::dictionary::{Decided, Samples};
use crate::filename::{DataFile, DataFileKind};
use crate::read::{BlobKeeper, BlobSource};
use crate::version::blob_counts::{BlobCount, BlobCounts, ByBlobFile};
use crate::version::blob_reach::{BlobStretches, Stretch};
use crate::version::{BlobFileAddition, FileChecksum, Identity};

/// Which values go to blob files, and how.
#[derive(Clone, Default)]
pub struct BlobOutputOptions {
    /// Values of so many bytes and more do; `None`: none.
    pub min_blob_size: Option<u64>,
    /// Values that are in blob files stay in blob files, where they are written anew, whatever their size.
    pub keep_apart: bool,
    /// Bytes at which a blob file ends and the next begins.
    pub blob_file_size: u64,
    /// How each file is built; its number is set for each file.
    pub file: BlobFileBuilderOptions,
    /// Tries to make a dictionary for the values, as these say; the codec is zstd. `None`: makes none.
    pub dictionary: Option<CompressionOptions>,
    /// Files whose values are written anew.
    pub relocate: Arc<HashSet<FileNo>>,
    /// Files whose values are written anew only to lie in key order.
    pub order: Arc<HashSet<FileNo>>,
    /// Reads these values.
    pub source: Option<Arc<dyn BlobSource>>,
    /// The last file goes on in the job's next run; the job ends it. `None`: it ends with the run.
    pub carry: Option<Arc<BlobCarry>>,
    /// When the thread that moves values takes breaks. `None`: never.
    pub breaks: Option<Breaks>,
    /// Is given the values that go to blob files. `None`: nobody is.
    pub keeper: Option<Arc<dyn BlobKeeper>>,
    /// Told how long values are that come to be apart. `None`: nobody is.
    pub statistics: Option<Arc<Statistics>>,
    /// Reserves the memory of files that are being written beside this cache, which gives way; `None`:
    /// nowhere.
    pub reserve_in: Option<Arc<BlockCache>>,
}

/// A blob file that goes on from one run of a job to the next.
#[derive(Default)]
pub struct BlobCarry {
    open: Mutex<Option<(FileNo, BlobFileBuilder)>>,
    /// Whether the job's files have a dictionary, once that was decided.
    dictionary: Mutex<Option<Option<Arc<[u8]>>>>,
}

impl BlobCarry {
    /// The file that waits for the next run, which is no output of any run yet.
    #[must_use]
    pub fn open_file(&self) -> Option<DataFile> {
        let open = self.open.lock();
        open.as_ref().map(|(number, _)| DataFile::blob(*number))
    }

    /// Ends the file that waits, if there is one. Gives its bytes too.
    ///
    /// # Errors
    /// Those of the file.
    pub fn finish(&self) -> Result<Option<(BlobFileAddition, u64)>> {
        let open = self.open.lock().take();
        open.map(|(number, builder)| end(number, builder))
            .transpose()
    }
}

/// The reservation follows the memory in steps of so many bytes.
const RESERVED_STEP: usize = 64 << 10;
/// Bounds of the write buffer where memory is reserved, and its part of the cache: as those of tables.
const WRITE_BUFFER_LEN_MIN: usize = 64 << 10;
const WRITE_BUFFER_LEN_MAX: usize = 1 << 20;
const WRITE_BUFFER_PART: usize = 64;

/// What was written beside the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct BlobsWritten {
    pub(super) additions: Vec<BlobFileAddition>,
    /// Bytes of the files.
    pub(super) bytes: u64,
    /// Pointers that came in and went on. Told once all have come.
    pub(super) kept: BlobCounts,
    /// Values that were taken out of their files, and their bytes as stored there.
    pub(super) relocated: BlobCount,
    /// The same, of those that were taken out only to lie in key order.
    pub(super) ordered: BlobCount,
    /// Values that came back into tables, and their bytes.
    pub(super) returned: BlobCount,
    /// Files that were begun with a dictionary.
    pub(super) dictionary_files: u64,
}

/// What is done with the values of a blob file.
#[derive(Clone, Copy)]
enum Fate {
    Stay,
    Move,
    /// Only so that they lie in key order.
    Order,
}

/// A blob file that pointers lead to. All that is noted of a pointer is here, so each costs one look.
struct Target {
    fate: Fate,
    /// Pointers that came in and went on.
    kept: BlobCount,
    /// Pointers of the table at hand.
    table: BlobCount,
    /// And where they stand, if there are any.
    stretch: Stretch,
}

/// The blob files that pointers lead to.
#[derive(Default)]
struct Targets {
    files: ByBlobFile<Target>,
    /// Pointers of the table at hand.
    pointers: u64,
}

impl Targets {
    /// What is done with the value; where it stays, the table gets the pointer as it is.
    #[inline]
    fn pass(&mut self, pointer: &BlobPointer, key_len: usize, options: &BlobOutputOptions) -> Fate {
        let at = self.pointers;
        let target = self.of(pointer.file, options);
        let fate = target.fate;
        if let Fate::Stay = fate {
            target.kept.add(pointer, key_len);
            target.point(pointer, key_len, at);
            self.pointers += 1;
        }
        fate
    }

    /// Counts a pointer that goes on as it came, whatever was to be done with its value.
    fn keep(&mut self, pointer: &BlobPointer, key_len: usize, options: &BlobOutputOptions) {
        self.of(pointer.file, options).kept.add(pointer, key_len);
        self.point(pointer, key_len, options);
    }

    /// Counts a pointer that the table gets.
    fn point(&mut self, pointer: &BlobPointer, key_len: usize, options: &BlobOutputOptions) {
        let at = self.pointers;
        self.of(pointer.file, options).point(pointer, key_len, at);
        self.pointers += 1;
    }

    #[inline]
    fn of(&mut self, file: FileNo, options: &BlobOutputOptions) -> &mut Target {
        self.files.entry(file).or_insert_with(|| Target {
            fate: options.fate_of(file),
            kept: BlobCount::default(),
            table: BlobCount::default(),
            stretch: Stretch { first: 0, last: 0 },
        })
    }

    fn kept(&self) -> BlobCounts {
        let kept = self.files.iter().map(|(&n, t)| (n, t.kept));
        kept.filter(|(_, count)| count.values > 0).collect()
    }

    /// What the table that ends points to, and where the pointers stand.
    fn end_table(&mut self) -> (BlobCounts, BlobStretches) {
        let pointers = std::mem::take(&mut self.pointers);
        let of_table = || self.files.iter().filter(|(_, t)| t.table.values > 0);
        let counts = of_table().map(|(&n, t)| (n, t.table)).collect();
        let stretches = of_table().map(|(&n, t)| (n, t.stretch)).collect();
        for target in self.files.values_mut() {
            target.table = BlobCount::default();
        }
        (counts, BlobStretches::new(pointers, stretches))
    }
}

impl Target {
    /// Counts a pointer of the table, before which it has `at` others.
    #[inline]
    fn point(&mut self, pointer: &BlobPointer, key_len: usize, at: u64) {
        if self.table.values == 0 {
            self.stretch.first = at;
        }
        self.stretch.last = at;
        self.table.add(pointer, key_len);
    }
}

impl BlobOutputOptions {
    fn fate_of(&self, file: FileNo) -> Fate {
        if self.relocate.contains(&file) {
            Fate::Move
        } else if self.order.contains(&file) {
            Fate::Order
        } else {
            Fate::Stay
        }
    }
}

/// Parts values from keys.
pub(super) struct BlobWriter {
    options: BlobOutputOptions,
    open: Option<(FileNo, BlobFileBuilder)>,
    /// What waits for a dictionary, until that is decided.
    samples: Option<Samples>,
    /// Of that file, if it was begun here.
    identity: Option<Identity>,
    /// Of the memory of that file.
    reservation: Option<Reservation<CachedBlock>>,
    written: BlobsWritten,
    targets: Targets,
    /// The values that the table at hand has itself have fewer bytes.
    inline_bound: usize,
    /// A value of more bytes stays in the table.
    value_size_max: usize,
    /// The entry at hand, where it is not as it came.
    key: Vec<u8>,
    pointer: Vec<u8>,
    fetched: Option<PinnedValue>,
    lengths: ValueLengths,
}

/// How long values are that come to be apart. Counted by the writer alone and told when it goes: two
/// halves of a flush would contend for a count that both use for each value.
struct ValueLengths {
    statistics: Option<Arc<Statistics>>,
    counted: Option<Histogram>,
}

impl ValueLengths {
    fn count(&mut self, len: usize) {
        if self.statistics.is_some() {
            self.counted
                .get_or_insert_with(Histogram::new)
                .record(len as u64);
        }
    }
}

impl Drop for ValueLengths {
    fn drop(&mut self) {
        if let (Some(statistics), Some(counted)) = (&self.statistics, &self.counted) {
            statistics
                .histogram(HistogramKind::BlobDbValueSize)
                .merge(counted);
        }
    }
}

impl BlobWriter {
    pub(super) fn new(mut options: BlobOutputOptions) -> Self {
        let open = options.carry.as_ref().and_then(|c| c.open.lock().take());
        let carry = options.carry.as_ref();
        let samples = match carry.and_then(|c| c.dictionary.lock().clone()) {
            Some(decided) => {
                // The codec may be another one by now.
                options.file.dictionary = decided.filter(|_| options.dictionary.is_some());
                None
            }
            None => options
                .dictionary
                .as_ref()
                .and_then(|o| Samples::new(o, options.reserve_in.as_ref())),
        };
        // A file that goes on has its memory reserved again from its next value on.
        let account = options.reserve_in.as_ref().filter(|_| open.is_some());
        Self {
            value_size_max: BlobFileBuilder::value_size_max(options.file.compression),
            open,
            samples,
            identity: None,
            reservation: account.map(|cache| Reservation::new(cache.clone())),
            lengths: ValueLengths {
                statistics: options.statistics.clone(),
                counted: None,
            },
            options,
            written: BlobsWritten::default(),
            targets: Targets::default(),
            inline_bound: 0,
            key: Vec::new(),
            pointer: Vec::new(),
            fetched: None,
        }
    }

    /// What the table gets for an entry.
    #[inline]
    pub(super) fn place<'e>(
        &'e mut self,
        key: &'e [u8],
        value: &'e [u8],
        new_file: &mut NewFile<'_>,
        created: &mut Vec<DataFile>,
    ) -> Result<(&'e [u8], &'e [u8])> {
        let kind = trailer(key) as u8;
        if kind == ValueKind::Value as u8 {
            if !self.is_large(value.len()) {
                self.inline_bound = self.inline_bound.max(value.len() + 1);
                return Ok((key, value));
            }
            self.lengths.count(value.len());
            self.put_apart(key, value, new_file, created)?;
            return Ok((&self.key, &self.pointer));
        }
        if kind == ValueKind::BlobIndex as u8 {
            return self.place_pointer(key, value, new_file, created);
        }
        Ok((key, value))
    }

    /// True if the entry waits here until it is known whether files have a dictionary.
    #[inline]
    pub(super) fn hold(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        match self.samples {
            None => Ok(false),
            Some(_) => self.hold_sample(key, value),
        }
    }

    fn hold_sample(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        let kind = trailer(key) as u8;
        let is_sample = kind == ValueKind::Value as u8 && self.is_large(value.len());
        let mut fetched = None;
        if kind == ValueKind::BlobIndex as u8
            && let Some(source) = self.options.source.clone()
        {
            let pointer = BlobPointer::decode(value)?;
            let from = &pointer.file;
            if self.options.relocate.contains(from) || self.options.order.contains(from) {
                fetched = source.value(&pointer, user_key(key))?;
                fetched = fetched.filter(|value| self.stays_apart(value.len()));
            }
        }
        let Some(samples) = &mut self.samples else {
            return Ok(false);
        };
        if samples.is_empty() && !is_sample && fetched.is_none() {
            return Ok(false);
        }
        samples.hold(key, value, is_sample, fetched)?;
        Ok(true)
    }

    /// True if nothing more need wait.
    pub(super) fn holds_enough(&self) -> bool {
        self.samples.as_ref().is_some_and(Samples::are_enough)
    }

    /// Decides about the dictionary, with what was held; `None` if nothing was. `is_all`: nothing follows.
    pub(super) fn decide(&mut self, is_all: bool) -> Result<Option<Decided>> {
        let Some(samples) = self.samples.take().filter(|s| !s.is_empty()) else {
            return Ok(None);
        };
        let decided = samples.decide(is_all && self.options.carry.is_none())?;
        self.options.file.dictionary.clone_from(&decided.dictionary);
        if let Some(carry) = &self.options.carry {
            *carry.dictionary.lock() = Some(decided.dictionary.clone());
        }
        Ok(Some(decided))
    }

    #[inline]
    fn is_large(&self, len: usize) -> bool {
        self.options
            .min_blob_size
            .is_some_and(|min| len as u64 >= min && len <= self.value_size_max)
    }

    /// The same of a value that comes from a blob file.
    fn stays_apart(&self, len: usize) -> bool {
        self.options.keep_apart && len <= self.value_size_max || self.is_large(len)
    }

    fn place_pointer<'e>(
        &'e mut self,
        key: &'e [u8],
        value: &'e [u8],
        new_file: &mut NewFile<'_>,
        created: &mut Vec<DataFile>,
    ) -> Result<(&'e [u8], &'e [u8])> {
        let pointer = BlobPointer::decode(value)?;
        let user = user_key(key);
        let only_for_order = match self.targets.pass(&pointer, user.len(), &self.options) {
            Fate::Stay => return Ok((key, value)),
            Fate::Move => false,
            Fate::Order => true,
        };
        let Some(source) = self.options.source.clone() else {
            return Err(Error::invalid_argument(
                "values of blob files cannot be read here",
            ));
        };
        // Where it is stored as it would be here it need not be taken out of its codec.
        let stays = pointer.codec == self.options.file.compression
            && self.options.file.dictionary.is_none()
            && usize::try_from(pointer.size).is_ok_and(|size| self.stays_apart(size));
        if stays {
            let Some((stored, from)) = source.stored(&pointer, user)? else {
                self.targets.keep(&pointer, user.len(), &self.options);
                return Ok((key, value));
            };
            if from.stores_as(self.options.file.compression) {
                let builder = self.builder(new_file, created)?;
                // A file that goes on may have been begun when the settings were others.
                if builder.takes_stored_of(&from) {
                    let moved = builder.add_stored(user, &stored, &from)?;
                    self.count_relocated(&pointer, only_for_order);
                    self.point_to(key, &moved)?;
                    return Ok((&self.key, &self.pointer));
                }
            }
        }
        let Some(fetched) = source.value(&pointer, user)? else {
            self.targets.keep(&pointer, user.len(), &self.options);
            return Ok((key, value));
        };
        self.count_relocated(&pointer, only_for_order);
        if self.stays_apart(fetched.len()) {
            self.put_apart(key, &fetched, new_file, created)?;
            return Ok((&self.key, &self.pointer));
        }
        self.take_key(key, ValueKind::Value);
        self.written.returned.values += 1;
        self.written.returned.bytes += fetched.len() as u64;
        self.inline_bound = self.inline_bound.max(fetched.len() + 1);
        let value = self.fetched.insert(fetched);
        Ok((&self.key, value))
    }

    fn count_relocated(&mut self, pointer: &BlobPointer, only_for_order: bool) {
        let written = &mut self.written;
        let count = if only_for_order {
            &mut written.ordered
        } else {
            &mut written.relocated
        };
        count.values += 1;
        count.bytes += pointer.size;
        if let Some(breaks) = &mut self.options.breaks {
            breaks.moved(pointer.size);
        }
    }

    fn take_key(&mut self, key: &[u8], kind: ValueKind) {
        self.key.clear();
        self.key.extend_from_slice(key);
        let at = key.len() - TRAILER_LEN;
        self.key[at] = kind as u8;
    }

    fn put_apart(
        &mut self,
        key: &[u8],
        value: &[u8],
        new_file: &mut NewFile<'_>,
        created: &mut Vec<DataFile>,
    ) -> Result<()> {
        let builder = self.builder(new_file, created)?;
        let pointer = builder.add(user_key(key), value)?;
        if let (Some(keeper), Some(identity)) = (&self.options.keeper, self.identity) {
            keeper.keep(identity, &pointer, value);
        }
        self.point_to(key, &pointer)
    }

    /// The file at hand, which is begun if there is none.
    fn builder(
        &mut self,
        new_file: &mut NewFile<'_>,
        created: &mut Vec<DataFile>,
    ) -> Result<&mut BlobFileBuilder> {
        let (_, builder) = match &mut self.open {
            Some(open) => open,
            none => {
                let (number, file) = new_file(DataFileKind::Blob)?;
                created.push(DataFile::blob(number));
                self.written.dictionary_files += u64::from(self.options.file.dictionary.is_some());
                self.identity = Some(Identity::default());
                let account = self.options.reserve_in.as_ref();
                let write_buffer_len = account.map_or(0, |cache| {
                    (cache.capacity() / WRITE_BUFFER_PART)
                        .clamp(WRITE_BUFFER_LEN_MIN, WRITE_BUFFER_LEN_MAX)
                });
                self.reservation = account.map(|cache| {
                    let mut reservation = Reservation::new(cache.clone());
                    reservation.set(2 * write_buffer_len);
                    reservation
                });
                let options = BlobFileBuilderOptions {
                    file_number: number,
                    write_buffer_len,
                    ..self.options.file.clone()
                };
                none.insert((number, BlobFileBuilder::new(file, options)?))
            }
        };
        Ok(builder)
    }

    /// Makes the entry at hand a pointer to what was added last, and ends the file if it is full.
    fn point_to(&mut self, key: &[u8], pointer: &BlobPointer) -> Result<()> {
        self.pointer.clear();
        pointer.encode(&mut self.pointer);
        self.targets
            .point(pointer, user_key(key).len(), &self.options);
        self.take_key(key, ValueKind::BlobIndex);
        let Some((_, builder)) = &self.open else {
            return Ok(());
        };
        if let Some(reservation) = &mut self.reservation {
            let (used, reserved) = (builder.memory_usage(), reservation.bytes());
            if used > reserved || used + 2 * RESERVED_STEP < reserved {
                reservation.set(used.next_multiple_of(RESERVED_STEP));
            }
        }
        if builder.file_size() >= self.options.blob_file_size {
            self.finish_file()?;
        }
        Ok(())
    }

    /// Counts an entry of the table at hand that was placed elsewhere.
    pub(super) fn note_placed(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let kind = trailer(key) as u8;
        if kind == ValueKind::Value as u8 {
            self.inline_bound = self.inline_bound.max(value.len() + 1);
        }
        if kind == ValueKind::BlobIndex as u8 {
            let pointer = BlobPointer::decode(value)?;
            self.targets
                .point(&pointer, user_key(key).len(), &self.options);
        }
        Ok(())
    }

    /// What the table that ends here points to, where the pointers stand, and what all values in the table
    /// itself have fewer bytes than.
    pub(super) fn end_table(&mut self) -> (BlobCounts, BlobStretches, usize) {
        let (counts, stretches) = self.targets.end_table();
        let inline_bound = std::mem::take(&mut self.inline_bound);
        (counts, stretches, inline_bound)
    }

    /// Ends the last file, unless it goes on in the next run.
    pub(super) fn finish(&mut self) -> Result<BlobsWritten> {
        match &self.options.carry {
            Some(carry) => {
                self.reservation = None;
                *carry.open.lock() = self.open.take();
            }
            None => self.finish_file()?,
        }
        self.written.kept = self.targets.kept();
        Ok(std::mem::take(&mut self.written))
    }

    fn finish_file(&mut self) -> Result<()> {
        let Some((number, builder)) = self.open.take() else {
            return Ok(());
        };
        let (mut addition, bytes) = end(number, builder)?;
        addition.identity = self.identity.take().unwrap_or_default();
        self.reservation = None;
        self.written.bytes += bytes;
        self.written.additions.push(addition);
        Ok(())
    }
}

/// Ends a file; gives its bytes too.
fn end(number: FileNo, builder: BlobFileBuilder) -> Result<(BlobFileAddition, u64)> {
    let summary = builder.finish()?;
    let checksum = summary.file_checksum.map(FileChecksum::of_crc32c);
    let (checksum_method, checksum_value) =
        checksum.map(|c| (c.func_name, c.value)).unwrap_or_default();
    let addition = BlobFileAddition {
        number,
        total_blob_count: summary.total_blob_count,
        total_blob_bytes: summary.total_blob_bytes,
        overhead_bytes: summary.overhead_bytes(),
        checksum_method,
        checksum_value,
        ..BlobFileAddition::default()
    };
    Ok((addition, summary.file_size))
}
