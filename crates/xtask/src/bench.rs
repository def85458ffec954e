//! `cargo x bench`: Orogen and other engines in turn, in one run. `peers` measures small values,
//! `blob` and `gc` large ones, `txn` transactions, `memtable` ordered maps in memory, `raftlog` logs of Raft groups.
//!
//! Machines are noisy, so no figure of one run is compared with one of another: the engines run
//! the same workloads one after the other, in an order that changes from pair to pair, and a
//! workload's result is the median of the pairs' ratios with the smallest and the largest beside
//! it.

mod figures;
mod db_bench;
mod programs;
mod plan;
mod engines;
mod report;
mod large;
mod memtable;
mod raft_logs;
mod transactions;

use std::path::PathBuf;

pub(crate) const HELP: &str = "
usage: cargo x bench peers | blob | gc | txn | memtable | raftlog, with options

Small values:

usage: cargo x bench peers [--against db_bench] [--pairs N] [--num N] [--reads N]
                           [--threads A,B] [--dir DIR] [--json FILE]
       cargo x bench peers --against rocksdb,fjall,pebble [--pairs N] [--num N] [--reads N]
                           [--only A,B] [--dir DIR] [--json FILE]

Against db_bench, the default: runs `orogen bench` and Debian's `db_bench` in turn with the same
flags. That program is built with assertions on, which flatters us: a quick check.

Against one or more of rocksdb, fjall and pebble: builds the newest release of each, in peers/,
and runs one process for each engine and group of phases. The first build of RocksDB takes half
an hour of one core; it needs a C++ compiler and libclang, and Pebble needs Go.

Both: 16-byte keys, 100-byte values that compress to half, LZ4 (Pebble: Snappy), WAL on, 64 MiB
write buffer, 256 MiB block cache, 10-bit Bloom filter. Printed are medians, and the median,
smallest and largest ratio of a pair; above 1, Orogen is faster.

  --against A,B  db_bench, or any of rocksdb, fjall, pebble
  --pairs N      pairs (default 5)
  --num N        keys (default 10000000; against db_bench 2000000 for each thread)
  --reads N      point reads of a phase, and four times its seeks (default 1000000; against
                 db_bench for each thread, as --num)
  --only A,B     phases to measure; what they need beforehand is run too
  --threads A,B  numbers of threads, against db_bench only (default 1,2)
  --dir DIR      where the databases are made (default target/bench-peers); what DIR/db holds
                 is deleted
  --json FILE    the figures as JSON too, written anew after each pair

Phases: fillseq readseq readreverse fillrandom readrandom readrandom-2t readmissing
multireadrandom seekrandom overwrite readwhilewriting fillrandom-2t fillbatch syncput-1t
syncput-4t syncput-16t reopen.

Large values:

usage: cargo x bench blob [--gib X] [--sizes A,B] [--settings A,B] [--engines A,B] [--phases A,B]
                          [--pairs N] [--reads N] [--update-factor X] [--memory-mib N]
                          [--rate-mib N] [--recycled-logs N] [--mmap-reads] [--write-buffer-mib N]
                          [--min-blob-size N]
                          [--force-threshold X] [--max-space-amp X] [--dir DIR]
                          [--json FILE] [--markdown FILE]
       cargo x bench gc   the same but for --phases and --reads

