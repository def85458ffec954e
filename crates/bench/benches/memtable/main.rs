//! Ordered maps in memory side by side: the trie, a skip list with RocksDB's layout, crossbeam's skip
//! list, and memtables over the guided list and the trie. `cargo x bench memtable` runs it.
//!
//! Each round gives every contender a turn at each phase with the same random keys, and values in memtables; a figure is the
//! median of the rounds, with the smallest and the largest beside it. Keys are made from their
//! number when they are needed, so that only the maps miss caches.
//!
//! Phases: insert, get (keys that are there, in another order), miss (keys that are not), scan, insert by two threads.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of the terminal that measures time"
)]

mod batches;
mod contenders;
mod counted;
mod skip_list;

use std::time::Instant;

use contenders::{Contender, KINDS};

#[global_allocator]
static ALLOCATOR: counted::Counted = counted::Counted;

const HELP: &str = "
usage: cargo x bench memtable [--num N] [--rounds N] [--keys 16,40] [--values N] [--only A,B] [--no-pairs]
       cargo x bench memtable --batches [--rounds N]

  --num N       keys (default 10000000)
  --rounds N    rounds (default 3)
  --keys A,B    lengths of keys: random ones of 16 and 40 bytes, 41 for 40 bytes of which 24 are common, 17 for rising ones of 16 (default 16,40)
  --values N    bytes of values in memtables (default 0)
  --only A,B    contenders: trie, trie-ref (a cell of 4 bytes), skip-list, crossbeam, and the memtables guided-list, trie-memtable
  --no-pairs    without the phase of two threads
  --batches     small maps of one owner instead, which are filled and emptied many times
";

/// A bijection of 64 bits: splitmix64's.
#[inline]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// What keys look like.
#[derive(Clone, Copy)]
struct Keys {
    len: usize,
    /// Bytes that all begin with.
    common: usize,
    /// They begin with their numbers, and end as `db_bench` has them end.
    is_rising: bool,
}

impl Keys {
    fn of(number: usize) -> Option<Self> {
        match number {
            16 | 40 => Some(Self {
                len: number,
                common: 0,
                is_rising: false,
            }),
            17 => Some(Self {
                len: 16,
                common: 0,
                is_rising: true,
            }),
            41 => Some(Self {
                len: 40,
                common: 24,
                is_rising: false,
            }),
            _ => None,
        }
    }

    /// The key with a number.
    #[inline]
    fn make(self, number: u64, key: &mut [u8; 40]) -> &[u8] {
        if self.is_rising {
            key[..8].copy_from_slice(&number.to_be_bytes());
            key[8..self.len].fill(b'0');
            return &key[..self.len];
        }
        let mut state = mix(number);
        for chunk in key[self.common..self.len].chunks_mut(8) {
            chunk.copy_from_slice(&state.to_be_bytes()[..chunk.len()]);
            state = mix(state ^ number);
        }
        &key[..self.len]
    }
}

/// Nanoseconds for each of `count` operations of `body`.
fn time(count: u64, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / count as f64
}

struct Options {
    num: u64,
    rounds: usize,
    keys: Vec<usize>,
    values: usize,
    only: Vec<String>,
    pairs: bool,
    batches: bool,
}

