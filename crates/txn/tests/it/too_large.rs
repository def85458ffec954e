//! Writes that are more than is taken at once are refused by the operation that goes over, and change nothing.

use std::sync::Arc;

use crate::metrics::options;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{
    Error, ErrorKind, InternalIterator, ParsedInternalKey, Result, SeqNo, ValueKind,
};
use orogen_engine::options::{MemTableFactory, MemTableRequest};
use orogen_engine::{ColumnFamilyOptions, Db, ReadOptions};
use orogen_memtable::{GuidedListMemTable, MemTable, Visit};
use orogen_txn::indexed_batch::IndexedBatch;
use orogen_txn::{
    OptimisticTransactionDb, OptimisticTransactionDbOptions, OptimisticTransactionOptions,
    TransactionDb, TransactionDbOptions, TransactionOptions,
};

#[track_caller]
fn assert_too_large<T: std::fmt::Debug>(result: Result<T>, bytes_max: usize) {
    let error = result.expect_err("it is too much");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    let number = |key| error.context(key).and_then(|n| n.parse::<usize>().ok());
    assert!(number("bytes") > Some(bytes_max), "{error}");
    assert_eq!(number("bytes_max"), Some(bytes_max), "{error}");
}

#[test]
fn a_batch_takes_what_its_limit_allows_and_no_byte_more() {
    let db = Db::open("/db", &options()).unwrap();
    let family = db.default_column_family();
    let mut batch = IndexedBatch::new().unwrap();
    batch.put(&family, b"key", b"value").unwrap();
    let one = batch.batch().size_bytes();
    batch.put(&family, b"kez", b"value").unwrap();
    let both = batch.batch().size_bytes();
    batch.clear();
    batch.set_max_bytes(both);
    batch.put(&family, b"key", b"value").unwrap();
    assert_too_large(batch.put(&family, b"kez", b"value+"), both);
    assert_eq!((batch.count(), batch.batch().size_bytes()), (1, one));
    batch.put(&family, b"kez", b"value").unwrap();
    assert_too_large(batch.delete(&family, b""), both);
    assert_too_large(batch.single_delete(&family, b""), both);
    assert_too_large(batch.delete_range(&family, b"a", b"b"), both);
    assert_too_large(batch.put_log_data(b"log"), both);
    // What was refused is nothing to read, and what is there is written.
    let now = ReadOptions::default();
    assert!(batch.get(&db, &now, &family, b"kez").unwrap().is_some());
    batch.write(&db, &Default::default()).unwrap();
    assert_eq!(db.get(b"kez").unwrap().as_deref(), Some(&b"value"[..]));
    // Emptied it has the same limit; a new one counts from then on, and 0 is none.
    batch.clear();
    assert_too_large(batch.put(&family, b"key", &[0; 100]), both);
    batch.set_max_bytes(20);
    assert_too_large(batch.put(&family, b"key", b"value"), 20);
    batch.set_max_bytes(0);
    batch.put(&family, b"key", &[0; 100]).unwrap();
}

#[test]
fn a_transaction_goes_on_with_what_it_has() {
    const MOST: usize = 100;
    let db = TransactionDb::open("/db", &options(), TransactionDbOptions::default()).unwrap();
    let family = db.db().default_column_family();
    let limited = TransactionOptions {
        max_write_batch_size: MOST,
        ..TransactionOptions::default()
    };
    let mut txn = db.begin(limited).unwrap();
    txn.put(&family, b"a", &[1; 60]).unwrap();
    assert_too_large(txn.put(&family, b"b", &[1; 60]), MOST);
    assert_eq!((txn.count(), txn.lock_count()), (1, 2), "it is locked");
    // Rolled back there is room again.
    txn.set_save_point();
    txn.put(&family, b"c", &[1; 10]).unwrap();
    assert_too_large(txn.delete_range(&family, b"d", b"dddddddd"), MOST);
    txn.rollback_to_save_point().unwrap();
    txn.delete_range(&family, b"d", b"dddddddd").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.db().get(b"a").unwrap().as_deref(), Some(&[1; 60][..]));
    assert!(db.db().get(b"b").unwrap().is_none());
    txn.restart(limited).unwrap();
    assert_too_large(txn.put(&family, b"a", &[1; 100]), MOST);
    txn.rollback().unwrap();
    txn.restart(TransactionOptions::default()).unwrap();
    txn.put(&family, b"a", &[1; 1000]).unwrap();
    txn.commit().unwrap();
}

