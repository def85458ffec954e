//! Scripts drawn from a seed: all kinds of calls, mixed, under drawn options.
//!
//! Left out are the calls whose outcome the model of a script cannot tell beside the others:
//! dropped files beside compactions, backups of what is written without WAL, updates of logs that
//! are not archived.

use std::sync::Arc;

use orogen_base::checksum::ChecksumType;
use orogen_sst::{BlockIndex, CompressionType};
use orogen_testkit::Rng;

use super::{Writer, with_memtables};
use crate::engine::{BlobRunMode, ConvertTo, Options};
use crate::model::{Family, Op};
use crate::script::{Script, Step, small_options};

/// Before the seed in a script's name.
pub(super) const PREFIX: &str = "random-";

/// Families that come and go.
const FAMILIES: [Family; 3] = ["a", "b", "c"];
/// The family that is written without WAL, if one is.
const UNLOGGED: &[Family] = &["u"];

/// How a script is drawn to be.
#[derive(Clone, Copy)]
struct Shape {
    archive: bool,
    unlogged: bool,
}

/// The script of this seed.
#[must_use]
pub fn random(seed: u64) -> Script {
    // Scripts by hand have the small seeds.
    let mut w = Writer::new(seed.wrapping_add(1 << 32));
    let shape = Shape {
        archive: w.rng.chance(1, 6),
        unlogged: w.rng.chance(1, 6),
    };
    let mut alive = vec!["default"];
    if shape.unlogged {
        w.step(Step::Create(UNLOGGED[0]));
    }
    let mut made = Made::default();
    for _ in 0..w.rng.range(12..40) {
        draw_steps(&mut w, shape, &mut alive, &mut made);
    }
    let script = Script {
        name: format!("{PREFIX}{seed}"),
        options: Arc::new(move || options(seed, shape)),
        unlogged: if shape.unlogged { UNLOGGED } else { &[] },
        ..w.script("", small_options)
    };
    with_memtables(script, seed)
}

/// What the script has made so far.
#[derive(Default)]
struct Made {
    backups: u32,
    directories: u32,
    once: u32,
}

fn draw_steps(w: &mut Writer, shape: Shape, alive: &mut Vec<Family>, made: &mut Made) {
    let family = *w.rng.pick(alive);
    let sync_every = *w.rng.pick(&[0, 0, 1, 3, 7]);
    let n = w.rng.range(1..16);
    match w.rng.below(25) {
        0..=4 => w.puts(family, n, sync_every),
        5..=7 => {
            let families = alive.clone();
            w.batches(&families, n, sync_every);
        }
        8..=10 => mixed(w, family, n, sync_every, made),
        11 if shape.unlogged => w.unlogged(UNLOGGED[0], n * 2),
        12 => w.step(Step::SyncWal),
        13 => w.step(Step::Flush(vec![family])),
        14 => {
            let mut families = alive.clone();
            if shape.unlogged {
                families.extend(UNLOGGED);
            }
            w.step(Step::Flush(families));
        }
        15 => w.step(Step::Compact(family)),
        16 => w.step(Step::CompactPaused(family)),
        17 if w.rng.chance(2, 3) => draw_collection(w, family),
        17 => w.step(Step::CompactCancelled(family)),
        18 => {
            let new = FAMILIES.into_iter().find(|f| !alive.contains(f));
            if let Some(new) = new {
                w.step(Step::Create(new));
                alive.push(new);
            }
        }
        19 if alive.len() > 2 => {
            let at = w.rng.range(1..alive.len());
            w.step(Step::Drop(alive.swap_remove(at)));
        }
        20 if !shape.unlogged => {
            made.directories += 1;
            w.step(Step::Checkpoint(made.directories));
        }
        21 if !shape.unlogged => {
            made.backups += 1;
            w.step(Step::Backup);
            if w.rng.chance(1, 2) {
                let keep = w.rng.range(1..3);
                w.step(Step::Purge(keep));
            }
            if w.rng.chance(1, 2) {
                made.directories += 1;
                w.step(Step::Restore(made.directories));
            }
        }
        22 if shape.archive && !shape.unlogged => w.step(Step::Updates),
        23 => w.step(Step::Reopen),
        24 => w.drop_range(family),
        _ => w.step(Step::Wait),
    }
}

/// What is done about large values; where there are none it does little.
fn draw_collection(w: &mut Writer, family: Family) {
    let to = *w.rng.pick(&[ConvertTo::Separated, ConvertTo::Inline]);
    let mode = *w.rng.pick(&["kNormal", "kReadOnly", "kFallback"]);
    let step = match w.rng.below(8) {
        0..=2 => Step::Collect(family),
        3 => Step::CollectPaused(family),
        4 => Step::CollectCancelled(family),
        5 => Step::ConvertCancelled(family, to),
        _ => Step::Set(family, "blob_run_mode", mode),
    };
    w.step(step);
}