fn parse() -> Result<Options, String> {
    let mut options = Options {
        num: 10_000_000,
        rounds: 3,
        keys: vec![16, 40],
        values: 0,
        only: KINDS.iter().map(|k| (*k).to_owned()).collect(),
        pairs: true,
        batches: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| -> Result<u64, String> {
            text.parse()
                .map_err(|_| format!("`{text}` is not a number"))
        };
        match arg.as_str() {
            "--num" => options.num = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)? as usize,
            "--keys" => {
                let list = value()?;
                let list = list.split(',').map(|n| number(n.to_owned()));
                options.keys = list
                    .map(|n| n.map(|n| n as usize))
                    .collect::<Result<_, _>>()?;
            }
            "--values" => options.values = number(value()?)? as usize,
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--no-pairs" => options.pairs = false,
            "--batches" => options.batches = true,
            // What cargo says to benches.
            "--bench" => {}
            "--help" => return Err(HELP.to_owned()),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    if options.num == 0 || options.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    if let Some(name) = options.only.iter().find(|n| !KINDS.contains(&n.as_str())) {
        return Err(format!("no contender `{name}`"));
    }
    Ok(options)
}

const PHASES: [&str; 5] = ["insert", "get", "miss", "scan", "insert-2t"];

/// One turn of a contender: nanoseconds of each phase, and bytes of a key.
fn turn(kind: &str, keys: Keys, options: &Options) -> ([f64; PHASES.len()], f64) {
    let num = options.num;
    let mut figures = [f64::NAN; PHASES.len()];
    let before = counted::bytes();
    let map = Contender::new(kind, num, keys.len, options.values);
    figures[0] = time(num, || {
        map.insert_all(0..num, keys);
    });
    let bytes = map.bytes(before) as f64 / num as f64;
    // A prime: an order in which each key comes once, unless it divides their number.
    let other = |i: u64| (u128::from(i) * 6_700_417 % u128::from(num)) as u64;
    figures[1] = time(num, || {
        let mut buffer = [b'.'; 40];
        let found = (0..num)
            .filter(|&i| map.get(keys.make(other(i), &mut buffer)))
            .count();
        assert_eq!(found as u64, num, "all are there");
    });
    figures[2] = time(num, || {
        let mut buffer = [b'.'; 40];
        let found = (0..num)
            .filter(|&i| map.get(keys.make(num + i, &mut buffer)))
            .count();
        assert_eq!(found, 0, "none is there");
    });
    figures[3] = time(num, || assert_eq!(map.scan(), num, "all are told"));
    drop(map);
    if options.pairs {
        let map = Contender::new(kind, num, keys.len, options.values);
        figures[4] = time(num, || {
            std::thread::scope(|scope| {
                for half in 0..2 {
                    let map = &map;
                    scope.spawn(move || {
                        map.insert_all((0..num).filter(|i| i % 2 == half), keys);
                    });
                }
            });
        });
    }
    (figures, bytes)
}

fn median(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let last = figures.len() - 1;
    (figures[last / 2], figures[0], figures[last])
}

fn measure(options: &Options, keys: Keys) {
    println!(
        "{} keys of {} bytes, {} of them common; ns an operation: median (smallest..largest); x: times skip-list",
        options.num, keys.len, keys.common
    );
    let mut turns: Vec<Vec<([f64; PHASES.len()], f64)>> = vec![Vec::new(); options.only.len()];
    for round in 0..options.rounds {
        for i in 0..options.only.len() {
            let i = (i + round) % options.only.len();
            eprintln!("round {} {}", round + 1, options.only[i]);
            turns[i].push(turn(&options.only[i], keys, options));
        }
    }
    let base = options.only.iter().position(|name| name == "skip-list");
    print!("{:<14}", "");
    for phase in PHASES {
        print!("{phase:>28}");
    }
    println!("{:>16}", "bytes a key");
    for (i, name) in options.only.iter().enumerate() {
        print!("{name:<14}");
        for phase in 0..PHASES.len() {
            let (mid, low, high) = median(turns[i].iter().map(|t| t.0[phase]).collect());
            let ratio = base.map_or(f64::NAN, |base| {
                let pairs = turns[i].iter().zip(&turns[base]);
                median(pairs.map(|(a, b)| b.0[phase] / a.0[phase]).collect()).0
            });
            let text = format!("{mid:.0} ({low:.0}..{high:.0}) {ratio:.2}x");
            print!("{text:>28}");
        }
        let bytes = turns[i][0].1;
        let part = base.map_or(f64::NAN, |base| bytes / turns[base][0].1);
        println!("{:>16}", format!("{bytes:.1} {part:.2}x"));
    }
}

fn main() {
    let options = match parse() {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
    };
    if options.batches {
        return batches::measure(options.rounds);
    }
    for &number in &options.keys {
        let Some(keys) = Keys::of(number) else {
            eprintln!("keys are of 16, 17, 40 or 41");
            std::process::exit(1);
        };
        measure(&options, keys);
    }
}
