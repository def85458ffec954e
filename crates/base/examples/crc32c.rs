//! Measures CRC-32C on this machine beside the crate that it falls back to.
//!
//! `cargo run --release -p orogen-base --example crc32c`. Both run in turns; a line has the median
//! of nanoseconds a call and its 10th and 90th percentile: calls that wait for one another, as parts of
//! one message do, then calls that do not.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that shows what it measured"
)]

use std::hint::black_box;
use std::time::Instant;

use orogen_base::checksum::crc32c_extend;

type Way = (&'static str, fn(u32, &[u8]) -> u32);

const WAYS: &[Way] = &[
    ("crc32c", |crc, data| crc32c::crc32c_append(crc, data)),
    ("orogen", |crc, data| crc32c_extend(crc, data)),
];

const LENS: [usize; 12] = [
    16,
    32,
    64,
    100,
    143,
    256,
    512,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    1 << 20,
];

const ROUNDS: usize = 301;

fn main() {
    let bytes: Vec<u8> = (0..(1 << 20) + 128)
        .map(|i: u32| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let start = bytes.as_ptr().align_offset(64);
    println!(
        "{:>8} {:>2}  {:8} {:>26} {:>26}",
        "bytes", "at", "", "waiting, ns", "not waiting, ns"
    );
    for offset in [0, 3] {
        for len in LENS {
            let data = &bytes[start + offset..][..len];
            let (waiting, free) = (measure(data, true), measure(data, false));
            for ((way, _), (waiting, free)) in WAYS.iter().zip(waiting.iter().zip(&free)) {
                println!(
                    "{len:>8} {offset:>2}  {way:8} {} {}",
                    shown(waiting),
                    shown(free)
                );
            }
        }
    }
}

/// Nanoseconds of a call, sorted, of each way.
fn measure(data: &[u8], waiting: bool) -> Vec<Vec<f64>> {
    let calls = ((32 << 10) / (data.len() + 64)).max(4);
    let mut nanos = vec![Vec::with_capacity(ROUNDS); WAYS.len()];
    for round in 0..ROUNDS {
        for turn in 0..WAYS.len() {
            let i = (round + turn) % WAYS.len();
            let way = WAYS[i].1;
            let begun = Instant::now();
            let mut crc = 1;
            for _ in 0..calls {
                let before = if waiting { crc } else { 0 };
                crc = way(black_box(before), black_box(data));
            }
            black_box(crc);
            nanos[i].push(begun.elapsed().as_nanos() as f64 / calls as f64);
        }
    }
    for nanos in &mut nanos {
        nanos.sort_by(f64::total_cmp);
    }
    nanos
}

fn shown(sorted: &[f64]) -> String {
    let at = |percent: usize| sorted[sorted.len() * percent / 100];
    format!("{:9.1} [{:6.1} {:7.1}]", at(50), at(10), at(90))
}
