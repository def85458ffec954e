//! The checker finds each anomaly in a history that has it, and none in one that has none.

use super::checker::{Anomaly, Key, Op, Report, Txn, check};

use Op::{Append, Read, Scan};

/// Transactions that all run at once.
fn txn(ops: Vec<Op>) -> Txn {
    Txn {
        ops,
        committed: true,
        began: 0,
        ended: 100,
        ..Txn::default()
    }
}

fn found(txns: &[Txn], last: &[(Key, &[u32])]) -> Report {
    check(txns, &last.iter().map(|(k, l)| (*k, l.to_vec())).collect())
}

fn only(report: &Report, wanted: &[Anomaly]) {
    let found: Vec<_> = report.found.keys().copied().collect();
    assert_eq!(found, wanted, "{report:?}");
}

#[test]
fn a_serial_history_has_nothing() {
    let txns = [
        txn(vec![Read(1, vec![]), Append(1, 10), Read(1, vec![10])]),
        txn(vec![Read(1, vec![10]), Append(1, 20), Append(2, 21)]),
        txn(vec![
            Scan(1..4, vec![(1, vec![10, 20]), (2, vec![21])]),
            Append(3, 30),
        ]),
    ];
    let report = found(&txns, &[(1, &[10, 20]), (2, &[21]), (3, &[30])]);
    only(&report, &[]);
    assert_eq!(report.edges, [1, 2, 0, 0]);
}

#[test]
fn g0_two_write_two_lists_in_different_orders() {
    let txns = [
        txn(vec![Append(1, 10), Append(2, 11)]),
        txn(vec![Append(1, 20), Append(2, 21)]),
    ];
    let report = found(&txns, &[(1, &[10, 20]), (2, &[21, 11])]);
    only(&report, &[Anomaly::G0, Anomaly::GSi]);
}

#[test]
fn g1a_what_was_rolled_back_is_read() {
    let mut aborted = txn(vec![]);
    aborted.undone = vec![10];
    aborted.committed = false;
    let reader = txn(vec![Read(1, vec![10])]);
    assert!(found(&[aborted.clone(), reader], &[(1, &[])]).has(Anomaly::G1a));
    only(&found(&[aborted], &[(1, &[10])]), &[Anomaly::G1a]);
}

#[test]
fn g1b_what_was_not_finished_is_read() {
    let txns = [
        txn(vec![Append(1, 10), Append(1, 11)]),
        txn(vec![Read(1, vec![10])]),
    ];
    assert!(found(&txns, &[(1, &[10, 11])]).has(Anomaly::G1b));
}

#[test]
fn g1c_two_read_each_others_writes() {
    let txns = [
        txn(vec![Append(1, 10), Read(2, vec![20])]),
        txn(vec![Append(2, 20), Read(1, vec![10])]),
    ];
    let report = found(&txns, &[(1, &[10]), (2, &[20])]);
    only(&report, &[Anomaly::G1c, Anomaly::GSi]);
}

#[test]
fn g_single_half_of_another_is_read() {
    let txns = [
        txn(vec![Append(1, 10), Append(2, 11)]),
        txn(vec![Read(1, vec![]), Read(2, vec![11])]),
    ];
    let report = found(&txns, &[(1, &[10]), (2, &[11])]);
    only(&report, &[Anomaly::GSingle, Anomaly::GSi, Anomaly::G2Item]);
    // Of a list twice: it changed.
    let txns = [
        txn(vec![Append(1, 10)]),
        txn(vec![Read(1, vec![]), Read(1, vec![10])]),
    ];
    assert!(found(&txns, &[(1, &[10])]).has(Anomaly::GSingle));
}

#[test]
fn a_lost_update_is_found_by_what_is_gone_and_by_what_was_passed() {
    let txns = [
        txn(vec![Read(1, vec![]), Append(1, 10)]),
        txn(vec![Read(1, vec![]), Append(1, 20)]),
    ];
    only(&found(&txns, &[(1, &[20])]), &[Anomaly::LostUpdate]);
    let report = found(&txns, &[(1, &[10, 20])]);
    only(
        &report,
        &[
            Anomaly::LostUpdate,
            Anomaly::GSingle,
            Anomaly::GSi,
            Anomaly::G2Item,
        ],
    );
}

#[test]
fn g_si_two_readers_see_two_writers_in_different_orders() {
    let txns = [
        txn(vec![Append(1, 10)]),
        txn(vec![Append(2, 20)]),
        txn(vec![Read(1, vec![10]), Read(2, vec![])]),
        txn(vec![Read(1, vec![]), Read(2, vec![20])]),
    ];
    let report = found(&txns, &[(1, &[10]), (2, &[20])]);
    only(&report, &[Anomaly::GSi, Anomaly::G2Item]);
}

#[test]
fn g2_item_write_skew() {
    let txns = [
        txn(vec![Read(1, vec![]), Append(2, 10)]),
        txn(vec![Read(2, vec![]), Append(1, 20)]),
    ];
    only(&found(&txns, &[(1, &[20]), (2, &[10])]), &[Anomaly::G2Item]);
}

#[test]
fn g2_write_skew_of_what_scans_do_not_find() {
    let txns = [
        txn(vec![Scan(1..3, vec![]), Append(1, 10)]),
        txn(vec![Scan(1..3, vec![]), Append(2, 20)]),
    ];
    only(&found(&txns, &[(1, &[10]), (2, &[20])]), &[Anomaly::G2]);
}

#[test]
fn stale_what_has_ended_is_not_seen() {
    let mut writer = txn(vec![Append(1, 10)]);
    let mut reader = txn(vec![Read(1, vec![])]);
    let last: [(Key, &[u32]); 1] = [(1, &[10])];
    only(&found(&[writer.clone(), reader.clone()], &last), &[]);
    writer.ended = 1;
    reader.began = 2;
    only(
        &found(&[writer, reader], &last),
        &[Anomaly::Stale, Anomaly::NotStrict],
    );
}

#[test]
fn not_strict_one_overlaps_two_and_is_between_them_in_the_wrong_order() {
    let mut first = txn(vec![Append(1, 10)]);
    let between = txn(vec![Read(1, vec![]), Append(2, 20)]);
    let mut second = txn(vec![Read(2, vec![]), Append(3, 30)]);
    first.ended = 1;
    second.began = 2;
    let last: [(Key, &[u32]); 3] = [(1, &[10]), (2, &[20]), (3, &[30])];
    only(
        &found(&[first, between, second], &last),
        &[Anomaly::NotStrict],
    );
}

#[test]
fn internal_own_writes_are_not_seen() {
    let last: [(Key, &[u32]); 1] = [(1, &[10])];
    for read in [Read(1, vec![]), Scan(0..2, vec![])] {
        only(
            &found(&[txn(vec![Append(1, 10), read])], &last),
            &[Anomaly::Internal],
        );
    }
}
