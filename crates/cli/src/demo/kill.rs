//! A writer in a process of its own is killed in the middle, and what it told of is proven.
//!
//! ```text
//! demo                                 writer
//!   input file, first batch  ------->  for each batch: take a credit, write, say its number
//!   read numbers, give credits <---->
//!   enough: SIGKILL          ------->  gone, wherever it was
//!   read what is left in the pipe
//!   reopen, prove
//! ```
//! A batch is acknowledged when its number has gone into the pipe, which happens after the write
//! returned. Credits keep the writer from finishing before the signal comes: it may be at most
//! [`CREDITS`] batches ahead of what the demo has read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use orogen::{Options, WriteBatch, WriteOptions};
use orogen_env::fs::read_file;
use orogen_env::{Clock as _, SystemClock};
use serde_json::{Value, json};

use super::control::Records;
use super::directory::Directory;
use super::index::Model;
use super::load;
use super::proof::{self, Proof};
use super::story::Story;
use crate::failure::Failure;
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Batches that the writer may be ahead of its reader.
const CREDITS: usize = 64;
/// Every so many batches one is synced.
const SYNC_INTERVAL: usize = 32;
/// The signal that cannot be caught.
const SIGKILL: i32 = 9;

/// What the writer is started with.
#[derive(clap::Args)]
pub(crate) struct WriterArgs {
    #[arg(long)]
    db: PathBuf,
    #[arg(long)]
    input: PathBuf,
    #[arg(long)]
    from: usize,
    #[arg(long)]
    batch: usize,
}

/// The writer's life.
///
/// # Errors
/// What the database met; `Output` if the demo is gone.
pub(crate) fn run_writer(args: &WriterArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let bytes = read_file(&*Options::default().db.fs, &args.input)?;
    let records = Records::parse(&bytes);
    let db = load::open(&args.db)?;
    let families = load::families(&db)?;
    let mut batch = WriteBatch::new();
    let mut credits = std::io::stdin().lock();
    for (i, chunk) in records.list.chunks(args.batch).enumerate().skip(args.from) {
        if credits.read_exact(&mut [0]).is_err() {
            break;
        }
        load::fill(&mut batch, &families, chunk);
        let options = WriteOptions {
            sync: i.is_multiple_of(SYNC_INTERVAL),
            ..WriteOptions::default()
        };
        db.write_opt(&options, &mut batch)?;
        terminal.line(&i.to_string())?;
        terminal.flush()?;
    }
    Ok(db.close()?)
}

/// One kill and its proof.
pub(super) struct Killed {
    pub(super) acknowledged_records: u64,
    pub(super) proof: Proof,
}

/// Kills the writer `kills` times; each time it goes on where the database ends.
///
/// # Errors
/// `Damaged` if a proof fails; what the database met.
pub(super) fn run(
    story: &mut Story<'_>,
    directory: &Directory,
    records: &Records<'_>,
    batch_records: usize,
    kills: u32,
) -> Result<Vec<Killed>, Failure> {
    story.heading("A writer that is killed")?;
    let batches = records.list.len().div_ceil(batch_records);
    let (mut model, mut modelled) = (Model::default(), 0);
    let mut all = Vec::new();
    let mut facts: Vec<Value> = Vec::new();
    for n in 1..=kills as usize {
        // Each time the next part of the load, and never its last batch.
        let until = (batches * n / (kills as usize + 1)).max(modelled + 1);
        if until >= batches {
            break;
        }
        let spinner = story.terminal.spinner(&format!("kill {n}: writing"));
        let acknowledged = kill_once(directory, batch_records, modelled, until, batches)?;
        spinner.set_message(format!("kill {n}: reopening and proving"));
        let start = SystemClock.now_micros();
        let db = load::open(&directory.killed())?;
        let open_micros = SystemClock.now_micros() - start;
        let before = modelled;
        let proof = proof::prove(
            &db,
            records,
            batch_records,
            acknowledged,
            (&mut model, &mut modelled),
        )?;
        db.close()?;
        spinner.finish_and_clear();
        let acknowledged_records = (acknowledged * batch_records).min(records.list.len()) as u64;
        tell(
            story,
            n,
            acknowledged,
            open_micros,
            acknowledged_records,
            &proof,
        )?;
        facts.push(json!({
            "batches_before": before,
            "batches_acknowledged": acknowledged,
            "batches_found": proof.batches,
            "records_acknowledged": acknowledged_records,
            "entries_read_by_key": proof.point_reads,
            "entries_scanned": proof.scanned,
            "open_micros": open_micros,
        }));
        all.push(Killed {
            acknowledged_records,
            proof,
        });
    }
    if all.is_empty() {
        return Err(Failure::Failed(
            "too few records for a kill; take a smaller --batch".to_owned(),
        ));
    }
    story.fact("kills", facts.into());
    Ok(all)
}

