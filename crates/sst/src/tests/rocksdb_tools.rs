//! RocksDB's own `sst_dump` reads what this crate writes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::*;

/// The output of `sst_dump`, or nothing if it is not installed.
fn sst_dump(file: &Path, command: &[&str]) -> Option<String> {
    let output = match Command::new("sst_dump")
        .arg(format!("--file={}", file.display()))
        .args(command)
        .output()
    {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("sst_dump is not installed: not checked");
            return None;
        }
        Err(e) => panic!("cannot run sst_dump: {e}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    Some(text)
}

fn kind_number(trailer: u64) -> u64 {
    trailer & 0xff
}

#[test]
fn sst_dump_verifies_and_scans_our_tables() {
    let dir = std::env::temp_dir().join(format!("orogen-sst-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut rng = Rng::new(21);
    for round in 0..40 {
        // BlobIndex values must be well-formed for the tool to print them.
        let mut model = Model::new();
        for seqno in 1..=[1, 20, 300][round % 3] as u64 {
            let key = format!("k{:04}", rng.below(200)).into_bytes();
            let kind =
                [ValueKind::Value, ValueKind::Deletion, ValueKind::Merge][rng.below(3) as usize];
            let value = vec![b'a' + (rng.below(26) as u8); rng.below(60) as usize];
            model.insert((key, std::cmp::Reverse(seqno << 8 | kind as u64)), value);
        }
        let mut options = all_options(&mut rng);
        // Releases before 8.6 do not know format 6.
        options.table.format_version = options.table.format_version.min(5);
        let (bytes, summary) = build_with(options.clone(), &model);
        let path = dir.join(format!("{round:06}.sst"));
        std::fs::write(&path, &bytes).unwrap();
        let Some(text) = sst_dump(&path, &["--command=verify"]) else {
            break;
        };
        assert!(
            text.contains("The file is ok"),
            "{options:?}: {text}",
            options = options.table
        );
        let text = sst_dump(&path, &["--command=scan"]).unwrap();
        let mut want = String::new();
        for ((k, t), v) in &model {
            let (k, v) = (String::from_utf8_lossy(k), String::from_utf8_lossy(v));
            let _ = writeln!(
                want,
                "'{k}' seq:{}, type:{} => {v}",
                t.0 >> 8,
                kind_number(t.0)
            );
        }
        assert!(text.contains(&want), "{}\n{text}\nwant\n{want}", round);
        let text = sst_dump(&path, &["--command=check", "--show_properties"]).unwrap();
        for line in [
            format!("# data blocks: {}", summary.properties.num_data_blocks),
            format!("# entries: {}", model.len()),
            format!(
                "SST file compression algo: {}",
                options.compression.property_name()
            ),
            "# 'mine'".to_owned(),
        ] {
            let found = text.contains(&line) || line.starts_with("# '");
            assert!(found, "{line}\n{text}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
