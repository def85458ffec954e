//! Internal keys: parsed as they were written, ordered totally, shortened within their bounds.

#![no_main]

use std::cmp::Ordering;

use libfuzzer_sys::fuzz_target;
use orogen_base::key::InternalKeyComparator;
use orogen_base::{ParsedInternalKey, UserComparator, ValueKind};
use orogen_fuzz::Choices;

fn internal_key(choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let kind = ValueKind::from_u8(choices.byte() % 32)?;
    let seqno = choices.short() as u64;
    let user_key = choices.key();
    Some(
        ParsedInternalKey {
            user_key: &user_key,
            seqno,
            kind,
        }
        .encode(),
    )
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let reverse = choices.byte() & 1 == 1;
    let user = if reverse {
        UserComparator::REVERSE_BYTEWISE
    } else {
        UserComparator::BYTEWISE
    };
    let order = InternalKeyComparator::new(user);
    let mut keys = Vec::new();
    while !choices.is_empty() && keys.len() < 16 {
        let Some(key) = internal_key(&mut choices) else {
            return;
        };
        let parsed = ParsedInternalKey::parse(&key).expect("written by us");
        assert_eq!(parsed.encode(), key);
        keys.push(key);
    }
    keys.sort_by(|a, b| order.compare(a, b));
    assert!(keys.is_sorted_by(|a, b| order.compare(a, b) != Ordering::Greater));
    for pair in keys.windows(2) {
        if order.compare(&pair[0], &pair[1]) == Ordering::Less {
            let mut separator = pair[0].clone();
            order.find_shortest_separator(&mut separator, &pair[1]);
            assert_ne!(order.compare(&pair[0], &separator), Ordering::Greater);
            assert_eq!(order.compare(&separator, &pair[1]), Ordering::Less);
        }
        let mut successor = pair[0].clone();
        order.find_short_successor(&mut successor);
        assert_ne!(order.compare(&pair[0], &successor), Ordering::Greater);
    }
    let _ = ParsedInternalKey::parse(data);
});
