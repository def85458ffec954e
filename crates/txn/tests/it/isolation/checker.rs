//! Finds anomalies in recorded histories of transactions that append unique elements to lists and read lists.
//!
//! 1. The last state of a list is the order of its versions; a read of it is a prefix, so it says which version was read.
//! 2. Edges: ww to who wrote the next version, wr from who wrote the version that is read, rw from who read a
//!    version to who wrote the next one; phantom: an rw of a key that a scan did not find; time: from who ended before
//!    another began, through nodes for moments.
//! 3. A cycle is an anomaly; which one, its edges tell. Names are Adya's.
//! 4. Snapshot isolation holds if and only if "a dependency, then at most one rw" has no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) type Key = u32;
/// No two appends have the same.
pub(crate) type Element = u32;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Append(Key, Element),
    Read(Key, Vec<Element>),
    /// What a scan of a range found; every key of the range that is not there was absent.
    Scan(Range<Key>, Vec<(Key, Vec<Element>)>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Txn {
    pub(crate) ops: Vec<Op>,
    /// What it appended and took back.
    pub(crate) undone: Vec<Element>,
    pub(crate) committed: bool,
    /// Moments of one clock that never stands still.
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Anomaly {
    /// A transaction does not see its own writes, or others' between them.
    Internal,
    /// What a committed transaction wrote was overwritten by one that had not seen it.
    LostUpdate,
    /// A cycle of ww.
    G0,
    /// A read of what was never committed.
    G1a,
    /// A read of what is not the last that its writer wrote.
    G1b,
    /// A cycle of ww and wr, of these at least one.
    G1c,
    /// A cycle with one rw.
    GSingle,
    /// A cycle in which no two rw follow each other.
    GSi,
    /// A cycle with an rw between keys that were read.
    G2Item,
    /// A cycle with a phantom.
    G2,
    /// A cycle of [`Self::GSi`]'s kind with an order in time, and none without that.
    Stale,
    /// Any cycle with an order in time, and none without that. Snapshots have it: one that overlaps two others may stand
    /// before the first of them and behind the second.
    NotStrict,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// How many of each, with the transactions of one of them.
    pub(crate) found: BTreeMap<Anomaly, (usize, Vec<usize>)>,
    pub(crate) committed: usize,
    /// ww, wr, rw and phantoms.
    pub(crate) edges: [usize; 4],
}

impl Report {
    pub(crate) fn has(&self, anomaly: Anomaly) -> bool {
        self.found.contains_key(&anomaly)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        for (sum, n) in self.edges.iter_mut().zip(other.edges) {
            *sum += n;
        }
        for (&anomaly, (n, txns)) in &other.found {
            let entry = self
                .found
                .entry(anomaly)
                .or_insert_with(|| (0, txns.clone()));
            entry.0 += n;
        }
    }

    fn note(&mut self, anomaly: Anomaly, txns: &[usize]) {
        self.found
            .entry(anomaly)
            .or_insert_with(|| (0, txns.to_vec()))
            .0 += 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ww,
    Wr,
    Rw,
    Phantom,
    Time,
}

type Edges = BTreeSet<(usize, usize, Kind)>;

/// What a history has that an ideal one has not; `last` is what all lists are after its end.
pub(crate) fn check(txns: &[Txn], last: &BTreeMap<Key, Vec<Element>>) -> Report {
    let mut report = Report {
        committed: txns.iter().filter(|t| t.committed).count(),
        ..Report::default()
    };
    let mut edges = Edges::new();
    let writers = writers(txns);
    let aborted = |e: &Element| writers.get(e).is_none_or(|&(_, counts)| !counts);
    let writer = |e: &Element| writers.get(e).map(|&(t, _)| t);
    for list in last.values() {
        for e in list.iter().filter(|e| aborted(e)) {
            report.note(Anomaly::G1a, &[writer(e).unwrap_or(usize::MAX)]);
        }
        for pair in list.windows(2) {
            if let (Some(a), Some(b)) = (writer(&pair[0]), writer(&pair[1]))
                && a != b
            {
                edges.insert((a, b, Kind::Ww));
            }
        }
    }
    for (t, txn) in txns.iter().enumerate().filter(|(_, t)| t.committed) {
        let mut own: BTreeMap<Key, Vec<Element>> = BTreeMap::new();
        for op in &txn.ops {
            match op {
                Op::Append(key, e) => {
                    own.entry(*key).or_default().push(*e);
                    if !last.get(key).is_some_and(|list| list.contains(e)) {
                        report.note(Anomaly::LostUpdate, &[t]);
                    }
                }
                Op::Read(key, seen) => {
                    let own = own.get(key).map_or(&[][..], |o| o);
                    read(
                        &mut report,
                        &mut edges,
                        &writers,
                        last,
                        (t, *key),
                        seen,
                        own,
                    );
                }
                Op::Scan(range, found) => {
                    for (key, seen) in found {
                        let own = own.get(key).map_or(&[][..], |o| o);
                        read(
                            &mut report,
                            &mut edges,
                            &writers,
                            last,
                            (t, *key),
                            seen,
                            own,
                        );
                    }
                    for key in range.clone() {
                        if found.iter().any(|(k, _)| *k == key) {
                            continue;
                        }
                        if own.contains_key(&key) {
                            report.note(Anomaly::Internal, &[t]);
                        }
                        let first = last.get(&key).and_then(|l| l.first());
                        if let Some(next) = first.and_then(writer).filter(|&n| n != t) {
                            edges.insert((t, next, Kind::Phantom));
                        }
                    }
                }
            }
        }
    }
    for &(_, _, kind) in &edges {
        report.edges[kind as usize] += 1;
    }
    find_cycles(&mut report, &mut edges, txns);
    report
}

/// Who appended an element, and whether that is to be seen by others.
fn writers(txns: &[Txn]) -> BTreeMap<Element, (usize, bool)> {
    let mut writers = BTreeMap::new();
    for (t, txn) in txns.iter().enumerate() {
        for op in &txn.ops {
            if let Op::Append(_, e) = op {
                writers.insert(*e, (t, txn.committed));
            }
        }
        writers.extend(txn.undone.iter().map(|&e| (e, (t, false))));
    }
    writers
}

/// One read of a committed transaction that had appended `own` to the list.
fn read(
    report: &mut Report,
    edges: &mut Edges,
    writers: &BTreeMap<Element, (usize, bool)>,
    last: &BTreeMap<Key, Vec<Element>>,
    (t, key): (usize, Key),
    seen: &[Element],
    own: &[Element],
) {
    let Some(seen) = seen.strip_suffix(own) else {
        return report.note(Anomaly::Internal, &[t]);
    };
    let versions = last.get(&key).map_or(&[][..], |l| l);
    for e in seen {
        match writers.get(e) {
            Some(&(w, _)) if w == t => report.note(Anomaly::Internal, &[t]),
            Some((_, true)) => {}
            Some(&(w, false)) => report.note(Anomaly::G1a, &[w, t]),
            None => report.note(Anomaly::G1a, &[t]),
        }
    }
    let writer = |e: &Element| writers.get(e).map(|&(w, _)| w);
    let same = seen
        .iter()
        .zip(versions)
        .take_while(|(a, b)| a == b)
        .count();
    if same < seen.len() {
        // Seen, and gone later: written over by one that had not seen it.
        report.note(Anomaly::LostUpdate, &[t]);
    }
    let before = seen.last().and_then(writer);
    let next = versions.get(same).and_then(writer);
    if let Some(w) = before.filter(|&w| w != t) {
        edges.insert((w, t, Kind::Wr));
        if same == seen.len() && next == before {
            report.note(Anomaly::G1b, &[w, t]);
        }
    }
    if let Some(n) = next.filter(|&n| n != t) {
        edges.insert((t, n, Kind::Rw));
        if versions[same..].iter().any(|e| writer(e) == Some(t)) {
            report.note(Anomaly::LostUpdate, &[t, n]);
        }
    }
}

fn find_cycles(report: &mut Report, edges: &mut Edges, txns: &[Txn]) {
    use Kind::{Phantom, Rw, Time, Wr, Ww};
    let n = txns.len();
    in_cycles(report, n, edges, &[Ww], &[Ww], Anomaly::G0);
    in_cycles(report, n, edges, &[Ww, Wr], &[Wr], Anomaly::G1c);
    in_cycles(report, n, edges, &[Ww, Wr, Rw], &[Rw], Anomaly::G2Item);
    in_cycles(
        report,
        n,
        edges,
        &[Ww, Wr, Rw, Phantom],
        &[Phantom],
        Anomaly::G2,
    );
    let is_rw = |kind: Kind| matches!(kind, Rw | Phantom);
    // Cycles with one rw: back from its end by dependencies alone.
    let next = adjacency(n, edges.iter().filter(|e| !is_rw(e.2)).map(|e| (e.0, e.1)));
    let all = adjacency(n, edges.iter().map(|e| (e.0, e.1)));
    let component = components(&all);
    for &(u, v, kind) in edges.iter() {
        if is_rw(kind) && component[u] == component[v] && reaches(&next, v, u) {
            report.note(Anomaly::GSingle, &[u, v]);
        }
    }
    note_si(report, n, edges, Anomaly::GSi);
    let had = report.has(Anomaly::GSi);
    let is_serial = !report.has(Anomaly::G2Item) && !report.has(Anomaly::G2);
    let nodes = add_time(edges, txns);
    if !had {
        note_si(report, nodes, edges, Anomaly::Stale);
    }
    if is_serial {
        in_cycles(
            report,
            nodes,
            edges,
            &[Ww, Wr, Rw, Phantom, Time],
            &[Time],
            Anomaly::NotStrict,
        );
    }
}

/// A node for each moment, chained; an end leads to its moment, a moment to who begins then.
fn add_time(edges: &mut Edges, txns: &[Txn]) -> usize {
    let mut moments = Vec::new();
    for (t, txn) in txns.iter().enumerate().filter(|(_, t)| t.committed) {
        moments.push((txn.began, t, true));
        moments.push((txn.ended, t, false));
    }
    moments.sort_unstable();
    for (i, &(_, t, is_begin)) in moments.iter().enumerate() {
        let moment = txns.len() + i;
        edges.insert(match is_begin {
            true => (moment, t, Kind::Time),
            false => (t, moment, Kind::Time),
        });
        if i + 1 < moments.len() {
            edges.insert((moment, moment + 1, Kind::Time));
        }
    }
    txns.len() + moments.len()
}

/// Notes each edge of `wanted` that is part of a cycle of `of`.
fn in_cycles(
    report: &mut Report,
    nodes: usize,
    edges: &Edges,
    of: &[Kind],
    wanted: &[Kind],
    anomaly: Anomaly,
) {
    let of = edges.iter().filter(|e| of.contains(&e.2));
    let component = components(&adjacency(nodes, of.map(|e| (e.0, e.1))));
    for &(u, v, kind) in edges {
        if wanted.contains(&kind) && component[u] == component[v] {
            report.note(anomaly, &[u, v]);
        }
    }
}

fn note_si(report: &mut Report, nodes: usize, edges: &Edges, anomaly: Anomaly) {
    let is_rw = |kind: Kind| matches!(kind, Kind::Rw | Kind::Phantom);
    let rw = adjacency(
        nodes,
        edges.iter().filter(|e| is_rw(e.2)).map(|e| (e.0, e.1)),
    );
    let mut both = Vec::new();
    for &(u, v, _) in edges.iter().filter(|e| !is_rw(e.2)) {
        both.push((u, v));
        both.extend(rw[v].iter().map(|&w| (u, w)));
    }
    let component = components(&adjacency(nodes, both.iter().copied()));
    for (u, v) in both {
        if component[u] == component[v] {
            report.note(anomaly, &[u, v]);
        }
    }
}

fn adjacency(nodes: usize, edges: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let mut next = vec![Vec::new(); nodes];
    for (u, v) in edges {
        next[u].push(v);
    }
    next
}

fn reaches(next: &[Vec<usize>], from: usize, to: usize) -> bool {
    let mut seen = vec![false; next.len()];
    let mut open = vec![from];
    while let Some(u) = open.pop() {
        if u == to {
            return true;
        }
        if !std::mem::replace(&mut seen[u], true) {
            open.extend(&next[u]);
        }
    }
    false
}

/// The strongly connected component of each node: in the order of their ends, from each against the edges.
fn components(next: &[Vec<usize>]) -> Vec<usize> {
    let n = next.len();
    let (mut seen, mut ended) = (vec![false; n], Vec::with_capacity(n));
    for root in 0..n {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some((u, i)) = path.last_mut() {
            let Some(&v) = next[*u].get(*i) else {
                ended.push(*u);
                path.pop();
                continue;
            };
            *i += 1;
            if !std::mem::replace(&mut seen[v], true) {
                path.push((v, 0));
            }
        }
    }
    let back = adjacency(n, (0..n).flat_map(|u| next[u].iter().map(move |&v| (v, u))));
    let mut component = vec![usize::MAX; n];
    for &root in ended.iter().rev() {
        let mut open = vec![root];
        while let Some(u) = open.pop() {
            if component[u] == usize::MAX {
                component[u] = root;
                open.extend(&back[u]);
            }
        }
    }
    component
}
