use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::key::{
    InternalKeyComparator, ParsedInternalKey, append_internal_key, pack, user_key,
};
use orogen_base::range_del::{Fragment, FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, InternalIterator, SeqNo, UserComparator, ValueKind};
use orogen_env::{Access, FileSystem, MemFileSystem};
use orogen_sst::{TableReadOptions, TableReader, TableReaderOptions};

use super::{NewFile, OutputOptions, OutputWriter};
use crate::filename::DataFile;
use crate::version::level::is_exclusive_end;
use crate::version::{FileMeta, Version, VersionBuilder, VersionEdit};

/// Tables in memory, made and read back.
pub(crate) struct Tables {
    fs: MemFileSystem,
    next: AtomicU64,
}

pub(crate) type Points = Vec<(Vec<u8>, Vec<u8>)>;

impl Tables {
    pub(crate) fn new() -> Self {
        Self {
            fs: MemFileSystem::new(),
            next: AtomicU64::new(1),
        }
    }

    fn path(number: u64) -> PathBuf {
        PathBuf::from(format!("/{number:06}.sst"))
    }

    pub(crate) fn maker(&self) -> NewFile<'_> {
        Box::new(|kind| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = DataFile { number, kind }.path(Path::new("/"));
            Ok((number, self.fs.create(&path)?))
        })
    }

    /// The entries and range tombstones of a table.
    pub(crate) fn read(&self, meta: &FileMeta) -> (Points, Arc<FragmentedRangeTombstones>) {
        let file = self
            .fs
            .open(&Self::path(meta.number), Access::Random)
            .unwrap();
        assert_eq!(file.size().unwrap(), meta.size);
        let options = TableReaderOptions {
            file_number: meta.number,
            tail_size: meta.tail_size,
            ..TableReaderOptions::default()
        };
        let reader = TableReader::open(file, meta.size, options).unwrap();
        let properties = reader.properties();
        let mut points = Vec::new();
        let mut iter = reader.iter(TableReadOptions::default());
        iter.seek_to_first();
        while iter.valid() {
            points.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        iter.status().unwrap();
        let tombstones = reader.range_tombstones();
        let entries = points.len() + tombstones.iter().count();
        assert_eq!(properties.num_entries, entries as u64);
        assert!(entries > 0, "no table is empty");
        (points, tombstones)
    }
}

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (self.0 >> 33) as usize % n
    }
}

fn internal(key: &[u8], seqno: SeqNo, kind: ValueKind) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(&mut out, key, seqno, kind);
    out
}

fn file(number: u64, smallest: &str, largest: &str, size: u64) -> Arc<FileMeta> {
    Arc::new(FileMeta {
        number,
        size,
        smallest: internal(smallest.as_bytes(), 1, ValueKind::Value),
        largest: internal(largest.as_bytes(), 1, ValueKind::Value),
        ..FileMeta::default()
    })
}

fn options(target: u64) -> OutputOptions {
    let mut options = OutputOptions {
        output_level: 1,
        target_file_size: target,
        max_file_size: target,
        max_compaction_bytes: target.saturating_mul(25),
        epoch_number: 7,
        ..OutputOptions::default()
    };
    options.table.table.block_size = 100;
    options.table.creation_time = 11;
    options.table.file_creation_time = 12;
    options
}

fn fragments(tombstones: &[RangeTombstone]) -> Vec<Fragment> {
    FragmentedRangeTombstones::new(&UserComparator::BYTEWISE, tombstones.to_vec())
        .fragments()
        .to_vec()
}

