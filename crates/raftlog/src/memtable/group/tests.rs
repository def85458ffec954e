//! Groups beside their shadows.

use super::*;
use crate::format::Compression;

fn block(queue: Queue, seq: u64) -> Block {
    Block {
        file: FileId::new(queue, seq),
        offset: 100,
        len: 50,
        compression: Compression::None,
    }
}

#[test]
fn ranges_of_keys_may_be_void_or_the_wrong_way_round() {
    let mut group = Group::default();
    let place = block(Queue::Append, 1);
    for key in ["a", "b", "c"] {
        let (key, value) = (key.into(), Vec::new());
        group.apply(Op::Put { key, value }, place);
    }
    let count = |start: Option<&str>, end: Option<&str>| {
        let (start, end) = (start.map(str::as_bytes), end.map(str::as_bytes));
        group.range(start, end).count()
    };
    assert_eq!(count(None, None), 3);
    assert_eq!(count(Some("b"), None), 2);
    assert_eq!(count(Some("a"), Some("c")), 2);
    assert_eq!(count(Some("b"), Some("b")), 0);
    assert_eq!(count(Some("c"), Some("a")), 0);
    assert_eq!(count(None, Some("")), 0);
}
