//! What was counted, as it is told: plain numbers that can be added up.

/// A number for each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerQueue {
    /// Of the append queue.
    pub append: u64,
    /// Of the rewrite queue.
    pub rewrite: u64,
}

impl PerQueue {
    fn add(&mut self, other: Self) {
        self.append += other.append;
        self.rewrite += other.rewrite;
    }
}

/// How many values lie in which bucket, at one moment. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub(super) bounds: &'static [f64],
    pub(super) counts: Vec<u64>,
    pub(super) small_sum: u64,
    pub(super) per_unit: f64,
}

impl Distribution {
    /// The upper bounds of the buckets, but for the last one, which has none. A value that is equal to a bound lies below it.
    #[must_use]
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// How many values lie in each bucket; there is one more than bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.small_sum as f64 / self.per_unit
    }

    /// Their mean, 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum() / self.count().max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        self.small_sum += other.small_sum;
    }
}

/// What an engine, or all of a process, has counted since it was opened, and what it has at this moment.
///
/// Times, and [`Self::read_entry_count`], of unsynced writes and of reads are those of one in [`SAMPLE_EVERY`](super::SAMPLE_EVERY) calls of a
/// thread, which count for all of them: their counts are near the number of calls. All else is exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Seconds of writes, from the call to its end. Sampled if unsynced.
    pub write_duration: Distribution,
    /// Seconds of a write until its group is written: its record is made, it waits for its turn. Sampled if unsynced.
    pub write_preprocess_duration: Distribution,
    /// Seconds in which a group of writes was written, synced and applied. Sampled if nobody of the group syncs.
    pub write_leader_duration: Distribution,
    /// Seconds in which memory was told of the group of a write. Sampled if unsynced.
    pub write_apply_duration: Distribution,
    /// Bytes of the records of batches.
    pub write_size: Distribution,
    /// Stored bytes of entries for each raw one, of batches that were compressed.
    pub write_compression_ratio: Distribution,
    /// Seconds in which room for bytes to come was made.
    pub allocate_log_duration: Distribution,
    /// Seconds of syncs of files of both queues.
    pub sync_log_duration: Distribution,
    /// Seconds in which a full file was ended and the next one made.
    pub rotate_log_duration: Distribution,
    /// Seconds of reads of entries. Sampled.
    pub read_entry_duration: Distribution,
    /// Entries that a read gave. Sampled.
    pub read_entry_count: Distribution,
    /// Seconds of reads of keys. Sampled.
    pub read_message_duration: Distribution,
    /// Seconds of purges, those that had nothing to do included.
    pub purge_duration: Distribution,
    /// Seconds in which a purge emptied old files of the append queue.
    pub rewrite_append_duration: Distribution,
    /// Seconds in which a purge wrote the rewrite queue anew.
    pub rewrite_rewrite_duration: Distribution,
    /// Bytes of the records that a purge made of what was in the append queue.
    pub background_append_bytes: Distribution,
    /// Bytes of the records that a purge made of what was in the rewrite queue.
    pub background_rewrite_bytes: Distribution,
    /// Files.
    pub log_file_count: PerQueue,
    /// Spare files.
    pub recycled_file_count: PerQueue,
    /// Entries and keys that live, by where they lie.
    pub log_entry_count: PerQueue,
    /// Always 0: memory is not swapped to files of our own.
    pub swap_file_count: u64,
    /// Bytes of memory for places of entries, for keys and values, and for groups. Those of the nodes and tables that hold them
    /// are estimated.
    pub memory_usage: u64,
    /// Groups of writes that were written together; a write alone is one, too, and a sync without a batch is none.
    pub write_groups: u64,
    /// Bytes of records that were appended.
    pub appended_bytes: PerQueue,
    /// Bytes of zeros that were written behind records for [`Options::record_alignment`](crate::raw::Options::record_alignment).
    pub padding_bytes: PerQueue,
    /// Syncs of files, those of headers not included.
    pub syncs: PerQueue,
    /// Files that were made, those that were written over included.
    pub files_made: PerQueue,
    /// Files of those that were made in the second directory.
    pub files_spilled: PerQueue,
    /// Files of both queues that lie in the second directory.
    pub spill_dir_file_count: u64,
    /// Groups of which entries are missing between others ([`fenced_groups`](crate::raw::Engine::fenced_groups)).
    pub groups_fenced: u64,
    /// First directories that stall, for which files are made in the second.
    pub dirs_stalled: u64,
    /// Times that one began to stall.
    pub dir_stalls: u64,
    /// Times that files went on to be made in it all the same, as none could be made in the second directory.
    pub dir_stalls_stayed: u64,
    /// Files that a purge deleted.
    pub files_deleted: PerQueue,
    /// Spare files that were taken to be written over.
    pub files_written_over: u64,
    /// Files that a purge emptied and kept as spare ones.
    pub files_spared: u64,
    /// Bytes of zeros that spare files were filled with before there were emptied ones.
    pub filled_bytes: u64,
    /// Purges that did nothing because another thread was at it.
    pub purge_skips_busy: u64,
    /// Purges that did nothing because neither queue was long enough, or had enough garbage.
    pub purge_skips_short: u64,
    /// Groups whose old entries or keys a purge moved; one counts for each purge.
    pub purge_groups_moved: u64,
    /// Groups that a purge returned to be compacted; one counts for each purge.
    pub purge_groups_returned: u64,
    /// Blocks of entries that reads found in the read cache. A read of entries that lie in one block looks for it once.
    pub read_cache_hits: u64,
    /// Blocks that they did not find there and had to read; 0 without a cache.
    pub read_cache_misses: u64,
    /// Bytes of memory that the read cache takes.
    pub read_cache_bytes: u64,
}

