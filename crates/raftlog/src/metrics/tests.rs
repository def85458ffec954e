use super::*;

#[test]
fn a_value_lies_in_the_bucket_whose_bound_it_does_not_exceed() {
    let histogram = Histogram::new(&SIZES);
    for value in [0, 256, 257, 460, 461, 1 << 40] {
        histogram.add(value, 1);
    }
    histogram.add_alone(256);
    let seen = histogram.look();
    assert_eq!(seen.bounds().len(), 22);
    assert_eq!((seen.bounds()[0], seen.bounds()[1]), (256.0, 256.0 * 1.8));
    assert_eq!(seen.counts()[..3], [3, 2, 1]);
    assert_eq!((seen.counts()[22], seen.counts().len()), (1, 23));
    assert_eq!(seen.count(), 7);
    assert_eq!(
        seen.sum(),
        (256 + 257 + 460 + 461 + (1u64 << 40) + 256) as f64
    );
    let times = Histogram::new(&SHORT_TIMES);
    times.add_time(Duration::from_micros(50), SAMPLE_EVERY);
    assert_eq!(times.look().counts()[0], SAMPLE_EVERY);
    assert!((times.look().mean() - 0.000_05).abs() < 1e-12);
}

#[test]
fn one_in_so_many_is_timed_and_counts_for_all() {
    let count = || {
        let meters = Meters::new();
        for _ in 0..SAMPLE_EVERY * 10 {
            meters.read_entries().found(3);
        }
        let seen = meters.look();
        assert_eq!(seen.read_entry_duration.count(), SAMPLE_EVERY * 10);
        assert_eq!(seen.read_entry_count.count(), SAMPLE_EVERY * 10);
        assert_eq!(seen.read_entry_count.mean(), 3.0);
        let timed = (0..SAMPLE_EVERY * 10).filter(|_| sample_write(false).is_some());
        assert_eq!(timed.count(), 10);
        assert!(sample_write(true).is_some_and(|sample| sample.weight == 1));
    };
    // A thread of its own begins anew.
    std::thread::scope(|scope| scope.spawn(count).join()).unwrap();
}

#[test]
fn every_line_of_the_text_is_one_that_prometheus_reads() {
    let meters = Meters::new();
    meters.record(300);
    meters.bytes.increase(Queue::Append, 300);
    meters.moved_record(Queue::Rewrite, 77);
    meters.compressed(1000, 250);
    meters.skipped(Skip::Busy);
    let mut metrics = meters.look();
    metrics.memory_usage = 5;
    let text = metrics.to_prometheus(&[]);
    for line in [
        "# TYPE raft_engine_write_size histogram",
        "raft_engine_write_size_bucket{le=\"256\"} 0",
        "raft_engine_write_size_bucket{le=\"460.8\"} 1",
        "raft_engine_write_size_bucket{le=\"+Inf\"} 1",
        "raft_engine_write_size_sum 300",
        "raft_engine_write_size_count 1",
        "raft_engine_write_duration_seconds_bucket{le=\"0.00005\"} 0",
        "raft_engine_purge_duration_seconds_bucket{le=\"0.001\"} 0",
        "raft_engine_write_compression_ratio_sum 0.25",
        "raft_engine_background_rewrite_bytes_sum{type=\"rewrite\"} 77",
        "raft_engine_background_rewrite_bytes_count{type=\"append\"} 0",
        "raft_engine_log_file_count{type=\"append\"} 0",
        "raft_engine_memory_usage 5",
        "orogen_raftlog_appended_bytes_total{type=\"append\"} 300",
        "orogen_raftlog_purge_skips_total{reason=\"busy\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let labelled = metrics.to_prometheus(&[("store", "a\\b\"c\n"), ("zone", "7")]);
    let line = r#"raft_engine_write_size_bucket{store="a\\b\"c\n",zone="7",le="460.8"} 1"#;
    assert!(labelled.lines().any(|l| l == line), "{labelled}");
    assert!(labelled.contains(r#"raft_engine_memory_usage{store="a\\b\"c\n",zone="7"} 5"#));
    assert_eq!(text.lines().count(), labelled.lines().count());
    let mut names: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "a name is told of once");
}

#[test]
fn sums_are_sums() {
    let meters = Meters::new();
    meters.record(300);
    meters.led();
    let mut metrics = meters.look();
    metrics.memory_usage = 5;
    metrics.log_file_count.append = 2;
    let mut sum = metrics.clone();
    sum.add(&metrics);
    assert_eq!((sum.memory_usage, sum.log_file_count.append), (10, 4));
    assert_eq!((sum.write_size.count(), sum.write_groups), (2, 2));
    sum.add_counted(&metrics);
    assert_eq!((sum.memory_usage, sum.write_groups), (10, 3));
}

#[test]
fn a_bucket_is_found_as_a_search_would_find_it() {
    for scale in [&SHORT_TIMES, &LONG_TIMES, &SIZES, &COUNTS, &RATIOS] {
        let mut small = 0u64;
        while small < 1 << 50 {
            let value = small as f64 / scale.per_unit;
            let searched = scale.bounds.partition_point(|bound| *bound < value);
            assert_eq!(scale.bucket(small), searched, "{small}");
            small += 1 + small / 1000;
        }
        assert_eq!(scale.bucket(u64::MAX), scale.bounds.len());
    }
}
