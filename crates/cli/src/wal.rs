//! `orogen wal`: a write-ahead log file.

use std::path::PathBuf;

use clap::Subcommand;
use orogen::{ErrorKind, Options};
use orogen_engine::batch::{BatchOp, BatchReader};
use orogen_engine::filename::{self, FileKind};
use orogen_env::Access;
use orogen_wal::format::{HEADER_LEN, RECYCLABLE_HEADER_LEN, may_begin_log};
use orogen_wal::{Damage, ReadOutcome, Reader};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on a log file.
#[derive(Subcommand)]
pub(crate) enum WalCommand {
    /// List records and the operations in them.
    Dump(DumpArgs),
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen wal dump ./quarry/000007.log",
    "orogen wal dump ./quarry/000007.log --records-only --limit 100"
))]
pub(crate) struct DumpArgs {
    /// Log file.
    file: PathBuf,
    /// Number of the log, where its name does not tell.
    #[arg(long, value_name = "N")]
    number: Option<u64>,
    /// Without the operations.
    #[arg(long)]
    records_only: bool,
    /// Print values of any length whole.
    #[arg(long)]
    whole_values: bool,
    /// At most so many records.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Characters of a value that are printed unless more are asked for.
const VALUE_WIDTH: usize = 64;

pub(crate) fn run(command: WalCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    let WalCommand::Dump(args) = command;
    let name = args
        .file
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let number = match (args.number, filename::parse(name)) {
        (Some(number), _) | (None, Some(FileKind::Wal(number))) => number,
        _ => {
            return Err(Failure::Usage(format!(
                "'{name}' is no log's name; give --number"
            )));
        }
    };
    let fs = Options::default().db.fs;
    let file = fs.open(&args.file, Access::Sequential)?;
    let mut header = [0; RECYCLABLE_HEADER_LEN];
    let len = file.read_at(0, &mut header)?;
    let may_be_log = may_begin_log(&header[..len]);
    let mut reader = Reader::new(file, number)?;
    if terminal.json {
        terminal.begin_items("[", "]\n")?;
    }
    let mut record = Vec::new();
    let (mut records, mut operations, mut damages) = (0u64, 0u64, 0u64);
    // Records that are whole, but of a kind that is not read here.
    let mut unread = None;
    while records < args.limit.unwrap_or(u64::MAX) {
        match reader.read_record(&mut record)? {
            ReadOutcome::Record { offset } => {
                records += 1;
                match print_record(&args, terminal, offset, &record) {
                    Ok(count) => operations += u64::from(count),
                    Err(Failure::Engine(e)) if e.kind() == ErrorKind::NotSupported => {
                        unread.get_or_insert_with(|| e.with("offset", offset));
                    }
                    Err(Failure::Engine(e)) => {
                        damages += 1;
                        terminal.note(&e.with("offset", offset).to_string());
                    }
                    Err(other) => return Err(other),
                }
            }
            ReadOutcome::Damage(damage) => {
                damages += u64::from(!damage.is_tail);
                print_damage(terminal, &damage)?;
            }
            ReadOutcome::EndOfLog { .. } => break,
        }
    }
    if terminal.json {
        terminal.end_items("]\n")?;
    } else {
        terminal.note(&format!(
            "{}, {}",
            text::plural(records, "record"),
            text::plural(operations, "operation")
        ));
    }
    if reader.valid_until() == 0 && reader.ends_before_old_record() {
        let stored = u32::from_le_bytes(std::array::from_fn(|i| header[HEADER_LEN + i]));
        terminal.note(&format!(
            "orogen: what stands here is of log {stored}, whose file this was before it was log {number}; --number {stored} shows it"
        ));
    }
    match damages {
        0 if reader.valid_until() == 0 && !may_be_log => {
            let file = args.file.display();
            Err(Failure::Damaged(format!("{file} is no log")))
        }
        0 => unread.map_or(Ok(()), |e| Err(e.into())),
        n => {
            if let Some(e) = unread {
                terminal.note(&format!("not read: {e}"));
            }
            let file = args.file.display();
            Err(Failure::Damaged(format!(
                "{} in {file}",
                text::plural(n, "damaged record")
            )))
        }
    }
}

fn print_damage(terminal: &mut Terminal, damage: &Damage) -> Result<(), Failure> {
    if terminal.json {
        terminal.item(&json!({
            "offset": damage.offset,
            "damage": damage.reason.name(),
            "bytes_dropped": damage.bytes_dropped,
            "torn_tail": damage.is_tail,
        }))?;
        return Ok(());
    }
    let what = if damage.is_tail {
        "torn tail"
    } else {
        "damage"
    };
    let line = format!(
        "{:>10}  {what}: {}, {} bytes dropped",
        damage.offset,
        damage.reason.name(),
        damage.bytes_dropped
    );
    Ok(terminal.line(&terminal.ink(Ink::Bad, &line))?)
}

fn print_record(
    args: &DumpArgs,
    terminal: &mut Terminal,
    offset: u64,
    record: &[u8],
) -> Result<u32, Failure> {
    let batch = BatchReader::new(record)?;
    if terminal.json {
        let mut item = json!({
            "offset": offset,
            "sequence_number": batch.seqno,
            "count": batch.count,
            "bytes": record.len(),
        });
        if !args.records_only {
            let operations = batch
                .iter()
                .map(|op| op.map(|op| operation_json(terminal, &op)))
                .collect::<orogen::Result<Vec<Value>>>()?;
            item["operations"] = operations.into();
        }
        terminal.item(&item)?;
    } else {
        terminal.line(&format!(
            "{offset:>10}  sequence {} count {} bytes {}",
            batch.seqno,
            batch.count,
            record.len()
        ))?;
        if !args.records_only {
            for op in batch.iter() {
                let line = operation_text(args.whole_values, terminal, &op?);
                terminal.line(&format!("            {line}"))?;
            }
        }
    }
    batch.check()?;
    Ok(batch.count)
}

/// An operation as a line.
pub(crate) fn operation_text(whole_values: bool, terminal: &Terminal, op: &BatchOp<'_>) -> String {
    let value = |bytes: &[u8]| {
        let shown = terminal.show(bytes);
        if whole_values {
            shown
        } else {
            text::shorten(&shown, VALUE_WIDTH)
        }
    };
    let key = |bytes: &[u8]| terminal.show(bytes);
    match op {
        BatchOp::Put {
            cf,
            key: k,
            value: v,
        } => format!("put cf={cf} {}\t{}", key(k), value(v)),
        BatchOp::Merge {
            cf,
            key: k,
            operand,
        } => {
            format!("merge cf={cf} {}\t{}", key(k), value(operand))
        }
        BatchOp::Delete { cf, key: k } => format!("delete cf={cf} {}", key(k)),
        BatchOp::SingleDelete { cf, key: k } => format!("single_delete cf={cf} {}", key(k)),
        BatchOp::DeleteRange { cf, start, end } => {
            format!("delete_range cf={cf} {}\t{}", key(start), key(end))
        }
        BatchOp::LogData(bytes) => format!("log_data {}", value(bytes)),
        BatchOp::BeginPrepare => "begin_prepare".to_owned(),
        BatchOp::EndPrepare { name } => format!("end_prepare {}", key(name)),
        BatchOp::Commit { name } => format!("commit {}", key(name)),
        BatchOp::Rollback { name } => format!("rollback {}", key(name)),
    }
}

/// An operation as JSON.
pub(crate) fn operation_json(terminal: &Terminal, op: &BatchOp<'_>) -> Value {
    let show = |bytes: &[u8]| terminal.show(bytes);
    match op {
        BatchOp::Put { cf, key, value } => {
            json!({ "operation": "put", "column_family": cf, "key": show(key), "value": show(value) })
        }
        BatchOp::Merge { cf, key, operand } => json!({
            "operation": "merge", "column_family": cf, "key": show(key), "operand": show(operand),
        }),
        BatchOp::Delete { cf, key } => {
            json!({ "operation": "delete", "column_family": cf, "key": show(key) })
        }
        BatchOp::SingleDelete { cf, key } => {
            json!({ "operation": "single_delete", "column_family": cf, "key": show(key) })
        }
        BatchOp::DeleteRange { cf, start, end } => json!({
            "operation": "delete_range", "column_family": cf,
            "start": show(start), "end": show(end),
        }),
        BatchOp::LogData(bytes) => json!({ "operation": "log_data", "data": show(bytes) }),
        BatchOp::BeginPrepare => json!({ "operation": "begin_prepare" }),
        BatchOp::EndPrepare { name } => json!({ "operation": "end_prepare", "name": show(name) }),
        BatchOp::Commit { name } => json!({ "operation": "commit", "name": show(name) }),
        BatchOp::Rollback { name } => json!({ "operation": "rollback", "name": show(name) }),
    }
}
