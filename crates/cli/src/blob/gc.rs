//! `orogen blob gc`: brings the space of dead values back.

use orogen::{CollectBlobGarbageOptions, Db};
use orogen_engine::filename;
use orogen_env::{Clock as _, FileSystem, SystemClock};
use serde_json::{Value, json};

use super::on_disk;
use crate::failure::{Failure, after_help_of_rewriter};
use crate::open::{self, Dir, Families};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help_of_rewriter!(
    "orogen blob gc ./quarry",
    "orogen blob gc ./quarry --column-family rocks --discardable-ratio 0.2 --merge-small"
))]
pub(crate) struct GcArgs {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    families: Families,
    /// Empty files of which so much is garbage, from 0 to 1: their live values go to new files.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    discardable_ratio: f64,
    /// Merge small files, too.
    #[arg(long)]
    merge_small: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}

/// What blob files there are.
struct Found {
    files: u64,
    live: u64,
    garbage: u64,
    /// Bytes of dead values that were given up as holes.
    given_up: u64,
    disk: u64,
}

impl Found {
    fn of(db: &Db, fs: &dyn FileSystem, dir: &Dir) -> Result<Self, Failure> {
        let files = db.live_blob_files();
        let garbage = files.iter().map(|f| f.garbage_blob_bytes).sum();
        let mut found = Self {
            files: files.len() as u64,
            live: files.iter().map(|f| f.total_blob_bytes).sum::<u64>() - garbage,
            garbage,
            given_up: files.iter().filter_map(|f| f.given_up_bytes).sum(),
            disk: 0,
        };
        for file in &files {
            let disk = on_disk(fs, &filename::blob_path(&dir.path, file.number))?;
            found.disk += disk.map_or(0, |d| d.1);
        }
        Ok(found)
    }

    fn to_json(&self) -> Value {
        json!({
            "blob_files": self.files,
            "live_bytes": self.live,
            "garbage_bytes": self.garbage,
            "given_up_bytes": self.given_up,
            "disk_bytes": self.disk,
        })
    }

    fn to_text(&self) -> String {
        format!(
            "{}: live {}, garbage {} (given up {}), on disk {}",
            text::plural(self.files, "blob file"),
            text::size(self.live),
            text::size(self.garbage),
            text::size(self.given_up),
            text::size(self.disk)
        )
    }
}

pub(super) fn run(args: &GcArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let fs = orogen::Options::default().db.fs;
    let db = open::read_write_as_set(&args.dir.path, terminal)?;
    let options = CollectBlobGarbageOptions {
        discardable_ratio: args.discardable_ratio,
        merge_small_files: args.merge_small,
    };
    let before = Found::of(&db, &*fs, &args.dir)?;
    let start = SystemClock.now_micros();
    args.families.work(&db, terminal, "collecting", |family| {
        db.collect_blob_garbage_async(&options, family)
    })?;
    // What nobody asked for may be due, too.
    db.wait_for_background_work()?;
    let after = Found::of(&db, &*fs, &args.dir)?;
    let given_back = before.disk.saturating_sub(after.disk);
    let took = SystemClock.now_micros() - start;
    db.close()?;
    if terminal.json {
        terminal.document(&json!({
            "path": args.dir.path.display().to_string(),
            "before": before.to_json(),
            "after": after.to_json(),
            "given_back_bytes": given_back,
            "micros": took,
        }))?;
    } else {
        terminal.change(&before.to_text(), &after.to_text(), took)?;
        terminal.line(&format!("given back {}", text::size(given_back)))?;
    }
    Ok(())
}
