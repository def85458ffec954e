"""Writes the tables of testdata/sst with RocksDB's own programs.

Run: python make_sst.py <output directory>
Needs db_bench and sst_dump (7.8 was used) on PATH, and the package rocksdict (9.8 was used).

Each line of index.txt: file, kind of digest, entries, FNV-1a 64 of the entries. The digest is
over lines "key seqno type value" (kind full, as sst_dump scans them) or "key value" (kind pairs,
where only a newer release than sst_dump's can read the file), keys and values in hex.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import rocksdict

BASE = {
    "num": 100,
    "key_size": 16,
    "value_size": 24,
    "compression_ratio": 0.5,
    "seed": 7,
    "block_size": 256,
    "threads": 1,
    "compression_type": "none",
    "disable_wal": 1,
    "index_shortening_mode": 1,
}

DB_BENCH = {
    "plain": {},
    "format0": {"format_version": 0, "compression_type": "lz4", "checksum_type": 1},
    "format1": {"format_version": 1, "compression_type": "lz4", "bloom_bits": 10},
    "format0_snappy": {
        "format_version": 0, "compression_type": "snappy", "checksum_type": 1},
    "format1_zstd": {"format_version": 1, "compression_type": "zstd"},
    "format1_zlib": {"format_version": 1, "compression_type": "zlib"},
    "format1_bzip2": {"format_version": 1, "compression_type": "bzip2"},
    "format2": {"format_version": 2, "compression_type": "snappy"},
    "format3": {"format_version": 3},
    "format4": {"format_version": 4, "index_block_restart_interval": 4},
    "format4_bloom": {"format_version": 4, "bloom_bits": 10},
    "format5_bloom": {"bloom_bits": 10},
    "bloom_20_bits": {"bloom_bits": 20},
    # Flushes write Bloom filters, compactions Ribbon filters.
    "ribbon": {
        "bloom_bits": 10, "use_ribbon_filter": 1, "num": 600, "value_size": 1,
        "benchmarks": "fillrandom,compact"},
    "prefix_bloom": {"bloom_bits": 10, "prefix_size": 8, "keys_per_prefix": 10},
    "prefix_only_bloom": {
        "bloom_bits": 10, "prefix_size": 8, "keys_per_prefix": 10, "whole_key_filtering": 0},
    "snappy": {"compression_type": "snappy"},
    "zlib": {"compression_type": "zlib"},
    "bzip2": {"compression_type": "bzip2"},
    "lz4": {"compression_type": "lz4"},
    "lz4hc": {"compression_type": "lz4hc"},
    "zstd": {"compression_type": "zstd"},
    "zstd_dict_raw": {"compression_type": "zstd", "compression_max_dict_bytes": 512},
    "zstd_dict_trained": {
        "compression_type": "zstd", "compression_max_dict_bytes": 512, "num": 400,
        "compression_zstd_max_train_bytes": 20000},
    "lz4_dict": {"compression_type": "lz4", "compression_max_dict_bytes": 512},
    "snappy_dict": {"compression_type": "snappy", "compression_max_dict_bytes": 512},
    "checksum_none": {"checksum_type": 0},
    "checksum_crc32c": {"checksum_type": 1},
    "checksum_xxhash": {"checksum_type": 2},
    "checksum_xxhash64": {"checksum_type": 3},
    "index_restart_16": {"index_block_restart_interval": 16},
    "data_restart_1": {"block_restart_interval": 1},
    "index_uncompressed": {"compression_type": "lz4", "enable_index_compression": 0},
    "index_first_key": {"index_with_first_key": 1},
    "index_no_shortening": {"index_shortening_mode": 0},
    "index_short_successor": {"index_shortening_mode": 2},
    "index_partitioned": {"partition_index": 1, "metadata_block_size": 64},
    "all_partitioned": {
        "partition_index_and_filters": 1, "metadata_block_size": 64, "bloom_bits": 10},
    "index_hash": {"use_hash_search": 1, "prefix_size": 8, "keys_per_prefix": 10},
    "data_hash": {"use_data_block_hash_index": 1},
    "block_align": {"block_align": 1, "num": 20},
    "range_tombstones": {
        "writes_per_range_tombstone": 20, "range_tombstone_width": 10,
        "max_num_range_tombstones": 5},
    "merges": {
        "benchmarks": "mergerandom,flush", "merge_operator": "stringappend", "merge_keys": 20},
    "empty_values": {"value_size": 0, "value_size_min": 0},
    "large_values": {"num": 4, "value_size": 2000, "compression_type": "lz4"},
}


def run(*args):
    out = subprocess.run(args, capture_output=True, text=True)
    if out.returncode != 0:
        raise RuntimeError(f"{args}: {out.stdout}{out.stderr}")
    return out.stdout


def fnv(lines):
    h = 0xCBF29CE484222325
    for line in lines:
        for b in (line + "\n").encode():
            h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def scan(path):
    """The entries of a table as sst_dump prints them."""
    text = run("sst_dump", f"--file={path}", "--command=scan", "--output_hex")
    lines = []
    for line in text.splitlines():
        m = re.match(r"'([0-9A-F]*)' seq:(\d+), type:(\d+) => ?([0-9A-F]*)$", line)
        if m:
            lines.append(f"{m[1].lower()} {m[2]} {m[3]} {m[4].lower()}")
    return lines


def with_db_bench(out, index):
    for name, flags in DB_BENCH.items():
        with tempfile.TemporaryDirectory() as db:
            all_flags = {"benchmarks": "fillrandom,flush", **BASE, **flags, "db": db}
            run("db_bench", *(f"--{k}={v}" for k, v in all_flags.items()))
            tables = sorted(Path(db).glob("*.sst"))
            if len(tables) != 1:
                raise RuntimeError(f"{name}: {len(tables)} tables")
            path = out / f"{name}.sst"
            shutil.copy(tables[0], path)
            lines = scan(path)
            index.append(f"{path.name} full {len(lines)} {fnv(lines)}")


PAIRS = {b"key%05d" % (i * i): b"value-%d-" % i + b"x" * (i % 40) for i in range(150)}


def rocksdict_options(table=lambda t: None, compression=rocksdict.DBCompressionType.none()):
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(compression)
    t = rocksdict.BlockBasedOptions()
    t.set_block_size(256)
    table(t)
    options.set_block_based_table_factory(t)
    return options


def with_rocksdict(out, index):
    pairs = [f"{k.hex()} {v.hex()}" for k, v in sorted(PAIRS.items())]

    def six(t):
        t.set_format_version(6)

    def six_partitioned(t):
        t.set_format_version(6)
        t.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        t.set_partition_filters(True)
        t.set_metadata_block_size(64)
        t.set_bloom_filter(10.0, False)

    def six_crc(t):
        t.set_format_version(6)
        t.set_checksum_type(rocksdict.ChecksumType.crc32c())
        t.set_bloom_filter(10.0, False)

    zstd = rocksdict.DBCompressionType.zstd()
    cases = {
        "format6": (six, rocksdict.DBCompressionType.none()),
        "format6_partitioned": (six_partitioned, zstd),
        "format6_crc32c": (six_crc, rocksdict.DBCompressionType.lz4()),
    }
    for name, (table, compression) in cases.items():
        with tempfile.TemporaryDirectory() as db:
            d = rocksdict.Rdict(db, rocksdict_options(table, compression))
            for k, v in PAIRS.items():
                d[k] = v
            d.flush()
            d.close()
            (path,) = Path(db).glob("*.sst")
            shutil.copy(path, out / f"{name}.sst")
            index.append(f"{name}.sst pairs {len(pairs)} {fnv(pairs)}")
    for name, version in (("external_format5", 5), ("external_format6", 6)):
        path = out / f"{name}.sst"
        options = rocksdict_options(lambda t: t.set_format_version(version), zstd)
        w = rocksdict.SstFileWriter(options=options)
        w.open(str(path))
        for k, v in sorted(PAIRS.items()):
            w[k] = v
        w.finish()
        index.append(f"{name}.sst pairs {len(pairs)} {fnv(pairs)}")


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.sst"):
        old.unlink()
    index = []
    with_db_bench(out, index)
    with_rocksdict(out, index)
    (out / "index.txt").write_text("\n".join(sorted(index)) + "\n")


if __name__ == "__main__":
    main()