fn tell(
    story: &mut Story<'_>,
    n: usize,
    acknowledged: usize,
    open_micros: u64,
    acknowledged_records: u64,
    proof: &Proof,
) -> Result<(), Failure> {
    let count = |n: usize| text::count(n as u64);
    story.say(&format!(
        "kill {n}: the writer had told of {} batches ({}) when it was killed; reopened in {}",
        count(acknowledged),
        text::plural(acknowledged_records, "record"),
        text::duration(open_micros)
    ))?;
    let good = story.terminal.ink(Ink::Good, "proven");
    story.say(&format!(
        "  {good}: all {} are there, each of their {} read by key and equal; {}",
        count(acknowledged),
        text::plural(proof.point_reads, "entry"),
        match proof.batches - acknowledged {
            0 => "no batch beyond".to_owned(),
            n => format!("{} beyond, whole too", text::plural(n as u64, "batch")),
        }
    ))?;
    story.say(&format!(
        "  {good}: all {} in three families scanned: no index entry without its record, no \
         record without index",
        text::plural(proof.scanned, "entry")
    ))
}

/// Starts the writer at batch `from` and kills it when it has told of batch `until - 1`; gives
/// how many batches it has told of, from the first of all.
fn kill_once(
    directory: &Directory,
    batch_records: usize,
    from: usize,
    until: usize,
    batches: usize,
) -> Result<usize, Failure> {
    let failed = |what: &str, e: std::io::Error| Failure::Failed(format!("cannot {what}: {e}"));
    let program = std::env::current_exe().map_err(|e| failed("find this program", e))?;
    let mut child = Command::new(program)
        .arg("demo-writer")
        .args(["--db".as_ref(), directory.killed().as_os_str()])
        .args(["--input".as_ref(), directory.input().as_os_str()])
        .args(["--from".to_owned(), from.to_string()])
        .args(["--batch".to_owned(), batch_records.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed("start the writer", e))?;
    let (Some(mut credits), Some(numbers)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::Failed("the writer has no pipes".to_owned()));
    };
    // The last batch is never paid for, so the writer cannot finish.
    let mut unpaid = batches - from - 1;
    let mut pay = |n: usize| {
        let n = n.min(unpaid);
        unpaid -= n;
        // A writer that is gone needs no credit; its numbers end.
        let _ = credits.write_all(&vec![1; n]);
    };
    pay(CREDITS);
    let mut acknowledged = from;
    let mut killed = false;
    let mut numbers = BufReader::new(numbers);
    let mut line = String::new();
    loop {
        line.clear();
        let n = numbers
            .read_line(&mut line)
            .map_err(|e| failed("hear the writer", e))?;
        // The line that a kill cut off is not told.
        let Some(number) = line.strip_suffix('\n').filter(|_| n > 0) else {
            break;
        };
        if number.parse() != Ok(acknowledged) {
            let _ = child.kill();
            return Err(Failure::Failed(format!(
                "the writer said '{number}' out of turn"
            )));
        }
        acknowledged += 1;
        if acknowledged < until {
            pay(1);
        } else if !killed {
            killed = true;
            child.kill().map_err(|e| failed("kill the writer", e))?;
        }
    }
    let status = child.wait().map_err(|e| failed("wait for the writer", e))?;
    if status.signal() == Some(SIGKILL) && killed {
        return Ok(acknowledged);
    }
    Err(Failure::Failed(format!(
        "the writer ended by itself: {status}"
    )))
}