`blob` compares values in files of their own with values in the tree: loads, reads, updates and
deletes half, under three settings. `gc` only updates, and compares ways of getting the space of
dead values back; each is run without collecting too, for what it costs the foreground. Ratios are
to rocksdb and to rocksdb-blob. A candidate that cannot do what is asked for is left out, and the
output says so.

  --gib X            user data of a cell (default 2; gc: 1)
  --sizes A,B        lengths of values in KiB (default 1,2,4,8,16,32; gc: 1,4,16,64,256,512)
  --settings A,B     memory: all files fit the page cache
                     cold: processes begin with cold pages and have memory for a quarter of the data
                     disk: flush, compaction and collection together write so many MiB/s
                     (default all three; gc: memory)
  --engines A,B      blob: orogen-blob, orogen, rocksdb, rocksdb-blob, and if it is named orogen-calls, which reads
                     nothing out of mappings; gc: orogen-auto,
                     orogen-move, orogen-punch, rocksdb-blob, orogen-off, rocksdb-off (default all)
  --phases A,B       load get scan100 scan10000 update delete; load always runs
  --pairs N          pairs (default 3)
  --reads N          gets of a cell, and half the entries of its scans (default: as many as keys,
                     20000 to 500000)
  --update-factor X  updates for each key (default 3; gc: 4)
  --memory-mib N     block cache and pages of the setting cold (default a quarter of the data)
  --rate-mib N       the bound of the setting disk (default 64)
  --recycled-logs N  logs that each engine keeps to write over (default 2)
  --mmap-reads       each engine reads its files out of mappings (allow_mmap_reads)
  --write-buffer-mib N  a memtable and a table file of each engine, a quarter of its level 1
                     (default 64: RocksDB's); an eighth shapes the tree as eight times the data do
  --min-blob-size N  bytes from which values are kept apart (default 512)
  --max-space-amp X  Orogen's max_space_amp (default 0: no bound)
  --force-threshold X  RocksDB's blob_garbage_collection_force_threshold (default 1, its own: never)
  --dir DIR          as above; it needs the space that is told before the run begins
  --json FILE, --markdown FILE  the figures, written anew after each cell

Transactions:

usage: cargo x bench txn [--pairs N] [--num N] [--only A,B] [--no-batches] [--dir DIR] [--json FILE]

Indexed batches beside such with a skip list for an index; then Orogen's TransactionDb and OptimisticTransactionDb beside
RocksDB's: ten puts under locks, rolled back or committed, with any keys or ten of two hundred, by 1 and 8
threads; and large transactions that are read back, without locks. Transactions a second, and times RocksDB.

  --pairs N      pairs (default 5)
  --num N        transactions of ten puts in a phase; larger ones are as many fewer (default 200000)
  --only A,B     locks-1t locks-8t locks-hot-1t locks-hot-8t commit-1t commit-8t commit-hot-1t commit-hot-8t
                 batch-10 batch-100 batch-10000, of batches alone index-10 index-100 index-10000 that are read and
                 fill-10 fill-100 fill-10000 that are not (default all)
  --no-batches   without the batches alone
  --dir DIR      where the databases are made (default target/bench-txn); what DIR/db holds is deleted
  --json FILE    the figures as JSON too

Ordered maps in memory:

usage: cargo x bench memtable [--num N] [--rounds N] [--keys 16,40,41] [--only A,B] [--no-pairs]
       cargo x bench memtable --batches [--rounds N]

Compares the trie, a plain skip list with RocksDB's layout, crossbeam's skip list and the guided list of
memtables, with random keys and empty values: insert, get, get of what is missing, scan, insert by
two threads; nanoseconds, times the skip list, bytes a key.

  --num N         keys (default 10000000)
  --rounds N      turns of each map, whose median is told with the smallest and the largest (default 3)
  --keys A,B      16 or 40 random bytes, 41: 40 bytes of which 24 are common, 17: 16 bytes that rise (default 16,40)
  --only A,B      trie, trie-ref (4 bytes for each key), skip-list, crossbeam, guided-list (default all)
  --no-pairs      without two threads
  --batches       indexed write batches instead, filled and emptied many times; beside one with a skip list

Logs of Raft groups:

usage: cargo x bench raftlog [--against A,B] [--pairs N] [--seconds S] [--gib N] [--only A,B] [--dir DIR] [--json FILE]

Orogen's raft log beside the crate raft-engine: batches of one entry to 64 groups by 1, 4 and 16 threads, 256 bytes to
32 KiB, without and with syncs; filling a log, opening it, cold too, reading the last 100 entries of its groups; and
writing while old files are emptied. Operations a second and how many times raft-engine's, p99.9, growth of memory at open,
bytes that the kernel had to write, those that are written through memory included.

  --against A,B  raft-engine, rocksdb, which needs librocksdb 7.8.3 of the system (default raft-engine)
  --pairs N      pairs (default 3)
  --seconds S    of a phase of writes or reads (default 3)
  --gib N        GiB of entries that are filled in, and written while files are emptied (default 2)
  --only A,B     write-1t-256 ... write-16t-32768 sync-1t-256 ... sync-16t-32768 fill open open-cold tail purge (default all)
  --dir DIR      where the logs are made (default target/bench-raftlog); what DIR/log and DIR/kept-* hold is deleted
  --json FILE    the figures as JSON too

All end with 0 when everything was measured, whatever the figures say, and with 1 when an option
is wrong or something did not build or run.
";

/// What the command line says; `None` where it is silent.
struct Options {
    against: Vec<String>,
    pairs: usize,
    num: Option<u64>,
    reads: Option<u64>,
    only: Vec<String>,
    threads: Option<Vec<u32>>,
    dir: PathBuf,
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (what, rest) = args
        .split_first()
        .ok_or("say what: peers, blob, gc, txn, memtable or raftlog")?;
    match what.as_str() {
        "peers" => peers(rest),
        "blob" => large::run(large::Bench::Blob, rest),
        "gc" => large::run(large::Bench::Gc, rest),
        "memtable" => memtable::run(rest),
        "txn" => transactions::run(rest),
        "raftlog" => raft_logs::run(rest),
        other => Err(format!(
            "nothing to measure is called `{other}`: peers, blob, gc, txn, memtable, raftlog"
        )),
    }
}

fn peers(args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    if options.against == ["db_bench"] {
        db_bench::run(&options)
    } else {
        engines::run(&options)
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        against: vec!["db_bench".to_owned()],
        pairs: 5,
        num: None,
        reads: None,
        only: Vec::new(),
        threads: None,
        dir: crate::workspace::root().join("target/bench-peers"),
        json: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--against" => options.against = list(value()?),
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--num" => options.num = Some(number(value()?)?),
            "--reads" => options.reads = Some(number(value()?)?),
            "--only" => options.only = list(value()?),
            "--threads" => {
                let list: Result<Vec<u64>, String> = value()?.split(',').map(number).collect();
                options.threads = Some(list?.into_iter().map(|n| n as u32).collect());
            }
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    check(&options)?;
    Ok(options)
}

fn check(options: &Options) -> Result<(), String> {
    let db_bench = options.against.iter().any(|name| name == "db_bench");
    if db_bench && options.against.len() > 1 {
        return Err("db_bench is measured by itself: its workloads are others".to_owned());
    }
    if db_bench && !options.only.is_empty() {
        return Err("--only is for rocksdb, fjall and pebble".to_owned());
    }
    if !db_bench && options.threads.is_some() {
        return Err("--threads is for db_bench; other phases say it in their names".to_owned());
    }
    if let Some(name) = options
        .against
        .iter()
        .find(|name| *name != "db_bench" && programs::by_name(name).is_none())
    {
        return Err(format!(
            "no engine `{name}`: rocksdb, fjall, pebble, db_bench"
        ));
    }
    if let Some(name) = options.only.iter().find(|name| !plan::is_phase(name)) {
        return Err(format!("no phase `{name}`"));
    }
    let nothing = options.pairs == 0
        || options.num == Some(0)
        || options.threads.as_ref().is_some_and(Vec::is_empty);
    if nothing {
        return Err("there is nothing to measure".to_owned());
    }
    Ok(())
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Options, String> {
        parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn what_to_measure_must_be_said() {
        assert!(run(&[]).unwrap_err().contains("peers, blob, gc, txn,"));
        assert!(run(&["speed".to_owned()]).unwrap_err().contains("`speed`"));
    }

    #[test]
    fn options_are_read_and_what_makes_no_sense_is_refused() {
        assert_eq!(parse_line("").unwrap().against, ["db_bench"]);
        let options = parse_line("--against rocksdb,pebble --only fillseq --num 7").unwrap();
        assert_eq!(options.against, ["rocksdb", "pebble"]);
        assert_eq!((options.num, options.only.len()), (Some(7), 1));
        for (line, word) in [
            ("--against leveldb", "leveldb"),
            ("--against orogen", "orogen"),
            ("--against db_bench,fjall", "by itself"),
            ("--only fillseq", "--only"),
            ("--against fjall --threads 2", "--threads"),
            ("--against fjall --only fillsek", "fillsek"),
            ("--pairs 0", "nothing"),
            ("--num x", "number"),
            ("--json", "value"),
        ] {
            let error = parse_line(line).err().unwrap();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
