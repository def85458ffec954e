pub(crate) mod lsm;
mod skips;

use orogen_base::sync::atomic::AtomicBool;
use std::sync::Arc;

use orogen_base::key::{append_internal_key, user_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{
    Error, ErrorKind, InternalIterator, ParsedInternalKey, PinnedValue, Result, SeqNo,
    UserComparator, ValueKind,
};
use orogen_blob::{BlobFileReader, BlobPointer};
use orogen_sst::CompressionType;

use super::{CompactionIter, CompactionIterOptions, surviving_tombstones};
use crate::plugin::compaction_filter::{CompactionFilter, FilterDecision};
use crate::plugin::merge_operator::StringAppend;
use crate::read::BlobSource;
use crate::version::blob_counts::BlobCount;

/// A cursor over sorted entries in memory.
pub(crate) struct VecIter {
    pub(crate) entries: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) at: usize,
}

impl InternalIterator for VecIter {
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }
    fn seek_to_first(&mut self) {
        self.at = 0;
    }
    fn seek_to_last(&mut self) {
        self.at = self.entries.len().wrapping_sub(1);
    }
    fn seek(&mut self, target: &[u8]) {
        let order = orogen_base::key::InternalKeyComparator::default();
        self.at = self
            .entries
            .partition_point(|(k, _)| order.compare(k, target).is_lt());
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        self.seek(target);
        self.at = self.at.wrapping_sub(1);
    }
    fn next(&mut self) {
        self.at += 1;
    }
    fn prev(&mut self) {
        self.at = self.at.wrapping_sub(1);
    }
    fn key(&self) -> &[u8] {
        &self.entries[self.at].0
    }
    fn value(&self) -> &[u8] {
        &self.entries[self.at].1
    }
    fn status(&self) -> Result<()> {
        Ok(())
    }
}

fn internal(key: &[u8], seqno: SeqNo, kind: ValueKind) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(&mut out, key, seqno, kind);
    out
}

/// `a@5=x` a value, `a@5+x` an operand, `a@5-` a tombstone, `a@5~` a single delete,
/// `a@5*7` a pointer into blob file 7.
fn parse_entries(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    text.split_whitespace()
        .map(|word| {
            let (key, rest) = word.split_once('@').unwrap();
            let at = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
            let kind = match rest.as_bytes()[at] {
                b'=' => ValueKind::Value,
                b'+' => ValueKind::Merge,
                b'-' => ValueKind::Deletion,
                b'~' => ValueKind::SingleDeletion,
                b'*' => ValueKind::BlobIndex,
                b'!' => ValueKind::RangeDeletion,
                other => panic!("{other}"),
            };
            let seqno = rest[..at].parse().unwrap();
            let mut value = rest.as_bytes()[at + 1..].to_vec();
            if kind == ValueKind::BlobIndex
                && let Ok(file) = rest[at + 1..].parse()
            {
                value.clear();
                pointer_into(file).encode(&mut value);
            }
            (internal(key.as_bytes(), seqno, kind), value)
        })
        .collect()
}

fn format_entry(key: &[u8], value: &[u8]) -> String {
    let k = ParsedInternalKey::parse(key).unwrap();
    let sign = match k.kind {
        ValueKind::Value => '=',
        ValueKind::Merge => '+',
        ValueKind::Deletion => '-',
        ValueKind::SingleDeletion => '~',
        ValueKind::BlobIndex => '*',
        ValueKind::RangeDeletion => '!',
    };
    if let (ValueKind::BlobIndex, Ok(pointer)) = (k.kind, BlobPointer::decode(value)) {
        let key = k.user_key.escape_ascii();
        return format!("{key}@{}{sign}{}", k.seqno, pointer.file);
    }
    format!(
        "{}@{}{sign}{}",
        k.user_key.escape_ascii(),
        k.seqno,
        value.escape_ascii()
    )
}

fn pointer_into(file: u64) -> BlobPointer {
    BlobPointer {
        file,
        offset: 100,
        size: 10,
        codec: CompressionType::None,
    }
}

/// Blob files whose values are `fileN`; those from 100 on cannot be read, from 200 on they are
/// damaged.
struct Blobs;