/// Writes entries within bounds; checks every file's metadata against its content, and that the
/// files make a level.
fn write(
    tables: &Tables,
    options: OutputOptions,
    points: &Points,
    tombstones: &[RangeTombstone],
    bounds: (Option<Vec<u8>>, Option<Vec<u8>>),
) -> Vec<FileMeta> {
    let mut writer = OutputWriter::new(options, fragments(tombstones), bounds, tables.maker());
    for (key, value) in points {
        writer.add(key, value).unwrap();
    }
    let written = writer.finish().unwrap();
    assert_eq!(writer.into_created(), written.created());
    let files = written.files;
    let icmp = InternalKeyComparator::default();
    let mut edit = VersionEdit::default();
    for f in &files {
        edit.add_file(1, Arc::new(f.clone()));
        let (points, tombstones) = tables.read(f);
        let mut keys: Vec<Vec<u8>> = points.iter().map(|(k, _)| k.clone()).collect();
        let mut seqnos: Vec<SeqNo> = keys.iter().map(|k| orogen_base::key::seqno_of(k)).collect();
        for (start, end, seqno) in tombstones.iter() {
            assert!(f.smallest_user_key() <= start && end <= f.largest_user_key());
            keys.push(internal(start, seqno, ValueKind::RangeDeletion));
            keys.push(internal(end, SEQNO_MAX, ValueKind::RangeDeletion));
            seqnos.push(seqno);
        }
        keys.sort_by(|a, b| icmp.compare(a, b));
        assert_eq!((&f.smallest, &f.largest), (&keys[0], &keys[keys.len() - 1]));
        assert_eq!(f.smallest_seqno, *seqnos.iter().min().unwrap());
        assert_eq!(f.largest_seqno, *seqnos.iter().max().unwrap());
        assert_eq!(
            (f.epoch_number, f.oldest_ancester_time, f.file_creation_time),
            (7, 11, 12)
        );
    }
    let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp, 2)));
    builder.apply(&edit).unwrap();
    builder.build().expect("the files make a sorted run");
    files
}

#[test]
fn files_part_keys_and_cover_what_the_tombstones_covered() {
    let mut rng = Rng(1);
    for round in 0..300 {
        let key = |n: usize| format!("{n:03}").into_bytes();
        let mut entries: BTreeSet<(Vec<u8>, std::cmp::Reverse<SeqNo>)> = BTreeSet::new();
        let keys = 1 + rng.below(200);
        for _ in 0..rng.below(150) {
            let user = key(rng.below(keys));
            entries.insert((user, std::cmp::Reverse(1 + rng.below(50) as u64)));
        }
        let tombstones: Vec<RangeTombstone> = (0..rng.below(12))
            .map(|_| RangeTombstone {
                start: key(rng.below(keys + 5)),
                end: key(rng.below(keys + 5)),
                seqno: 1 + rng.below(50) as u64,
            })
            .collect();
        let (start, end) = match rng.below(4) {
            0 => (Some(key(rng.below(keys))), None),
            1 => (None, Some(key(rng.below(keys)))),
            2 => {
                let (a, b) = (rng.below(keys), rng.below(keys));
                (Some(key(a.min(b))), Some(key(a.max(b) + 1)))
            }
            _ => (None, None),
        };
        let inside = |k: &[u8]| {
            start.as_ref().is_none_or(|s| k >= s.as_slice())
                && end.as_ref().is_none_or(|e| k < e.as_slice())
        };
        let points: Points = entries
            .iter()
            .filter(|(k, _)| inside(k))
            .map(|(k, s)| {
                (
                    internal(k, s.0, ValueKind::Value),
                    vec![b'v'; rng.below(30)],
                )
            })
            .collect();
        let mut options = options(300 + rng.below(3000) as u64);
        options.max_file_size = options.target_file_size * (1 + rng.below(2) as u64);
        options.max_compaction_bytes = 1000 + rng.below(10_000) as u64;
        let mut at = 0;
        for number in 0..rng.below(8) {
            let smallest = at + rng.below(40);
            at = smallest + rng.below(40);
            let (a, b) = (format!("{smallest:03}"), format!("{at:03}"));
            options
                .grandparents
                .push(file(number as u64, &a, &b, rng.below(3000) as u64));
            at += rng.below(2);
        }
        let tables = Tables::new();
        let files = write(
            &tables,
            options,
            &points,
            &tombstones,
            (start.clone(), end.clone()),
        );

        let read: Vec<_> = files.iter().map(|f| tables.read(f)).collect();
        let all: Points = read.iter().flat_map(|(p, _)| p.clone()).collect();
        assert_eq!(all, points, "round {round}");
        for pair in read.windows(2) {
            if let (Some(a), Some(b)) = (pair[0].0.last(), pair[1].0.first()) {
                assert_ne!(
                    user_key(&a.0),
                    user_key(&b.0),
                    "versions of a key stay together"
                );
            }
        }
        // Which tombstones cover which key, and in which single file.
        for n in 0..2 * (keys + 6) {
            let mut k = key(n / 2);
            if n % 2 == 1 {
                k.push(b'x');
            }
            let mut want: Vec<SeqNo> = tombstones
                .iter()
                .filter(|t| inside(&k) && t.start <= k && k < t.end)
                .map(|t| t.seqno)
                .collect();
            want.sort_unstable_by(|a, b| b.cmp(a));
            want.dedup();
            let order = UserComparator::BYTEWISE;
            let got: Vec<Vec<SeqNo>> = read
                .iter()
                .filter_map(|(_, t)| t.covering(&order, &k).map(|f| f.seqnos.clone()))
                .collect();
            if want.is_empty() {
                assert!(got.is_empty(), "round {round} key {}", k.escape_ascii());
            } else {
                assert_eq!(got, [want], "round {round} key {}", k.escape_ascii());
            }
            // A point and its range tombstones are in the same file.
            for (f, (p, _)) in files.iter().zip(&read) {
                let here = f.smallest_user_key() <= k.as_slice()
                    && (k.as_slice() < f.largest_user_key()
                        || (k == f.largest_user_key() && !is_exclusive_end(&f.largest)));
                assert!(here || p.iter().all(|(key, _)| user_key(key) != k));
            }
        }
    }
}

