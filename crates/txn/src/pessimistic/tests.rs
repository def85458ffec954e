use std::sync::Arc;

use orogen_env::MemFileSystem;

use super::*;

#[test]
fn what_is_written_is_protected_from_the_first_operation_on() {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let family = db.db().default_column_family();
    let begin = |protection_bytes_per_key| {
        let mut options = TransactionOptions::default();
        options.write.protection_bytes_per_key = protection_bytes_per_key;
        db.begin(options).unwrap()
    };
    let checksums = |txn: &Transaction| {
        let own = txn.own.borrow();
        own.batch().memory_usage() - own.batch().size_bytes()
    };
    let (mut plain, mut protected) = (begin(0), begin(8));
    plain.put(&family, b"a", b"v").unwrap();
    protected.put(&family, b"b", b"v").unwrap();
    assert_eq!((checksums(&plain), checksums(&protected)), (0, 8));
    protected.commit().unwrap();
    protected.restart(plain.options).unwrap();
    protected.put(&family, b"b", b"v").unwrap();
    assert_eq!(checksums(&protected), 0);
}