impl BlobSource for Blobs {
    fn value(&self, pointer: &BlobPointer, _: &[u8]) -> Result<Option<PinnedValue>> {
        match pointer.file {
            0..100 => Ok(Some(format!("file{}", pointer.file).into_bytes().into())),
            100..200 => Err(Error::not_supported("blob file cannot be read")),
            _ => Ok(None),
        }
    }

    fn stored(
        &self,
        _: &BlobPointer,
        _: &[u8],
    ) -> Result<Option<(PinnedValue, Arc<BlobFileReader>)>> {
        Err(Error::not_supported("there are no files"))
    }
}

fn with_blobs(options: CompactionIterOptions) -> CompactionIterOptions {
    CompactionIterOptions {
        blobs: Some(Arc::new(Blobs)),
        ..options
    }
}

/// `[a,c)@5`, separated by spaces.
fn parse_tombstones(text: &str) -> Arc<FragmentedRangeTombstones> {
    let all = text
        .split_whitespace()
        .map(|word| {
            let (range, seqno) = word.split_once('@').unwrap();
            let (start, end) = range[1..range.len() - 1].split_once(',').unwrap();
            RangeTombstone {
                start: start.as_bytes().to_vec(),
                end: end.as_bytes().to_vec(),
                seqno: seqno.parse().unwrap(),
            }
        })
        .collect();
    Arc::new(FragmentedRangeTombstones::new(
        &UserComparator::BYTEWISE,
        all,
    ))
}

fn options(snapshots: &[SeqNo]) -> CompactionIterOptions {
    CompactionIterOptions::for_flush(
        UserComparator::BYTEWISE,
        snapshots.to_vec(),
        Some(Arc::new(StringAppend::default())),
    )
}

fn bottommost(snapshots: &[SeqNo]) -> CompactionIterOptions {
    CompactionIterOptions {
        bottommost: true,
        ..options(snapshots)
    }
}

fn run_all(entries: &str, tombstones: &str, options: CompactionIterOptions) -> Result<String> {
    let input = VecIter {
        entries: parse_entries(entries),
        at: 0,
    };
    let mut iter = CompactionIter::new(input, parse_tombstones(tombstones), options);
    let mut out = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        out.push(format_entry(iter.key(), iter.value()));
        iter.next();
    }
    iter.status()?;
    assert_eq!(iter.stats().output_records, out.len() as u64);
    Ok(out.join(" "))
}

fn run(entries: &str, tombstones: &str, options: CompactionIterOptions) -> String {
    run_all(entries, tombstones, options).unwrap()
}

#[test]
fn the_newest_version_of_each_stripe_stays() {
    let history = "a@9=9 a@7=7 a@5=5 a@3- a@2=2 b@8- b@1=1";
    assert_eq!(run(history, "", options(&[])), "a@9=9 b@8-");
    assert_eq!(run(history, "", options(&[4])), "a@9=9 a@3- b@8- b@1=1");
    assert_eq!(
        run(history, "", options(&[2, 5, 7])),
        "a@9=9 a@7=7 a@5=5 a@2=2 b@8- b@1=1"
    );
}

#[test]
fn tombstones_go_where_nothing_is_below() {
    let history = "a@9=9 a@3- b@8- b@1=1 c@4- d@9- d@6=6";
    assert_eq!(run(history, "", bottommost(&[])), "a@0=9");
    // Kept above a snapshot only while it hides something.
    assert_eq!(
        run(history, "", bottommost(&[7])),
        "a@9=9 b@8- b@0=1 d@9- d@0=6"
    );
    let only_c = CompactionIterOptions {
        key_not_exists_beyond_output_level: Some(Box::new(|k| k == b"c")),
        ..options(&[])
    };
    assert_eq!(run(history, "", only_c), "a@9=9 b@8- d@9-");
}

#[test]
fn sequence_numbers_become_zero_only_where_every_reader_sees_the_value() {
    assert_eq!(
        run("a@9=9 a@7=7 b@5+x c@4=4", "", bottommost(&[7])),
        "a@9=9 a@0=7 b@0=x c@0=4"
    );
    assert_eq!(run("a@9=9", "", options(&[])), "a@9=9");
}

