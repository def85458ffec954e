//! `orogen manifest`: the log of version edits.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use orogen::{FileSystem, Options};
use orogen_base::Error;
use orogen_base::key::user_key;
use orogen_engine::filename;
use orogen_engine::version::{ColumnFamilyChange, FileMeta, VersionEdit, manifest};
use orogen_env::Access;
use orogen_wal::{ReadOutcome, Reader};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, after_help};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on a MANIFEST.
#[derive(Subcommand)]
pub(crate) enum ManifestCommand {
    /// List the edits.
    Dump(DumpArgs),
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen manifest dump ./quarry",
    "orogen manifest dump ./quarry/MANIFEST-000005 --json"
))]
pub(crate) struct DumpArgs {
    /// Directory of a database, or a MANIFEST file.
    path: PathBuf,
}

fn manifest_path(fs: &dyn FileSystem, path: &Path) -> Result<PathBuf, Failure> {
    if !fs.metadata(path)?.is_dir {
        return Ok(path.to_owned());
    }
    if !fs.exists(&filename::current_path(path))? {
        return Err(Failure::NotFound(format!(
            "there is no database in {}",
            path.display()
        )));
    }
    Ok(filename::manifest_path(path, manifest::current(fs, path)?))
}

pub(crate) fn run(command: ManifestCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    let ManifestCommand::Dump(args) = command;
    let fs = Options::default().db.fs;
    let path = manifest_path(&*fs, &args.path)?;
    let mut reader = Reader::new(fs.open(&path, Access::Sequential)?, 0)?;
    if terminal.json {
        terminal.begin_items("[", "]\n")?;
    } else {
        terminal.line(&path.display().to_string())?;
    }
    let mut record = Vec::new();
    let mut edits = 0u64;
    loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::Record { offset } => {
                let edit = VersionEdit::decode(&record)
                    .map_err(|e| e.with("file", path.display()).with("offset", offset))?;
                print(terminal, offset, &edit)?;
                edits += 1;
            }
            ReadOutcome::Damage(d) if d.is_tail => {
                terminal.note(&format!("torn tail at offset {}", d.offset));
                if terminal.json {
                    terminal.item(&json!({ "offset": d.offset, "torn_tail": true }))?;
                }
            }
            ReadOutcome::Damage(d) => {
                let error = Error::corruption(d.reason.name())
                    .with("file", path.display())
                    .with("offset", d.offset);
                return Err(error.into());
            }
            ReadOutcome::EndOfLog { .. } => break,
        }
    }
    if terminal.json {
        terminal.end_items("]\n")?;
    } else {
        terminal.note(&text::plural(edits, "edit"));
    }
    if edits == 0 {
        let file = path.display();
        return Err(Failure::Damaged(format!("{file} has no whole edit")));
    }
    Ok(())
}

/// The fields of an edit that are plain values, in the order in which they read well.
fn fields(terminal: &Terminal, edit: &VersionEdit) -> Vec<(&'static str, Value)> {
    let mut out: Vec<(&'static str, Value)> = Vec::new();
    let mut add = |name, value: Option<Value>| out.extend(value.map(|v| (name, v)));
    match &edit.column_family_change {
        Some(ColumnFamilyChange::Add(name)) => {
            add(
                "column_family_add",
                Some(text::escape(name.as_bytes()).into()),
            );
        }
        Some(ColumnFamilyChange::Drop) => add("column_family_drop", Some(true.into())),
        None => {}
    }
    add("comparator", edit.comparator.clone().map(Value::from));
    add("db_id", edit.db_id.clone().map(Value::from));
    add("log_number", edit.log_number.map(Value::from));
    add("prev_log_number", edit.prev_log_number.map(Value::from));
    add(
        "min_log_number_to_keep",
        edit.min_log_number_to_keep.map(Value::from),
    );
    add("next_file_number", edit.next_file_number.map(Value::from));
    add("last_sequence", edit.last_sequence.map(Value::from));
    add("max_column_family", edit.max_column_family.map(Value::from));
    add(
        "atomic_group_remaining",
        edit.atomic_group_remaining.map(Value::from),
    );
    add("wal_deletion_before", edit.wal_deletion.map(Value::from));
    for wal in &edit.wal_additions {
        let value = json!({ "number": wal.number, "synced_size": wal.synced_size });
        add("wal_addition", Some(value));
    }
    for (level, key) in &edit.compact_cursors {
        let key = terminal.show(key.split_last_chunk::<8>().map_or(&key[..], |(k, _)| k));
        add(
            "compact_cursor",
            Some(json!({ "level": level, "key": key })),
        );
    }
    for blob in &edit.blob_file_additions {
        let value = json!({
            "number": blob.number,
            "values": blob.total_blob_count,
            "bytes": blob.total_blob_bytes,
            "overhead_bytes": blob.overhead_bytes,
            "checksum_method": String::from_utf8_lossy(&blob.checksum_method),
            "checksum": text::hex(&blob.checksum_value),
        });
        add("blob_file_addition", Some(value));
    }
    for garbage in &edit.blob_file_garbages {
        let value = json!({
            "number": garbage.number,
            "values": garbage.garbage_blob_count,
            "bytes": garbage.garbage_blob_bytes,
            "given_up_bytes": garbage.given_up_bytes,
        });
        add("blob_file_garbage", Some(value));
    }
    out
}

fn file_json(terminal: &Terminal, level: usize, f: &FileMeta) -> Value {
    json!({
        "level": level,
        "number": f.number,
        "bytes": f.size,
        "smallest": terminal.show(user_key(&f.smallest)),
        "largest": terminal.show(user_key(&f.largest)),
        "smallest_sequence_number": f.smallest_seqno,
        "largest_sequence_number": f.largest_seqno,
        "epoch_number": f.epoch_number,
    })
}

fn print(terminal: &mut Terminal, offset: u64, edit: &VersionEdit) -> Result<(), Failure> {
    let fields = fields(terminal, edit);
    if terminal.json {
        let mut item = Map::new();
        item.insert("offset".to_owned(), offset.into());
        item.insert("column_family".to_owned(), edit.column_family.into());
        for (name, value) in fields {
            // A field that may stand several times is a list if it does.
            match item.get_mut(name) {
                Some(Value::Array(list)) => list.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
                None => {
                    item.insert(name.to_owned(), value);
                }
            }
        }
        let added: Vec<Value> = edit
            .new_files
            .iter()
            .map(|(l, f)| file_json(terminal, *l, f))
            .collect();
        let deleted: Vec<Value> = edit
            .deleted_files
            .iter()
            .map(|(l, n)| json!({ "level": l, "number": n }))
            .collect();
        item.insert("new_files".to_owned(), added.into());
        item.insert("deleted_files".to_owned(), deleted.into());
        return Ok(terminal.item(&Value::Object(item))?);
    }
    let mut head = format!("{offset:>10}  cf={}", edit.column_family);
    for (name, value) in fields {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        head.push_str(&format!(" {name}={value}"));
    }
    terminal.line(&head)?;
    for (level, number) in &edit.deleted_files {
        let line = format!("            - L{level} {number:06}.sst");
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
    }
    for (level, f) in &edit.new_files {
        let line = format!(
            "            + L{level} {:06}.sst {} {} .. {} sequence {} to {}",
            f.number,
            text::size(f.size),
            terminal.show(user_key(&f.smallest)),
            terminal.show(user_key(&f.largest)),
            f.smallest_seqno,
            f.largest_seqno
        );
        terminal.line(&terminal.ink(Ink::Good, &line))?;
    }
    Ok(())
}
