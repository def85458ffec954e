//! Several values at once, of one file or of several: those near each other with one read.
//!
//! What the operating system has in memory is read first; of the rest it is told before anybody
//! waits, so that the device works on all of it at the same time. `Hot path`.

use std::ops::Range;

use orogen_base::perf::PerfCounter;
use orogen_base::{ErrorKind, Result, memory};
use orogen_env::PerfTimer;

use super::{BlobFileReader, BlobValue, How, RAW, RAW_KEPT_MAX, RECORD};
use crate::meta::Extent;
use crate::pointer::BlobPointer;

/// One value of a [`BlobRead::read_many`].
pub struct BlobRead<'a> {
    /// The file.
    pub reader: &'a BlobFileReader,
    /// Where it is.
    pub pointer: BlobPointer,
    /// Whose it is.
    pub user_key: &'a [u8],
    /// What came of it; `None` before.
    pub outcome: Option<Result<BlobValue>>,
}

/// How records that stand near each other are read together.
#[derive(Clone, Copy, Debug)]
pub struct Coalesce {
    /// Bytes between two records that are read with them rather than apart.
    pub gap_max: u64,
    /// Bytes that are read at once; a record that is larger by itself is read alone.
    pub run_max: u64,
}

impl Default for Coalesce {
    fn default() -> Self {
        Self {
            gap_max: 4 << 10,
            run_max: 256 << 10,
        }
    }
}

/// A read whose pointer leads into its file: its record, and its place in the caller's list.
struct Wanted {
    extent: Extent,
    at: usize,
}

/// Whether a read may wait for the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Yes,
}

impl<'a> BlobRead<'a> {
    /// A value to be read.
    #[must_use]
    pub fn new(reader: &'a BlobFileReader, pointer: BlobPointer, user_key: &'a [u8]) -> Self {
        Self {
            reader,
            pointer,
            user_key,
            outcome: None,
        }
    }

    /// Reads all values, and gives each its outcome, as [`BlobFileReader::read`] would.
    ///
    /// They may come in any order. Values that were read together are copied apart, so that none
    /// keeps the others in memory.
    pub fn read_many(reads: &mut [Self], verify: bool, coalesce: Coalesce) {
        let mut wanted = Vec::with_capacity(reads.len());
        for (at, read) in reads.iter_mut().enumerate() {
            match read.reader.record_extent(read.pointer, read.user_key) {
                Ok(extent) => wanted.push(Wanted { extent, at }),
                Err(e) => read.outcome = Some(Err(e)),
            }
        }
        // Files by their places in memory: readers of one number need not be of one database.
        wanted.sort_unstable_by_key(|w| (std::ptr::from_ref(reads[w.at].reader), w.extent));
        let how = How::value(verify);
        let mut batch = Batch { reads, how };
        let mut waiting: Vec<&[Wanted]> = Vec::new();
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(batch.run_len(rest, coalesce));
            // A batch that reads once has nothing to do while it waits.
            let wait = match run.len() == wanted.len() {
                true => Wait::Yes,
                false => Wait::No,
            };
            if !batch.read_run(run, wait) {
                let span = span(run);
                let file = &batch.reader(run).file;
                file.prefetch(span.start, span.end - span.start);
                waiting.push(run);
            }
            rest = after;
        }
        for run in waiting {
            batch.read_run(run, Wait::Yes);
        }
    }
}

fn span(run: &[Wanted]) -> Range<u64> {
    let start = run[0].extent.offset;
    let end = run.iter().map(|w| w.extent.end()).max();
    start..end.unwrap_or(start)
}

struct Batch<'b, 'a> {
    reads: &'b mut [BlobRead<'a>],
    how: How,
}

impl<'a> Batch<'_, 'a> {
    fn reader(&self, run: &[Wanted]) -> &'a BlobFileReader {
        self.reads[run[0].at].reader
    }

    /// How many of the first records are read together.
    fn run_len(&self, wanted: &[Wanted], coalesce: Coalesce) -> usize {
        let reader = self.reader(wanted);
        let Range { start, mut end } = span(&wanted[..1]);
        let mut len = 1;
        for w in &wanted[1..] {
            let last = end.max(w.extent.end());
            let is_far = w.extent.offset > end.saturating_add(coalesce.gap_max)
                || last - start > coalesce.run_max;
            if is_far || !std::ptr::eq(reader, self.reads[w.at].reader) {
                break;
            }
            end = last;
            len += 1;
        }
        len
    }

    /// Reads a run and gives its values their outcomes; false if that would have had to wait.
    fn read_run(&mut self, run: &[Wanted], wait: Wait) -> bool {
        let reader = self.reader(run);
        if let ([only], Wait::Yes) = (run, wait) {
            self.read_alone(only);
            return true;
        }
        let span = span(run);
        let mut bytes = RAW.take();
        let read = match memory::resize(&mut bytes, (span.end - span.start) as usize, RECORD) {
            Err(e) => Err(e),
            Ok(()) => {
                let _timer = PerfTimer::start(PerfCounter::BlobReadTime);
                match wait {
                    Wait::Yes => reader.file.read_exact_at(span.start, &mut bytes).map(Some),
                    Wait::No => reader
                        .file
                        .read_at_without_waiting(span.start, &mut bytes)
                        .map(|n| n.filter(|&n| n == bytes.len()).map(|_| ())),
                }
            }
        };
        match read {
            Ok(None) => return false,
            Ok(Some(())) => {
                reader.count_read(span.end - span.start);
                for w in run {
                    let at = (w.extent.offset - span.start) as usize;
                    self.take(w, &bytes[at..at + w.extent.size as usize]);
                }
            }
            // Read one by one, each has its own outcome.
            Err(_) => run.iter().for_each(|w| self.read_alone(w)),
        }
        if bytes.capacity() <= RAW_KEPT_MAX {
            RAW.set(bytes);
        }
        true
    }

    fn read_alone(&mut self, w: &Wanted) {
        let read = &mut self.reads[w.at];
        let outcome = read.reader.read_extent(w.extent, read.user_key, self.how);
        read.outcome = Some(outcome);
    }

    /// Takes a value out of what was read.
    fn take(&mut self, w: &Wanted, record: &[u8]) {
        let read = &mut self.reads[w.at];
        let (reader, key, how) = (read.reader, read.user_key, self.how);
        let value = reader
            .check(record, w.extent, key, how.verify)
            .and_then(|start| reader.expand_value(&record[start..], w.extent, how));
        read.outcome = Some(match value {
            Err(e) if e.kind() == ErrorKind::Corruption => reader.read_again(w.extent, key, how),
            other => other,
        });
    }
}