#[test]
fn a_single_delete_goes_with_its_value() {
    assert_eq!(run("a@5~ a@3=3 b@2=2", "", options(&[])), "b@2=2");
    assert_eq!(run("a@5~ b@2=2", "", options(&[])), "a@5~ b@2=2");
    assert_eq!(run("a@5~ b@2=2", "", bottommost(&[])), "b@0=2");
    // A snapshot between them keeps both.
    assert_eq!(run("a@5~ a@3=3", "", options(&[4])), "a@5~ a@3=3");
    assert_eq!(run("a@5~ a@3=3", "", bottommost(&[4])), "a@5~ a@0=3");
    // One that is newer or older does not.
    assert_eq!(run("a@5~ a@3=3", "", options(&[6])), "");
    assert_eq!(run("a@5~ a@3=3", "", options(&[2])), "");
}

#[test]
fn a_single_delete_outlives_a_newer_value_of_its_stripe() {
    assert_eq!(run("a@9=9 a@5~", "", options(&[])), "a@9=9 a@5~");
    assert_eq!(run("a@9=9 a@5~ a@3=3", "", options(&[])), "a@9=9");
    assert_eq!(run("a@9=9 a@5~", "", bottommost(&[])), "a@0=9");
}

#[test]
fn a_conflict_check_keeps_the_trace_of_a_single_delete() {
    let checked = |at: SeqNo| CompactionIterOptions {
        earliest_write_conflict_snapshot: at,
        ..options(&[2])
    };
    assert_eq!(run("a@5~ a@3=3", "", checked(2)), "a@5~ a@3=");
    assert_eq!(run("a@5~ a@3=3", "", checked(SEQNO_MAX)), "");
    assert_eq!(run("a@9=9 a@5~ a@3=3", "", checked(2)), "a@9=9");
}

#[test]
fn mixed_single_deletes_do_not_bring_values_back() {
    assert_eq!(run("a@5~ a@4~ a@3=3", "", options(&[])), "");
    assert_eq!(run("a@5~ a@4- a@3=3", "", options(&[])), "a@4-");
    assert_eq!(run("a@5~ a@4+x", "", options(&[])), "a@5-");
}

#[test]
fn operands_fold_within_their_stripe() {
    let history = "a@9+9 a@8+8 a@6+6 a@5+5 a@3=3 a@2+2";
    assert_eq!(run(history, "", options(&[])), "a@9=3,5,6,8,9");
    assert_eq!(run(history, "", options(&[6])), "a@9+8,9 a@6=3,5,6");
    assert_eq!(run(history, "", bottommost(&[5])), "a@9+6,8,9 a@0=3,5");
    assert_eq!(run("a@9+9 a@8+8 b@1=1", "", options(&[])), "a@9+8,9 b@1=1");
    assert_eq!(
        run("a@9+9 a@8+8 b@1=1", "", bottommost(&[])),
        "a@0=8,9 b@0=1"
    );
    assert_eq!(run("a@9+9 a@8- a@7=7", "", options(&[])), "a@9=9");
    assert_eq!(run("a@9+9 a@7=7", "[a,b)@8", options(&[])), "a@9=9");
    // The tombstone is of another stripe: it says nothing to readers at 7.
    assert_eq!(run("a@7+7 a@6+6", "[a,b)@8", options(&[7])), "a@7+6,7");
}

#[test]
fn range_tombstones_hide_per_stripe() {
    let history = "a@9=9 a@4=4 a@2=2 c@5=5 d@3=3";
    assert_eq!(run(history, "[a,d)@6", options(&[])), "a@9=9 d@3=3");
    assert_eq!(run(history, "[a,d)@6", options(&[4])), "a@9=9 a@4=4 d@3=3");
    assert_eq!(
        run(history, "[a,d)@6 [a,b)@3", options(&[3])),
        "a@9=9 d@3=3"
    );
    // The same number: the point was written with the tombstone and is not older.
    assert_eq!(run("a@6=6", "[a,b)@6", options(&[])), "a@6=6");
}

