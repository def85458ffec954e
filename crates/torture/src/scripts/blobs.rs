//! Scripts about values in blob files.

use orogen_sst::CompressionType;

use super::Writer;
use crate::engine::{ConvertTo, Options};
use crate::model::{Family, Op};
use crate::script::{Script, Step, small_options};

fn small_blobs() -> Options {
    let mut options = small_options();
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 50;
    options.cf.blob_file_size = 1 << 10;
    options.cf.blob_compression_type = CompressionType::Lz4;
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 0.5;
    options.cf.blob_garbage_collection_force_threshold = 0.5;
    options
}

/// Values in blob files: written over, compacted, moved on, checkpointed, and gone with a family.
pub(super) fn blobs() -> Script {
    let mut w = Writer::new(22);
    w.step(Step::Create("a"));
    for round in 0..3 {
        w.batches(&["default", "a"], 14, 5);
        w.step(Step::Flush(vec!["default", "a"]));
        w.puts("default", 20, 7);
        w.step(Step::Compact("default"));
        if round == 1 {
            w.step(Step::Checkpoint(0));
            w.step(Step::Drop("a"));
            w.step(Step::Create("a"));
        }
    }
    w.puts("a", 10, 3);
    w.step(Step::Reopen);
    w.puts("default", 10, 0);
    w.step(Step::Compact("default"));
    w.script("blobs", small_blobs)
}

fn holey_blobs() -> Options {
    let mut options = small_options();
    options.cf.write_buffer_size = 64 << 10;
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 50;
    options.cf.blob_file_size = 64 << 10;
    options.cf.blob_hole_punching_threshold = 0.0;
    options.cf.blob_hole_punching_min_bytes = 1;
    options
}

/// Values of several blocks, of which some are written over: space comes back inside the files.
pub(super) fn holes() -> Script {
    let mut w = Writer::new(23);
    w.step(Step::Create("a"));
    w.large(&["default", "a"], &[0, 1, 2, 3, 4]);
    w.step(Step::Flush(vec!["default", "a"]));
    w.large(&["default"], &[1, 4]);
    w.step(Step::Compact("default"));
    w.step(Step::Wait);
    w.step(Step::Checkpoint(0));
    w.large(&["default", "a"], &[0]);
    w.step(Step::Compact("default"));
    w.step(Step::Compact("a"));
    w.step(Step::Wait);
    w.step(Step::Backup);
    w.large(&["default"], &[2, 3]);
    w.step(Step::Reopen);
    w.step(Step::Compact("default"));
    w.step(Step::Wait);
    w.step(Step::Drop("a"));
    w.puts("default", 3, 2);
    w.script("holes", holey_blobs)
}

fn collected_blobs() -> Options {
    let mut options = small_blobs();
    options.cf.enable_blob_garbage_collection = false;
    options.cf.blob_garbage_collection_force_threshold = 1.0;
    options.cf.target_file_size_base = 1 << 10;
    options.cf.blob_file_discardable_ratio = 0.3;
    options.cf.min_gc_batch_size = 0;
    options
}

/// Values leave blob files with garbage, in the background and when that is asked for, beside
/// writes, compactions, checkpoints and drops.
pub(super) fn blob_gc() -> Script {
    let mut w = Writer::new(24);
    w.step(Step::Create("a"));
    for round in 0..3 {
        w.batches(&["default", "a"], 14, 5);
        w.puts("default", 25, 7);
        w.step(Step::Compact("default"));
        w.puts("default", 12, 5);
        w.step(Step::Compact("default"));
        w.step(Step::CollectCancelled("default"));
        w.step(Step::Collect("default"));
        if round == 1 {
            w.step(Step::Checkpoint(0));
            w.step(Step::Compact("a"));
            w.puts("a", 10, 0);
            w.step(Step::Compact("a"));
            w.step(Step::CollectPaused("a"));
            w.step(Step::Drop("a"));
            w.step(Step::Create("a"));
        }
        w.step(Step::Wait);
    }
    w.step(Step::Reopen);
    w.step(Step::Collect("default"));
    w.puts("default", 10, 0);
    w.step(Step::Compact("default"));
    w.step(Step::Wait);
    w.script("blob-gc", collected_blobs)
}

fn converted_blobs() -> Options {
    let mut options = small_blobs();
    options.cf.enable_blob_files = false;
    options.cf.target_file_size_base = 1 << 10;
    options.cf.level0_file_num_compaction_trigger = 4;
    options
}

/// Values go to blob files and come back, in several levels, beside writes, background compactions, checkpoints and drops.
pub(super) fn blob_convert() -> Script {
    let mut w = Writer::new(25);
    w.step(Step::Create("a"));
    for round in 0..2 {
        w.batches(&["default", "a"], 14, 5);
        w.puts("default", 25, 7);
        w.step(Step::Compact("default"));
        w.puts("default", 12, 5);
        w.step(Step::Flush(vec!["default"]));
        w.step(Step::ConvertCancelled("default", ConvertTo::Separated));
        w.step(Step::Convert("default", ConvertTo::Separated));
        w.puts("default", 14, 4);
        w.step(Step::Convert("a", ConvertTo::Separated));
        if round == 1 {
            w.step(Step::Checkpoint(0));
            w.step(Step::Drop("a"));
            w.step(Step::Create("a"));
            w.puts("a", 8, 0);
            w.step(Step::Reopen);
        }
        w.step(Step::Convert("default", ConvertTo::Inline));
        w.puts("default", 8, 3);
        w.step(Step::Convert("a", ConvertTo::Inline));
        w.step(Step::Wait);
    }
    w.puts("default", 10, 0);
    w.step(Step::Convert("default", ConvertTo::Separated));
    w.step(Step::Compact("default"));
    w.step(Step::Wait);
    w.script("blob-convert", converted_blobs)
}