#[test]
fn files_are_cut_at_their_size_but_never_inside_a_user_key() {
    let tables = Tables::new();
    let points: Points = (0..400)
        .map(|i| {
            (
                internal(format!("{i:04}").as_bytes(), 5, ValueKind::Value),
                vec![b'v'; 50],
            )
        })
        .collect();
    let files = write(&tables, options(5000), &points, &[], (None, None));
    assert!((4..8).contains(&files.len()), "{}", files.len());
    for f in &files[..files.len() - 1] {
        assert!(f.size >= 4000 && f.size < 7000, "{}", f.size);
    }
    let versions: Points = (0..400)
        .rev()
        .map(|s| (internal(b"k", s + 1, ValueKind::Value), vec![b'v'; 50]))
        .collect();
    assert_eq!(
        write(&tables, options(500), &versions, &[], (None, None)).len(),
        1
    );
    let mut level0 = options(500);
    level0.output_level = 0;
    assert_eq!(
        write(&tables, level0, &points, &[], (None, None)).len(),
        1,
        "level 0 is not cut"
    );
}

#[test]
fn a_file_may_hold_range_tombstones_only() {
    let tables = Tables::new();
    let tombstone = RangeTombstone {
        start: b"b".to_vec(),
        end: b"m".to_vec(),
        seqno: 9,
    };
    let bounds = [(None, Some(b"f".to_vec())), (Some(b"f".to_vec()), None)];
    let mut ends = Vec::new();
    for b in bounds {
        for f in write(
            &tables,
            options(500),
            &Points::new(),
            std::slice::from_ref(&tombstone),
            b,
        ) {
            ends.push((f.smallest.clone(), f.largest.clone()));
        }
    }
    let exclusive = |k: &[u8]| internal(k, SEQNO_MAX, ValueKind::RangeDeletion);
    assert_eq!(
        ends,
        [
            (internal(b"b", 9, ValueKind::RangeDeletion), exclusive(b"f")),
            (internal(b"f", 9, ValueKind::RangeDeletion), exclusive(b"m")),
        ]
    );
    let last = ParsedInternalKey::parse(&ends[0].1).unwrap();
    assert_eq!(
        pack(last.seqno, last.kind),
        pack(SEQNO_MAX, ValueKind::RangeDeletion)
    );
    let nothing = write(&tables, options(500), &Points::new(), &[], (None, None));
    assert!(nothing.is_empty(), "no entries, no file");
    let outside = (Some(b"x".to_vec()), None);
    assert!(write(&tables, options(500), &Points::new(), &[tombstone], outside).is_empty());
}