#[test]
fn one_range_tombstone_a_stripe_survives() {
    let shape = |rules: CompactionIterOptions| -> (String, u64) {
        let all = parse_tombstones("[a,e)@9 [b,d)@7 [c,f)@3");
        let (kept, dropped) = surviving_tombstones(&all, &rules);
        let text: Vec<String> = kept
            .iter()
            .map(|f| {
                let (s, e) = (f.start.escape_ascii(), f.end.escape_ascii());
                format!("[{s},{e}){:?}", f.seqnos)
            })
            .collect();
        (text.join(" "), dropped)
    };
    assert_eq!(shape(options(&[])), ("[a,e)[9] [e,f)[3]".to_owned(), 4));
    assert_eq!(shape(bottommost(&[])), (String::new(), 9));
    assert_eq!(shape(bottommost(&[8])), ("[a,e)[9]".to_owned(), 5));
    assert_eq!(
        shape(options(&[3, 8])).0,
        "[a,b)[9] [b,c)[9, 7] [c,d)[9, 7, 3] [d,e)[9, 3] [e,f)[3]"
    );
    let nothing_from_d = |snapshots: &[SeqNo]| CompactionIterOptions {
        range_not_exists_beyond_output_level: Some(Box::new(|start, _| start >= b"d".as_slice())),
        ..options(snapshots)
    };
    assert_eq!(shape(nothing_from_d(&[])), ("[a,d)[9]".to_owned(), 6));
    assert_eq!(
        shape(nothing_from_d(&[3])).0,
        "[a,c)[9] [c,d)[9, 3] [d,e)[9]"
    );
}

#[test]
fn only_the_range_of_the_job_is_read() {
    let bounded = |start: &str, end: &str| CompactionIterOptions {
        start: (!start.is_empty()).then(|| start.as_bytes().to_vec()),
        end: (!end.is_empty()).then(|| end.as_bytes().to_vec()),
        ..options(&[])
    };
    let history = "a@1=a b@3=b b@2=x c@1=c d@1=d";
    assert_eq!(run(history, "", bounded("b", "d")), "b@3=b c@1=c");
    assert_eq!(run(history, "", bounded("", "b")), "a@1=a");
    assert_eq!(run(history, "", bounded("bb", "")), "c@1=c d@1=d");
}

struct DropX;