fn ordered_blobs() -> Options {
    let mut options = collected_blobs();
    options.cf.blob_file_discardable_ratio = 1.0;
    options.cf.level_merge = true;
    options.cf.range_merge = true;
    options.cf.max_sorted_runs = 2;
    options.cf.max_bytes_for_level_base = 4 << 10;
    options
}

/// Values are written anew in key order by compactions, and in the background once less disorder is
/// allowed, beside writes, checkpoints and drops.
pub(super) fn blob_order() -> Script {
    let mut w = Writer::new(26);
    w.step(Step::Create("a"));
    for round in 0..3 {
        w.step(Step::Set("default", "max_sorted_runs", "20"));
        w.batches(&["default", "a"], 14, 5);
        w.puts("default", 25, 7);
        w.step(Step::Compact("default"));
        w.puts("default", 12, 5);
        w.step(Step::Flush(vec!["default"]));
        w.puts("default", 12, 5);
        w.step(Step::Compact("default"));
        w.step(Step::Set("default", "max_sorted_runs", "1"));
        w.step(Step::Wait);
        if round == 1 {
            w.step(Step::Checkpoint(0));
            w.step(Step::Compact("a"));
            w.puts("a", 10, 0);
            w.step(Step::Compact("a"));
            w.step(Step::Drop("a"));
            w.step(Step::Create("a"));
        }
    }
    w.step(Step::Reopen);
    w.puts("default", 10, 0);
    w.step(Step::Compact("default"));
    w.step(Step::Wait);
    w.script("blob-order", ordered_blobs)
}

fn dropped_blobs() -> Options {
    let mut options = small_blobs();
    options.cf.disable_auto_compactions = true;
    options.cf.target_file_size_base = 256;
    options.cf.table.block_size = 64;
    options
}

/// Tables that point to blob files are dropped: some of those of a file, all of a family; beside
/// collections, checkpoints and opens.
pub(super) fn blob_drop_files() -> Script {
    let mut w = Writer::new(29);
    let both: &[Family] = &["default", "a"];
    w.step(Step::Create("a"));
    for round in 0..2 {
        // Two tables of each family, lest a compaction moves one as it is.
        w.batches(both, 10, 6);
        w.step(Step::Flush(both.to_vec()));
        w.batches(both, 10, 6);
        w.step(Step::Compact("default"));
        w.puts("default", 10, 4);
        w.drop_range("default");
        w.step(Step::Compact("a"));
        w.drop_range("a");
        w.step(Step::Checkpoint(round));
        w.batches(both, 6, 0);
        w.step(Step::Compact("default"));
        w.drop_range("default");
        w.step(Step::Collect("default"));
        // The last batch before them has both families: who keeps one keeps what was before.
        w.batches(both, 4, 0);
        w.step(Step::DropFiles("a"));
        w.batches(both, 6, 3);
        if round == 0 {
            w.step(Step::DropFiles("default"));
            w.batches(both, 3, 0);
        }
        w.step(Step::Reopen);
    }
    w.step(Step::Compact("a"));
    w.step(Step::Collect("a"));
    w.long_script("blob-drop-files", dropped_blobs)
}

fn modes_of_blobs() -> Options {
    let mut options = collected_blobs();
    options.db.flush_halves_bytes = 0;
    let cf = &mut options.cf;
    cf.blob_compression_type = CompressionType::Zstd;
    cf.blob_compression_opts.max_dict_bytes = 400;
    cf.blob_record_alignment = 64;
    options
}

/// Values that are like each other, in files with dictionaries and padding that two threads of a
/// flush write, under run modes that change.
pub(super) fn blob_modes() -> Script {
    let mut w = Writer::new(30);
    for mode in ["kNormal", "kReadOnly", "kFallback"] {
        for key in 0..24 {
            let mut value = w.value();
            value.extend_from_slice(ALIKE);
            let key = format!("key{:03}", key * 2).into_bytes();
            w.write(vec![Op::Put("default", key, value)], false);
        }
        w.step(Step::Flush(vec!["default"]));
        w.puts("default", 8, 3);
        w.step(Step::Set("default", "blob_run_mode", mode));
        w.step(Step::Compact("default"));
        w.puts("default", 6, 0);
        w.step(Step::Collect("default"));
        w.step(Step::Wait);
    }
    w.step(Step::Reopen);
    w.step(Step::Compact("default"));
    w.long_script("blob-modes", modes_of_blobs)
}

fn halved_blobs() -> Options {
    let mut options = collected_blobs();
    options.db.flush_halves_bytes = 0;
    options.cf.disable_auto_compactions = true;
    options
}

/// Compactions of many files of level 0, which two threads do, and which move values on the way.
pub(super) fn blob_halves() -> Script {
    let mut w = Writer::new(33);
    for _ in 0..2 {
        for _ in 0..7 {
            w.puts("default", 8, 5);
            w.step(Step::Flush(vec!["default"]));
        }
        w.step(Step::Set("default", "disable_auto_compactions", "false"));
        w.step(Step::Wait);
        w.step(Step::Set("default", "disable_auto_compactions", "true"));
    }
    w.step(Step::Reopen);
    w.puts("default", 6, 0);
    w.step(Step::Compact("default"));
    w.long_script("blob-halves", halved_blobs)
}

/// What such values have in common.
const ALIKE: &[u8] = b"{\"account_name\":\"reader\",\"time_zone\":\"Europe/Vienna\",\"newsletter\":false,\"roles\":[\"reader\",\"writer\"]}";
