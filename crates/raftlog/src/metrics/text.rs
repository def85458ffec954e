//! Metrics as Prometheus reads them: its text format, version 0.0.4.

use std::fmt::Write as _;

use super::{Distribution, Metrics, PerQueue};

/// Text under way, and the labels that every line has.
struct Text {
    out: String,
    labels: String,
}

/// A value of a label, as it stands between quotes.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

impl Text {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}");
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
    }

    /// A line with the labels of all lines and one of its own, which may be empty.
    fn line(&mut self, name: &str, label: &str, value: impl std::fmt::Display) {
        let between = match self.labels.is_empty() || label.is_empty() {
            true => "",
            false => ",",
        };
        let labels = format!("{}{between}{label}", self.labels);
        let _ = match labels.is_empty() {
            true => writeln!(self.out, "{name} {value}"),
            false => writeln!(self.out, "{name}{{{labels}}} {value}"),
        };
    }

    fn buckets(&mut self, name: &str, label: &str, values: &Distribution) {
        let bucket = format!("{name}_bucket");
        let between = if label.is_empty() { "" } else { "," };
        let mut below = 0;
        for (count, bound) in values.counts.iter().zip(values.bounds) {
            below += count;
            self.line(&bucket, &format!("{label}{between}le=\"{bound}\""), below);
        }
        let count = values.count();
        self.line(&bucket, &format!("{label}{between}le=\"+Inf\""), count);
        self.line(&format!("{name}_sum"), label, values.sum());
        self.line(&format!("{name}_count"), label, count);
    }

    fn histogram(&mut self, name: &str, help: &str, values: &Distribution) {
        let name = format!("raft_engine_{name}");
        self.begin(&name, "histogram", help);
        self.buckets(&name, "", values);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("raft_engine_{name}");
        self.begin(&name, "gauge", help);
        self.line(&name, "", value);
    }

    fn per_queue(&mut self, name: &str, value: PerQueue) {
        self.line(name, "type=\"append\"", value.append);
        self.line(name, "type=\"rewrite\"", value.rewrite);
    }

    fn gauges(&mut self, name: &str, help: &str, value: PerQueue) {
        let name = format!("raft_engine_{name}");
        self.begin(&name, "gauge", help);
        self.per_queue(&name, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("orogen_raftlog_{name}_total");
        self.begin(&name, "counter", help);
        self.line(&name, "", value);
    }

    fn counters(&mut self, name: &str, help: &str, value: PerQueue) {
        let name = format!("orogen_raftlog_{name}_total");
        self.begin(&name, "counter", help);
        self.per_queue(&name, value);
    }
}

impl Metrics {
    /// The text that Prometheus reads, every line with these labels: names, which must be such of labels, and values, which may be any.
    ///
    /// What raft-engine has too is under its names, which begin with `raft_engine_`, and in its buckets; the rest begins
    /// with `orogen_raftlog_`.
    #[must_use]
    pub fn to_prometheus(&self, labels: &[(&str, &str)]) -> String {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let mut text = Text {
            out: String::new(),
            labels: labels.join(","),
        };
        self.histograms(&mut text);
        self.gauges(&mut text);
        self.counters(&mut text);
        text.out
    }

    fn histograms(&self, text: &mut Text) {
        for (name, help, values) in [
            (
                "write_duration_seconds",
                "Seconds of a write",
                &self.write_duration,
            ),
            (
                "write_preprocess_duration_seconds",
                "Seconds until the group of a write is written",
                &self.write_preprocess_duration,
            ),
            (
                "write_leader_duration_seconds",
                "Seconds in which a group of writes is written",
                &self.write_leader_duration,
            ),
            (
                "write_apply_duration_seconds",
                "Seconds in which memory is told of a write",
                &self.write_apply_duration,
            ),
            ("write_size", "Bytes of a write", &self.write_size),
            (
                "write_compression_ratio",
                "Stored bytes for each raw one",
                &self.write_compression_ratio,
            ),
            (
                "allocate_log_duration_seconds",
                "Seconds in which room in a file is made",
                &self.allocate_log_duration,
            ),
            (
                "sync_log_duration_seconds",
                "Seconds of a sync of a file",
                &self.sync_log_duration,
            ),
            (
                "rotate_log_duration_seconds",
                "Seconds in which a full file is ended and the next one made",
                &self.rotate_log_duration,
            ),
            (
                "read_entry_duration_seconds",
                "Seconds of a read of entries",
                &self.read_entry_duration,
            ),
            (
                "read_entry_count",
                "Entries that a read gave",
                &self.read_entry_count,
            ),
            (
                "read_message_duration_seconds",
                "Seconds of a read of keys",
                &self.read_message_duration,
            ),
            (
                "purge_duration_seconds",
                "Seconds of a purge",
                &self.purge_duration,
            ),
            (
                "rewrite_append_duration_seconds",
                "Seconds in which old files of the append queue are emptied",
                &self.rewrite_append_duration,
            ),
            (
                "rewrite_rewrite_duration_seconds",
                "Seconds in which the rewrite queue is written anew",
                &self.rewrite_rewrite_duration,
            ),
        ] {
            text.histogram(name, help, values);
        }
        let name = "raft_engine_background_rewrite_bytes";
        text.begin(name, "histogram", "Bytes of a record that a purge writes");
        text.buckets(name, "type=\"append\"", &self.background_append_bytes);
        text.buckets(name, "type=\"rewrite\"", &self.background_rewrite_bytes);
    }