/// Operations of all kinds on one family.
fn mixed(w: &mut Writer, family: Family, n: usize, sync_every: usize, made: &mut Made) {
    for i in 1..=n {
        let (key, value) = (w.key(), w.value());
        let sync = sync_every > 0 && i % sync_every == 0;
        let op = match w.rng.below(10) {
            0 => {
                let end = w.key();
                let (from, to) = if key < end { (key, end) } else { (end, key) };
                Op::DeleteRange(family, from, to)
            }
            1 => {
                // A key of its own: the one thing that a single delete is allowed on.
                made.once += 1;
                let key = format!("once{}", made.once).into_bytes();
                w.write(vec![Op::Put(family, key.clone(), value)], false);
                Op::SingleDelete(family, key)
            }
            2 => Op::Delete(family, key),
            3..=5 => Op::Merge(family, key, value),
            _ => Op::Put(family, key, value),
        };
        w.write(vec![op], sync);
    }
}

fn options(seed: u64, shape: Shape) -> Options {
    let mut rng = Rng::new(!seed);
    let mut o = small_options();
    o.db.max_background_jobs = rng.range(1..5);
    o.db.max_subcompactions = rng.range(1..4);
    o.db.max_total_wal_size = *rng.pick(&[0, 0, 8 << 10]);
    o.db.max_manifest_file_size = *rng.pick(&[600, 1 << 30, 1 << 30]);
    o.db.allow_mmap_writes = rng.chance(1, 4);
    o.db.bytes_per_sync = *rng.pick(&[0, 0, 512]);
    if shape.archive {
        o.db.wal_ttl_seconds = 1_000_000;
    } else {
        o.db.recycle_log_file_num = *rng.pick(&[0, 2, 2]);
        o.db.avoid_flush_during_recovery = rng.chance(1, 4);
    }
    let cf = &mut o.cf;
    cf.write_buffer_size = *rng.pick(&[4 << 10, 4 << 10, 16 << 10]);
    cf.target_file_size_base = *rng.pick(&[1 << 10, 4 << 10]);
    cf.max_bytes_for_level_base = *rng.pick(&[4 << 10, 16 << 10]);
    cf.level0_file_num_compaction_trigger = rng.range(1..5);
    cf.compression = *rng.pick(&[
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ]);
    cf.paranoid_file_checks = rng.chance(1, 4);
    cf.memtable_protection_bytes_per_key = *rng.pick(&[0, 8]);
    let table = &mut cf.table;
    table.format_version = rng.range(2..7) as u32;
    table.checksum = *rng.pick(&[ChecksumType::Crc32c, ChecksumType::Xxh3]);
    table.filter_bits_per_key = *rng.pick(&[0.0, 10.0]);
    if rng.chance(1, 4) {
        table.index_type = BlockIndex::TwoLevel;
        table.metadata_block_size = 200;
    }
    let cf = &mut o.cf;
    if rng.chance(1, 2) {
        cf.enable_blob_files = true;
        cf.min_blob_size = *rng.pick(&[0, 40, 70]);
        cf.blob_file_size = *rng.pick(&[1, 1 << 10, 1 << 20]);
        cf.blob_compression_type = *rng.pick(&[CompressionType::None, CompressionType::Zstd]);
        cf.enable_blob_garbage_collection = rng.chance(1, 2);
        cf.blob_garbage_collection_age_cutoff = *rng.pick(&[0.25, 1.0]);
        cf.blob_garbage_collection_force_threshold = *rng.pick(&[1.0, 0.5]);
        cf.blob_hole_punching_threshold = 0.0;
        cf.blob_hole_punching_min_bytes = 1;
        cf.blob_file_discardable_ratio = *rng.pick(&[1.0, 0.4, 0.0]);
        cf.blob_gc_auto = rng.chance(1, 2);
        cf.max_space_amp = *rng.pick(&[0.0, 0.0, 1.2]);
        cf.min_gc_batch_size = 0;
        cf.level_merge = rng.chance(1, 3);
        cf.range_merge = rng.chance(1, 2);
        cf.max_sorted_runs = *rng.pick(&[1, 2, 4]);
        cf.blob_record_alignment = *rng.pick(&[0, 0, 64, 4096]);
        cf.blob_compression_opts.max_dict_bytes = *rng.pick(&[0, 0, 100]);
        cf.blob_run_mode = *rng.pick(&[
            BlobRunMode::Normal,
            BlobRunMode::Normal,
            BlobRunMode::ReadOnly,
            BlobRunMode::Fallback,
        ]);
        o.db.flush_halves_bytes = *rng.pick(&[0, u64::MAX]);
        o.cf.blob_file_starting_level = *rng.pick(&[0, 0, 1, 6]);
    }
    o
}