impl CompactionFilter for DropX {
    fn filter(&mut self, level: usize, key: &[u8], value: &[u8]) -> FilterDecision {
        assert_eq!(level, 3);
        match value {
            b"x" => FilterDecision::Remove,
            b"y" => FilterDecision::ChangeValue(key.to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

/// Of operands alone: `x` goes, `y` becomes the key, `>d` skips to `d`.
struct OfOperands;

impl CompactionFilter for OfOperands {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        assert_ne!(value, b"x", "values under operands are not shown");
        FilterDecision::Keep
    }

    fn filter_merge_operand(&mut self, level: usize, key: &[u8], operand: &[u8]) -> FilterDecision {
        assert_eq!(level, 3);
        match operand.split_first() {
            Some((b'x', _)) => FilterDecision::Remove,
            Some((b'y', _)) => FilterDecision::ChangeValue(key.to_vec()),
            Some((b'>', until)) => FilterDecision::RemoveAndSkipUntil(until.to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

#[test]
fn filters_see_operands_before_they_are_folded() {
    let filtered = |snapshots: &[SeqNo], bottom: bool| CompactionIterOptions {
        filter: Some((Box::new(OfOperands), 3)),
        bottommost: bottom,
        ..options(snapshots)
    };
    let folded = "a@9+x a@8+8 a@7+y a@6=6";
    assert_eq!(run(folded, "", filtered(&[], false)), "a@8=6,a,8");
    // The snapshot reads the older one.
    assert_eq!(
        run("a@9+x a@8+8 a@7+x a@6=6", "", filtered(&[7], false)),
        "a@8+8 a@7=6,x"
    );
    // Nothing is left: what is below stands as it did, and is not asked about.
    assert_eq!(
        run("a@9+x a@8+x a@6=x b@1=1", "", filtered(&[], true)),
        "a@0=x b@0=1"
    );
    assert_eq!(
        run("a@9+x a@8- a@6=6 b@1=1", "", filtered(&[], false)),
        "a@8- b@1=1"
    );
    assert_eq!(run("a@9+x b@1=1", "", filtered(&[], false)), "b@1=1");
    assert_eq!(run("a@9+x a@3=3", "", filtered(&[5], false)), "a@3=3");
    assert_eq!(
        run("a@9+x a@3=3 a@2=2", "[a,b)@4", filtered(&[], false)),
        ""
    );
    // No base in sight.
    assert_eq!(
        run("a@9+9 a@8+x a@7+7", "", filtered(&[], false)),
        "a@9+7,9"
    );
    assert_eq!(run("a@9+x a@8+8", "", filtered(&[], false)), "a@8+8");
    // The key goes, with what was kept of it, and those behind.
    assert_eq!(
        run("a@9+9 a@8+>d a@3=3 b@1=1 d@1=1", "", filtered(&[], false)),
        "d@1=1"
    );
    assert_eq!(
        run("b@9+9 b@8+>b b@3=3 d@1=1", "", filtered(&[], false)),
        "b@9=3,>b,9 d@1=1",
        "a key that is not after this one keeps it"
    );
    let one = |history| {
        let input = VecIter {
            entries: parse_entries(history),
            at: 0,
        };
        let mut iter = CompactionIter::new(input, parse_tombstones(""), filtered(&[], true));
        iter.seek_to_first();
        while iter.valid() {
            iter.next();
        }
        iter.stats().dropped_user
    };
    assert_eq!(one("a@9+x a@8+8 a@7+x a@6=6"), 2);
    assert_eq!(one("a@9+9 a@8+>d a@3=3 b@1=1 d@1=1"), 4);
}

#[test]
fn filters_see_the_newest_version_that_no_snapshot_reads() {
    let filtered = |snapshots: &[SeqNo], bottom: bool| CompactionIterOptions {
        filter: Some((Box::new(DropX), 3)),
        bottommost: bottom,
        ..options(snapshots)
    };
    let history = "a@9=x a@2=2 b@5=y c@4=z c@3=x d@6+x d@1=x";
    assert_eq!(
        run(history, "", filtered(&[], false)),
        "a@9- b@5=b c@4=z d@6=x,x"
    );
    assert_eq!(run(history, "", filtered(&[], true)), "b@0=b c@0=z d@0=x,x");
    assert_eq!(
        run(history, "", filtered(&[6], true)),
        "a@9- a@0=2 b@0=y c@0=z d@0=x,x",
        "versions that the snapshot reads are not shown"
    );
    assert_eq!(run("a@9=x", "[a,b)@10", filtered(&[], false)), "");
}

#[test]
fn pointers_are_values_that_pass_unread() {
    // Nothing can be read.
    let history = "a@9*100 a@7=7 b@8*101 b@5*102 c@4~ c@3*103 d@6- d@2*104 e@1*105";
    assert_eq!(
        run(history, "", with_blobs(options(&[]))),
        "a@9*100 b@8*101 d@6- e@1*105"
    );
    assert_eq!(
        run(history, "", with_blobs(bottommost(&[5]))),
        "a@9*100 a@0=7 b@8*101 b@0*102 d@6- d@0*104 e@0*105".replace("a@0=7 ", ""),
    );
    assert_eq!(run(history, "[a,z)@10", with_blobs(options(&[]))), "");
}

#[test]
fn merges_fetch_what_they_rest_on() {
    assert_eq!(
        run("a@3+y a@2+x a@1*5", "", with_blobs(options(&[]))),
        "a@3=file5,x,y"
    );
    assert_eq!(
        run("a@3+y a@1*100", "", with_blobs(options(&[2]))),
        "a@3+y a@1*100",
        "what an older snapshot reads stays as it is"
    );
}

#[test]
fn pointers_that_were_read_are_counted() {
    let entries = parse_entries("a@9*7 a@5*7 b@8*9 c@5- c@4*9 d@3+x d@2*4");
    let input = VecIter { entries, at: 0 };
    let mut iter = CompactionIter::new(input, parse_tombstones(""), with_blobs(options(&[])));
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    iter.status().unwrap();
    let read: Vec<_> = iter.pointers_read().iter().collect();
    // 32 bytes of header, a key of 1 and 10 of the value.
    let count = |values| BlobCount {
        values,
        bytes: 43 * values,
    };
    assert_eq!(read, [(4, count(1)), (7, count(2)), (9, count(2))]);
}

/// Drops keys `x` unread, and values `file5`.
struct DropByKey;

impl CompactionFilter for DropByKey {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        match value {
            b"file5" => FilterDecision::Remove,
            b"file6" => FilterDecision::ChangeValue(b"new".to_vec()),
            _ => FilterDecision::Keep,
        }
    }

    fn filter_blob_by_key(&mut self, _: usize, key: &[u8], len: u64) -> Option<FilterDecision> {
        assert_eq!(len, 10);
        match key {
            b"k" => Some(FilterDecision::Keep),
            b"x" => Some(FilterDecision::Remove),
            _ => None,
        }
    }
}

#[test]
fn filters_are_asked_before_a_value_is_read() {
    let filtered = || CompactionIterOptions {
        filter: Some((Box::new(DropByKey), 3)),
        ..with_blobs(options(&[]))
    };
    assert_eq!(
        run("a@1*5 b@2*6 c@3*7 k@4*100 x@5*101", "", filtered()),
        "a@1- b@2=new c@3*7 k@4*100 x@5-"
    );
    let error = run_all("a@1*100", "", filtered()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
}

#[test]
fn a_damaged_value_passes_and_stops_nothing() {
    let filtered = CompactionIterOptions {
        filter: Some((Box::new(DropByKey), 3)),
        ..with_blobs(options(&[]))
    };
    assert_eq!(run("a@1*200 b@1*5", "", filtered), "a@1*200 b@1-");
    let history = "a@5+z a@4+y a@3*200 a@2*5 b@2+x b@1*6";
    assert_eq!(
        run(history, "", with_blobs(options(&[]))),
        "a@5+z a@4+y a@3*200 b@2=file6,x"
    );
    // A snapshot's older value stays, too, and what hid the rest still does.
    assert_eq!(
        run(history, "", with_blobs(bottommost(&[2]))),
        "a@5+z a@4+y a@3*200 a@0*5 b@0=file6,x"
    );
}

#[test]
fn what_cannot_be_judged_is_an_error() {
    let kind = |entries: &str, o| run_all(entries, "", o).unwrap_err().kind();
    assert_eq!(kind("a@1*p", options(&[])), ErrorKind::Corruption);
    assert_eq!(kind("a@2=x a@1*p", options(&[])), ErrorKind::Corruption);
    assert_eq!(kind("a@2~ a@1*p", options(&[])), ErrorKind::Corruption);
    let refused = ErrorKind::InvalidArgument;
    assert_eq!(kind("a@2+x a@1*5", options(&[])), refused);
    let unreadable = with_blobs(options(&[]));
    assert_eq!(kind("a@2+x a@1*100", unreadable), ErrorKind::NotSupported);
    assert_eq!(kind("a@1!b", options(&[])), ErrorKind::Corruption);
    assert_eq!(kind("b@1=1 a@1=1", options(&[])), ErrorKind::Corruption);
    assert_eq!(kind("a@1=1 a@2=2", options(&[])), ErrorKind::Corruption);
    let no_operator = CompactionIterOptions {
        merge_operator: None,
        ..options(&[])
    };
    assert_eq!(kind("a@1+x", no_operator), ErrorKind::InvalidArgument);
    let mut unknown = VecIter {
        entries: vec![(b"k\x16\0\0\0\0\0\0\0".to_vec(), vec![])],
        at: 0,
    };
    unknown.seek_to_first();
    let mut iter = CompactionIter::new(unknown, parse_tombstones(""), options(&[]));
    iter.seek_to_first();
    assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::NotSupported);
}

#[test]
fn a_cancelled_job_stops_even_where_nothing_comes_out() {
    let cancel = Arc::new(AtomicBool::new(true));
    let entries: Vec<String> = (1..5000).rev().map(|s| format!("a@{s}=v")).collect();
    let cancelled = CompactionIterOptions {
        watch: Some(cancel),
        ..options(&[])
    };
    let error = run_all(&entries.join(" "), "", cancelled).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted);
}

#[test]
fn counts_tell_what_was_dropped() {
    let input = VecIter {
        entries: parse_entries("a@9=9 a@7=7 b@5- c@4~ c@3=3 d@2=2"),
        at: 0,
    };
    let mut iter = CompactionIter::new(input, parse_tombstones("[d,e)@8"), bottommost(&[]));
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    let s = iter.stats();
    assert_eq!(
        (s.input_records, s.input_deletions, s.output_records),
        (6, 2, 1)
    );
    assert_eq!(
        (s.dropped_hidden, s.dropped_obsolete, s.dropped_range_del),
        (2, 2, 1)
    );
    assert_eq!((s.input_key_bytes, s.input_value_bytes), (54, 4));
    assert_eq!(
        user_key(iter.key()),
        b"d",
        "the last key that was looked at"
    );
}