    fn gauges(&self, text: &mut Text) {
        text.gauges("log_file_count", "Files", self.log_file_count);
        text.gauges(
            "recycled_file_count",
            "Spare files",
            self.recycled_file_count,
        );
        text.gauges(
            "log_entry_count",
            "Entries and keys that live",
            self.log_entry_count,
        );
        text.gauge(
            "swap_file_count",
            "Files that memory is swapped to",
            self.swap_file_count,
        );
        text.gauge(
            "memory_usage",
            "Bytes of memory for what is known of groups",
            self.memory_usage,
        );
    }

    fn counters(&self, text: &mut Text) {
        text.counter(
            "write_groups",
            "Groups of writes that were written together",
            self.write_groups,
        );
        text.counters(
            "appended_bytes",
            "Bytes of records that were appended",
            self.appended_bytes,
        );
        text.counters(
            "padding_bytes",
            "Bytes of zeros behind records",
            self.padding_bytes,
        );
        text.counters("syncs", "Syncs of files", self.syncs);
        text.counters("files_made", "Files that were made", self.files_made);
        text.counters(
            "files_spilled",
            "Files that were made in the second directory",
            self.files_spilled,
        );
        text.counter(
            "dir_stalls",
            "Times that the first directory began to stall",
            self.dir_stalls,
        );
        text.counter(
            "dir_stalls_stayed",
            "Times that files were made in it all the same",
            self.dir_stalls_stayed,
        );
        let name = "orogen_raftlog_groups_fenced";
        text.begin(
            name,
            "gauge",
            "Groups of which entries are missing between others",
        );
        text.line(name, "", self.groups_fenced);
        let name = "orogen_raftlog_dirs_stalled";
        text.begin(name, "gauge", "First directories that stall");
        text.line(name, "", self.dirs_stalled);
        let name = "orogen_raftlog_spill_dir_file_count";
        text.begin(name, "gauge", "Files in the second directory");
        text.line(name, "", self.spill_dir_file_count);
        text.counters(
            "files_deleted",
            "Files that purges deleted",
            self.files_deleted,
        );
        text.counter(
            "files_written_over",
            "Spare files that were written over",
            self.files_written_over,
        );
        text.counter(
            "files_spared",
            "Files that purges emptied and kept",
            self.files_spared,
        );
        text.counter(
            "filled_bytes",
            "Bytes of zeros that spare files were filled with",
            self.filled_bytes,
        );
        let name = "orogen_raftlog_purge_skips_total";
        text.begin(name, "counter", "Purges that did nothing");
        text.line(name, "reason=\"busy\"", self.purge_skips_busy);
        text.line(name, "reason=\"short\"", self.purge_skips_short);
        text.counter(
            "purge_groups_moved",
            "Groups whose old entries purges moved",
            self.purge_groups_moved,
        );
        text.counter(
            "purge_groups_returned",
            "Groups that purges returned to be compacted",
            self.purge_groups_returned,
        );
        text.counter(
            "read_cache_hits",
            "Blocks of entries that were found in the read cache",
            self.read_cache_hits,
        );
        text.counter(
            "read_cache_misses",
            "Blocks of entries that were not found in the read cache",
            self.read_cache_misses,
        );
        let name = "orogen_raftlog_read_cache_bytes";
        text.begin(name, "gauge", "Bytes of memory that the read cache takes");
        text.line(name, "", self.read_cache_bytes);
    }
}
