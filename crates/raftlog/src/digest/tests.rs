//! Digests beside the records that they are made of.

use std::sync::Arc;

use orogen_env::{Access, MemFileSystem};
use orogen_testkit::rng::Rng;

use super::*;
use crate::names::Queue;

const FILE_LEN: u64 = 1 << 20;

fn file(fs: &dyn FileSystem, seq: u64) -> LogFile {
    let id = FileId::new(Queue::Append, seq);
    let at = Path::new("/").join(id.name());
    let mut writer = fs.create(&at).unwrap();
    writer.append(&vec![seq as u8; FILE_LEN as usize]).unwrap();
    let reader = fs.open(&at, Access::Random).unwrap();
    let version = FormatVersion::V2;
    LogFile {
        id,
        version,
        reader,
    }
}

/// Something for a few groups, at home and not.
fn items(rng: &mut Rng, next: &mut [u64]) -> (Vec<Item>, u32) {
    let mut end = 0;
    let mut items = Vec::new();
    for _ in 0..rng.range(1..5) {
        let at = rng.range(0..next.len());
        let group = at as u64 * 77;
        let op = match rng.below(14) {
            0 => Op::Clean,
            1 => Op::Compact {
                index: (next[at] + rng.below(4)).saturating_sub(rng.below(12)),
            },
            2 | 3 => Op::Put {
                key: vec![rng.below(3) as u8],
                value: rng.bytes(3),
            },
            4 => Op::Delete {
                key: vec![rng.below(3) as u8],
            },
            _ => {
                let first = match rng.below(6) {
                    0 => next[at].saturating_sub(rng.below(6)).max(1),
                    1 => next[at] + rng.below(3),
                    _ => next[at],
                };
                let start = end;
                let ends: Vec<u32> = (0..rng.range(0..4))
                    .map(|_| {
                        end += rng.below(300) as u32;
                        end
                    })
                    .collect();
                next[at] = first + ends.len() as u64;
                Op::Entries(Entries { first, start, ends })
            }
        };
        items.push(Item { group, op });
    }
    (items, end)
}

/// All that memory knows.
fn told(memtables: &Memtables) -> Vec<String> {
    let mut lines = vec![format!("rewritten {}", memtables.rewritten())];
    for (id, slot) in memtables.slots() {
        let group = slot.read();
        lines.push(format!(
            "{id} {} {:?} {} {:?}",
            slot.is_present(),
            group.span(),
            group.rewritten_items(),
            group.tombstones(slot.is_present(), 1)
        ));
        let span = group.span();
        lines.extend((span.first..span.next).map(|at| format!("{:?}", group.index().locate(at))));
        lines.extend(group.range(None, None).map(|pair| format!("{pair:?}")));
        let limit = FileId::new(Queue::Append, 1);
        lines.extend(group.pairs(limit).iter().map(|p| format!("{:?}", p.file)));
    }
    lines
}

fn built(records: &[(Vec<Item>, Block)], file: &LogFile) -> Digest {
    let mut builder = Builder::default();
    for (items, block) in records {
        builder.add(items.clone(), *block).unwrap();
    }
    builder.finish(file, FILE_LEN).unwrap()
}

fn apply(digest: &Digest, id: FileId, memtables: &Memtables) -> Result<()> {
    (0..SHARDS).try_for_each(|shard| digest.apply(shard, id, memtables))
}

fn block_of(rng: &mut Rng, id: FileId, offset: u64, end: u32) -> Block {
    let lz4 = end > 0 && rng.chance(1, 3);
    Block {
        file: id,
        offset,
        len: if lz4 { end / 2 + 5 } else { block_len_of(end) },
        compression: if lz4 {
            Compression::Lz4
        } else {
            Compression::None
        },
    }
}

