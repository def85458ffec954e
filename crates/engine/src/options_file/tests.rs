use std::path::Path;

use orogen_base::ErrorKind;
use orogen_env::PosixFileSystem;
use orogen_env::fs::read_file;

use super::*;

fn golden(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/options");
    String::from_utf8(read_file(&PosixFileSystem::new(), &dir.join(name)).unwrap()).unwrap()
}

#[test]
fn what_rocksdb_wrote_comes_out_again_byte_for_byte() {
    for name in ["rocksdb-7.8", "rocksdb-9.8"] {
        let text = golden(name);
        let file = OptionsFile::parse(&text).unwrap();
        assert_eq!(file.to_text(), text, "{name}");
    }
}

#[test]
fn what_rocksdb_wrote_is_understood() {
    let file = OptionsFile::parse(&golden("rocksdb-7.8")).unwrap();
    assert_eq!(
        file.version().unwrap().get("rocksdb_version"),
        Some("7.8.3")
    );
    let family = file.family("default").unwrap();
    assert_eq!(family.get("comparator"), Some("leveldb.BytewiseComparator"));
    let merge = value::parse_map(family.get("merge_operator").unwrap()).unwrap();
    assert_eq!(
        merge[0],
        ("id".to_owned(), "StringAppendOperator".to_owned())
    );
    assert_eq!(value::unescape(&merge[1].1), ":");
    let compression = value::parse_map(family.get("compression_opts").unwrap()).unwrap();
    let bits = compression
        .iter()
        .find(|(k, _)| k == "window_bits")
        .unwrap();
    assert_eq!(value::parse_i64(&bits.1), Some(-14));

    let file = OptionsFile::parse(&golden("rocksdb-9.8")).unwrap();
    let odd = "odd: #1 \\ \"x\"";
    assert_eq!(file.family_names().collect::<Vec<_>>(), ["default", odd]);
    assert!(file.db().unwrap().get("max_open_files").is_some());
    let table = file.table(odd).unwrap();
    assert_eq!(table.kind, SectionKind::Table("BlockBasedTable".to_owned()));
    assert_eq!(
        value::parse_u64(table.get("block_size").unwrap()),
        Some(4096)
    );
    let list = file
        .family(odd)
        .unwrap()
        .get("max_bytes_for_level_multiplier_additional");
    assert_eq!(value::parse_list(list.unwrap()).unwrap(), ["1"; 7]);
}

#[test]
fn a_file_gives_back_what_was_put_in() {
    let mut file = OptionsFile::new("7.8.3");
    file.add(SectionKind::Db, "").set("max_open_files", "-1");
    for name in [
        "default",
        "with \"quotes\" and \\",
        "line\nbreak # not a comment",
    ] {
        let family = file.add(SectionKind::ColumnFamily, name);
        family.set("num_levels", "7");
        family.set_text("odd", "C:\\dir\r\n#x");
        family.set("num_levels", "5");
        family.set_own("blob_run_mode", "kFallback");
        family.set_own("odd", value::escape("a=b # c"));
        file.add(SectionKind::Table("BlockBasedTable".to_owned()), name)
            .set("block_size", "1");
    }
    let back = OptionsFile::parse(&file.to_text()).unwrap();
    assert_eq!(back, file);
    let family = back.family("line\nbreak # not a comment").unwrap();
    assert_eq!(family.get("num_levels"), Some("5"));
    assert_eq!(family.get_text("odd").unwrap(), "C:\\dir\r\n#x");
}

#[test]
fn comments_blanks_and_repeated_keys_are_read_as_rocksdb_reads_them() {
    let text =
        "# c\n[DBOptions] # c\n\n  a = 1 # c\n\ta=2\nb=\n [CFOptions \"default\"]\nc=x\\#y\n";
    let file = OptionsFile::parse(text).unwrap();
    let db = file.db().unwrap();
    assert_eq!(
        (db.get("a"), db.get("b"), db.get("c")),
        (Some("1"), Some(""), None)
    );
    assert_eq!(
        file.family("default").unwrap().get_text("c").unwrap(),
        "x#y"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let head = "[DBOptions]\n[CFOptions \"default\"]\n";
    for (text, message, line) in [
        ("x", "line without '='", Some("3")),
        ("=x", "line without a key", Some("3")),
        ("[Unknown]", "unknown section", Some("3")),
        ("[TableOptions/ \"default\"]", "unknown section", Some("3")),
        ("[DBOptions]", "section is there twice", Some("3")),
        (
            "[CFOptions \"default\"]",
            "section is there twice",
            Some("3"),
        ),
        (
            "[TableOptions/X \"y\"]",
            "table of a column family that is not there",
            Some("3"),
        ),
    ] {
        let error = OptionsFile::parse(&format!("{head}{text}")).unwrap_err();
        assert_eq!(
            (error.message(), error.context("line")),
            (message, line),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::Corruption);
    }
    for text in [
        "",
        "[DBOptions]",
        "[CFOptions \"x\"]",
        "a=b",
        "[CFOptions \"default\"]",
    ] {
        assert!(OptionsFile::parse(text).is_err(), "{text}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let text = golden("rocksdb-9.8");
    for len in 0..600 {
        let _ = OptionsFile::parse(&text[..len]);
    }
    let mut seed = 1u64;
    for _ in 0..300 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] = b"[]{}\"\\#=;:\n\0x"[(seed >> 20) as usize % 13];
        }
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(file) = OptionsFile::parse(&text) {
            assert_eq!(OptionsFile::parse(&file.to_text()).unwrap(), file);
            for (_, v) in file.sections.iter().flat_map(|s| &s.entries) {
                let _ = (
                    value::parse_map(v),
                    value::parse_list(v),
                    value::unescape(v),
                );
            }
        }
    }
}

#[test]
fn values_are_read_as_rocksdb_reads_them() {
    use value::*;
    assert_eq!(
        (parse_bool("true"), parse_bool("0"), parse_bool("yes")),
        (Some(true), Some(false), None)
    );
    assert_eq!(
        (parse_u64("64M"), parse_u64("1t"), parse_u64("")),
        (Some(64 << 20), Some(1 << 40), None)
    );
    assert_eq!(
        (parse_u64("-1"), parse_u64("18446744073709551615k")),
        (None, None)
    );
    assert_eq!((parse_i64("-1"), parse_i64("-2k")), (Some(-1), Some(-2048)));
    assert_eq!(
        (parse_f64("10.5"), parse_f64("nan"), parse_f64("x")),
        (Some(10.5), None, None)
    );
    assert_eq!(print_f64(0.25), "0.250000");
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        parse_map("{ a=1; b={c=2;d={e=3}} ;f=}").unwrap(),
        [pair("a", "1"), pair("b", "{c=2;d={e=3}}"), pair("f", "")]
    );
    assert_eq!(parse_map("{c=2;d={e=3}}").unwrap()[1], pair("d", "{e=3}"));
    assert_eq!(parse_map("{}").unwrap(), []);
    for bad in ["{a}", "a=1;b", "{a=1", "a=}", "{=1}", "{{a}=1}"] {
        assert_eq!(parse_map(bad), None, "{bad}");
    }
    assert_eq!(print_map([("a", "1"), ("b", "{c=2;}")]), "{a=1;b={c=2;};}");
    assert_eq!(parse_list("{a:b}:{c}:d").unwrap(), ["a:b", "c", "d"]);
    assert_eq!(parse_list("{a:b}").unwrap(), ["a", "b"]);
    assert_eq!(parse_list("").unwrap(), [""; 0]);
    assert_eq!(parse_list("}a"), None);
}