impl Metrics {
    /// Adds what another engine counted and has.
    pub fn add(&mut self, other: &Self) {
        self.add_counted(other);
        self.log_file_count.add(other.log_file_count);
        self.recycled_file_count.add(other.recycled_file_count);
        self.log_entry_count.add(other.log_entry_count);
        self.swap_file_count += other.swap_file_count;
        self.memory_usage += other.memory_usage;
        self.spill_dir_file_count += other.spill_dir_file_count;
        self.dirs_stalled += other.dirs_stalled;
        self.groups_fenced += other.groups_fenced;
        self.read_cache_bytes += other.read_cache_bytes;
    }

    /// Adds what another engine counted, and not what it has.
    pub(crate) fn add_counted(&mut self, other: &Self) {
        self.write_duration.add(&other.write_duration);
        self.write_preprocess_duration
            .add(&other.write_preprocess_duration);
        self.write_leader_duration.add(&other.write_leader_duration);
        self.write_apply_duration.add(&other.write_apply_duration);
        self.write_size.add(&other.write_size);
        self.write_compression_ratio
            .add(&other.write_compression_ratio);
        self.allocate_log_duration.add(&other.allocate_log_duration);
        self.sync_log_duration.add(&other.sync_log_duration);
        self.rotate_log_duration.add(&other.rotate_log_duration);
        self.read_entry_duration.add(&other.read_entry_duration);
        self.read_entry_count.add(&other.read_entry_count);
        self.read_message_duration.add(&other.read_message_duration);
        self.purge_duration.add(&other.purge_duration);
        self.rewrite_append_duration
            .add(&other.rewrite_append_duration);
        self.rewrite_rewrite_duration
            .add(&other.rewrite_rewrite_duration);
        self.background_append_bytes
            .add(&other.background_append_bytes);
        self.background_rewrite_bytes
            .add(&other.background_rewrite_bytes);
        self.write_groups += other.write_groups;
        self.appended_bytes.add(other.appended_bytes);
        self.padding_bytes.add(other.padding_bytes);
        self.syncs.add(other.syncs);
        self.files_made.add(other.files_made);
        self.files_spilled.add(other.files_spilled);
        self.dir_stalls += other.dir_stalls;
        self.dir_stalls_stayed += other.dir_stalls_stayed;
        self.files_deleted.add(other.files_deleted);
        self.files_written_over += other.files_written_over;
        self.files_spared += other.files_spared;
        self.filled_bytes += other.filled_bytes;
        self.purge_skips_busy += other.purge_skips_busy;
        self.purge_skips_short += other.purge_skips_short;
        self.purge_groups_moved += other.purge_groups_moved;
        self.purge_groups_returned += other.purge_groups_returned;
        self.read_cache_hits += other.read_cache_hits;
        self.read_cache_misses += other.read_cache_misses;
    }
}