#[test]
fn a_digest_does_what_its_records_do_on_top_of_the_rewrite_queue_and_other_files() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    let mut rng = Rng::new(Rng::seed_or(5));
    let (mut stood, mut gone) = (0, 0);
    for _ in 0..600 {
        let (one, other) = (Memtables::new(), Memtables::new());
        let mut next = vec![rng.range(1..9) as u64; 5];
        let rewrite = FileId::new(Queue::Rewrite, 1);
        for at in 0..rng.below(20) {
            let (items, end) = items(&mut rng, &mut next);
            let block = block_of(&mut rng, rewrite, at * 2000, end);
            one.replay(items.clone(), block);
            other.replay(items, block);
        }
        // The append queue may have begun before what was rewritten ends.
        for next in &mut next {
            *next = next.saturating_sub(rng.below(6)).max(1);
        }
        for seq in 1..4 {
            let file = file(&*fs, seq);
            let records: Vec<_> = (0..rng.below(40))
                .map(|at| {
                    let (items, end) = items(&mut rng, &mut next);
                    (items, block_of(&mut rng, file.id, 69 + at * 5000, end))
                })
                .collect();
            records
                .iter()
                .for_each(|(items, block)| one.replay(items.clone(), *block));
            let digest = built(&records, &file);
            digest.write(&*fs, Path::new("/"), file.id).unwrap();
            let digest = Digest::read(&*fs, Path::new("/"), file.id, &*file.reader);
            apply(&digest.unwrap().unwrap(), file.id, &other).unwrap();
            assert_eq!(told(&one), told(&other));
        }
        one.settle();
        other.settle();
        assert_eq!(told(&one), told(&other));
        stood += one.groups().len();
        gone += 5 - one.groups().len();
    }
    assert!(stood > 1000 && gone > 20, "{stood} {gone}");
}

#[test]
fn damaged_digests_and_those_of_other_files_are_none() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    let file = file(&*fs, 3);
    let mut rng = Rng::new(8);
    let mut next = vec![1; 3];
    let records: Vec<_> = (0..5)
        .map(|at| {
            let (items, end) = items(&mut rng, &mut next);
            (items, block_of(&mut rng, file.id, 69 + at * 5000, end))
        })
        .collect();
    let dir = Path::new("/");
    let digest = built(&records, &file);
    let read = |bytes: &[u8]| {
        let mut writer = fs.create(&path(dir, file.id)).unwrap();
        writer.append(bytes).unwrap();
        Digest::read(&*fs, dir, file.id, &*file.reader).unwrap()
    };
    assert!(
        Digest::read(&*fs, dir, file.id, &*file.reader)
            .unwrap()
            .is_none()
    );
    let whole = &digest.bytes;
    assert!(read(whole).is_some());
    for at in 0..whole.len() {
        assert!(read(&whole[..at]).is_none(), "cut at {at}");
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            assert!(read(&bytes).is_none(), "bit {bit} of byte {at}");
        }
    }
    // The file is another one, longer, or ends in other bytes.
    let other = self::file(&*fs, 4);
    let renamed = path(dir, other.id);
    fs.create(&renamed).unwrap().append(whole).unwrap();
    assert!(
        Digest::read(&*fs, dir, other.id, &*other.reader)
            .unwrap()
            .is_none()
    );
    assert!(read(whole).is_some());
    let path = dir.join(file.id.name());
    fs.open_append(&path).unwrap().append(b"x").unwrap();
    assert!(read(whole).is_none());
    fs.truncate(&path, FILE_LEN - 1).unwrap();
    fs.open_append(&path).unwrap().append(b"x").unwrap();
    assert!(read(whole).is_none());
}

#[test]
fn a_digest_that_makes_no_sense_is_an_error() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    let file = file(&*fs, 1);
    let mut rng = Rng::new(Rng::seed_or(9));
    let (mut wrong, mut right) = (0, 0);
    for _ in 0..3000 {
        let mut next = vec![1; 3];
        let records: Vec<_> = (0..8)
            .map(|at| {
                let (items, end) = items(&mut rng, &mut next);
                (items, block_of(&mut rng, file.id, 69 + at * 5000, end))
            })
            .collect();
        let mut digest = built(&records, &file);
        let at = rng.range(HEADER_LEN..digest.bytes.len() - CRC_LEN);
        digest.bytes[at] ^= rng.range(1..256) as u8;
        match apply(&digest, file.id, &Memtables::new()) {
            Ok(()) => right += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                wrong += 1;
            }
        }
    }
    assert!(wrong > 500 && right > 500, "{wrong} {right}");
}