/// Which user keys go together.
fn cuts(options: OutputOptions, keys: &[&str], value_len: usize) -> String {
    let tables = Tables::new();
    let points: Points = keys
        .iter()
        .map(|k| {
            (
                internal(k.as_bytes(), 5, ValueKind::Value),
                vec![b'v'; value_len],
            )
        })
        .collect();
    let files = write(&tables, options, &points, &[], (None, None));
    let text: Vec<String> = files
        .iter()
        .map(|f| {
            let (points, _) = tables.read(f);
            let keys: Vec<_> = points
                .iter()
                .map(|(k, _)| user_key(k).escape_ascii().to_string())
                .collect();
            keys.join(" ")
        })
        .collect();
    text.join(" | ")
}

#[test]
fn files_end_where_that_spares_the_next_compaction_files_below() {
    let with = |max_compaction_bytes, sizes: [u64; 3]| OutputOptions {
        max_compaction_bytes,
        grandparents: vec![
            file(1, "02", "04", sizes[0]),
            file(2, "11", "15", sizes[1]),
            file(3, "22", "24", sizes[2]),
            file(4, "32", "34", 10),
        ],
        ..options(8000)
    };
    // The file in the middle would be dragged along for nothing.
    assert_eq!(
        cuts(with(1 << 30, [2000; 3]), &["01", "03", "21", "23"], 1),
        "01 03 | 21 23"
    );
    assert_eq!(
        cuts(with(1 << 30, [500; 3]), &["01", "03", "21", "23"], 1),
        "01 03 21 23"
    );
    // Too much below.
    assert_eq!(
        cuts(with(3500, [1500; 3]), &["03", "12", "23", "33"], 1),
        "03 12 | 23 33"
    );
    // Half full at a border.
    assert_eq!(
        cuts(with(1 << 30, [10; 3]), &["03", "05", "12", "13"], 2500),
        "03 05 | 12 13"
    );
    assert_eq!(
        cuts(with(1 << 30, [10; 3]), &["03", "05", "06", "07"], 2000),
        "03 05 06 07"
    );
}

#[test]
fn a_failed_writer_names_every_file_it_made() {
    let tables = Tables::new();
    let mut make = tables.maker();
    let mut count = 0;
    let failing: NewFile<'_> = Box::new(move |kind| {
        count += 1;
        if count > 2 {
            Err(Error::aborted("enough"))
        } else {
            make(kind)
        }
    });
    let mut writer = OutputWriter::new(options(500), Vec::new(), (None, None), failing);
    let result = (0..200).try_for_each(|i| {
        writer.add(
            &internal(format!("{i:04}").as_bytes(), 5, ValueKind::Value),
            &[b'v'; 50],
        )
    });
    assert!(result.is_err());
    assert_eq!(writer.into_created(), [1, 2].map(DataFile::table));
}

#[test]
fn range_tombstones_tell_what_they_delete_below() {
    let tables = Tables::new();
    let mut options = options(5000);
    options.grandparents = vec![
        file(1, "b", "d", 100),
        file(2, "e", "g", 40),
        file(3, "x", "y", 1000),
    ];
    let tombstone = RangeTombstone {
        start: b"a".to_vec(),
        end: b"f".to_vec(),
        seqno: 9,
    };
    let files = write(&tables, options, &Points::new(), &[tombstone], (None, None));
    assert_eq!(files[0].compensated_range_deletion_size, 120);
}