#[test]
fn so_does_an_optimistic_one() {
    const MOST: usize = 100;
    let own = OptimisticTransactionDbOptions::default();
    let db = OptimisticTransactionDb::open("/db", &options(), own).unwrap();
    let family = db.db().default_column_family();
    let limited = OptimisticTransactionOptions {
        max_write_batch_size: MOST,
        ..OptimisticTransactionOptions::default()
    };
    let mut txn = db.begin(limited).unwrap();
    txn.put(&family, b"a", &[1; 60]).unwrap();
    assert_too_large(txn.put(&family, b"b", &[1; 60]), MOST);
    txn.commit().unwrap();
    assert!(db.db().get(b"a").unwrap().is_some());
    assert!(db.db().get(b"b").unwrap().is_none());
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    txn.put(&family, b"a", &[1; 1000]).unwrap();
    txn.commit().unwrap();
}

/// A memtable that takes so many operations and bytes at once.
struct Bounded(Arc<dyn MemTable>, usize, usize);

impl MemTable for Bounded {
    fn check_group(&self, entries: usize, bytes: usize) -> Result<()> {
        if entries <= self.1 && bytes <= self.2 {
            return Ok(());
        }
        Err(Error::too_large("more than this memtable takes at once")
            .with("bytes", bytes)
            .with("bytes_max", self.2))
    }

    fn promise(&self, entries: usize, bytes: usize) -> Result<()> {
        self.check_group(entries, bytes)?;
        self.0.promise(entries, bytes)
    }

    fn release(&self, entries: usize, bytes: usize) {
        self.0.release(entries, bytes);
    }

    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        self.0.insert(key, seqno, kind, value)
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        self.0.insert_range_deletion(start, end, seqno)
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()> {
        self.0.get(key, read_seqno, visit)
    }

    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        self.0.clone().iter()
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.0.range_tombstones()
    }

    fn has_range_tombstones(&self) -> bool {
        self.0.has_range_tombstones()
    }

    fn memory_usage(&self) -> usize {
        self.0.memory_usage()
    }

    fn memory_allocated(&self) -> usize {
        self.0.memory_allocated()
    }

    fn entry_count(&self) -> u64 {
        self.0.entry_count()
    }

    fn deletion_count(&self) -> u64 {
        self.0.deletion_count()
    }
}

fn bounded(entries: usize, bytes: usize) -> MemTableFactory {
    Arc::new(move |request: &MemTableRequest<'_>| {
        let list = GuidedListMemTable::new(request.comparator.clone());
        Arc::new(Bounded(list, entries, bytes))
    })
}

/// Whatever the memtable's limit is, what the transaction took is committed.
#[test]
fn what_no_memtable_takes_is_refused_before_the_commit() {
    const MIB: usize = 1 << 20;
    let mut options = options();
    options.cf.memtable_factory = bounded(usize::MAX, 24 * MIB);
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let large = db.db().default_column_family();
    let few = ColumnFamilyOptions {
        memtable_factory: bounded(40, usize::MAX),
        ..ColumnFamilyOptions::default()
    };
    let few = db.db().create_column_family("few", few).unwrap();
    let any = ColumnFamilyOptions {
        memtable_factory: bounded(usize::MAX, usize::MAX),
        ..ColumnFamilyOptions::default()
    };
    let any = db.db().create_column_family("any", any).unwrap();
    let value = vec![7; MIB];

    let mut txn = db.begin(TransactionOptions::default()).unwrap();
    for n in 0..23u8 {
        txn.put(&large, &[n], &value).unwrap();
    }
    // All families share the batch, so that what goes to another one counts.
    assert_too_large(txn.put(&any, b"a", &value), 24 * MIB);
    assert_too_large(txn.put(&large, b"a", &value), 24 * MIB);
    txn.put(&large, b"a", &value[..MIB / 2]).unwrap();
    txn.commit().unwrap();
    let found = db.db().get(b"a").unwrap();
    assert_eq!(found.map(|v| v.len()), Some(MIB / 2));

    // Of a family that has nothing to take the limit is no matter.
    txn.restart(TransactionOptions::default()).unwrap();
    for n in 0..30u8 {
        txn.put(&any, &[n], &value).unwrap();
    }
    assert_too_large(txn.put(&large, b"b", b"1"), 24 * MIB);
    txn.put(&any, b"b", &value).unwrap();
    txn.rollback().unwrap();
    txn.restart(TransactionOptions::default()).unwrap();
    for n in 0..39u8 {
        txn.put(&any, &[n], &value).unwrap();
    }
    txn.put(&few, b"b", b"1").unwrap();
    let told = txn.delete(&any, b"c").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::TooLarge);
    txn.set_name(b"t").unwrap();
    txn.prepare().unwrap();
    txn.commit().unwrap();
}
