//! Orders of user keys and prefix extractors: separators lie between their keys, also as internal
//! keys; keys of one prefix stand together; what is found by its name has that name.

#![no_main]

use std::cmp::Ordering;

use libfuzzer_sys::fuzz_target;
use orogen_base::key::{InternalKeyComparator, append_internal_key};
use orogen_base::{UserComparator, ValueKind, slice_transform};
use orogen_fuzz::Choices;

/// Beginnings of extractors' names.
const STARTS: [&str; 5] = [
    "fixed:",
    "capped:",
    "rocksdb.FixedPrefix.",
    "rocksdb.CappedPrefix.",
    "rocksdb.Noop",
];

fn check_between(order: &UserComparator, a: &[u8], b: &[u8]) {
    let mut short = a.to_vec();
    order.find_shortest_separator(&mut short, b);
    assert!(short.len() <= a.len(), "{short:?} of {a:?} is longer");
    assert_ne!(order.compare(&short, a), Ordering::Less);
    assert!(order.less(&short, b), "{a:?} {short:?} {b:?}");

    let mut next = a.to_vec();
    order.find_short_successor(&mut next);
    assert!(next.len() <= a.len());
    assert_ne!(order.compare(&next, a), Ordering::Less);

    // As an index uses it: every version of `a` is not behind it, every version of `b` is.
    let internal = InternalKeyComparator::new(order.clone());
    let key = |user_key: &[u8], seqno| {
        let mut key = Vec::new();
        append_internal_key(&mut key, user_key, seqno, ValueKind::Value);
        key
    };
    let mut separator = key(a, 0);
    internal.find_shortest_separator(&mut separator, &key(b, u64::MAX >> 8));
    for seqno in [0, 1, u64::MAX >> 8] {
        assert_ne!(
            internal.compare(&key(a, seqno), &separator),
            Ordering::Greater
        );
        assert_eq!(internal.compare(&separator, &key(b, seqno)), Ordering::Less);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let number = choices.short() % 20;
    let start = STARTS[usize::from(choices.byte()) % (STARTS.len() - 1)];
    let name = format!("{start}{number}");
    let extractor = slice_transform::by_name(&name).expect("built in");
    let mut keys = Vec::new();
    while !choices.is_empty() && keys.len() < 16 {
        keys.push(choices.key());
    }
    for order in [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE] {
        assert_eq!(
            UserComparator::by_name(order.name()).map(|o| o.is_bytewise()),
            Some(order.is_bytewise())
        );
        keys.sort_by(|a, b| order.compare(a, b));
        keys.dedup();
        for (i, a) in keys.iter().enumerate() {
            for b in &keys[i + 1..] {
                check_between(&order, a, b);
            }
        }
        let inside = keys.iter().filter(|key| extractor.in_domain(key));
        let mut prefixes: Vec<&[u8]> = inside.map(|key| extractor.transform(key)).collect();
        for prefix in &prefixes {
            assert!(extractor.in_domain(prefix), "{name}: {prefix:?}");
            assert_eq!(extractor.transform(prefix), *prefix);
        }
        prefixes.dedup();
        let runs = prefixes.len();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), runs, "{name}: a prefix comes twice");
    }
    let mut choices = Choices::new(data);
    let start = STARTS[usize::from(choices.byte()) % STARTS.len()];
    let rest = String::from_utf8_lossy(choices.rest());
    let name = format!("{start}{rest}");
    if let Some(found) = slice_transform::by_name(&name) {
        let again = slice_transform::by_name(found.name()).expect("a name of ours");
        assert_eq!(again.name(), found.name());
        assert!(!name.starts_with("rocksdb.") || found.name() == name);
    }
});
