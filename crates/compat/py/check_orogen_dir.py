#!/usr/bin/env python3
"""Lets RocksDB judge directories that Orogen wrote, then write them on.

    check_orogen_dir.py [--read-only | --separate] DIR...

Each DIR is laid out as rocks.py says. RocksDB 7.8.3 checks the files against the MANIFEST, reads
every block of every table, scans, writes and compacts; RocksDB 9.8.4 opens under the options of
the directory, scans both ways, looks up every key, writes, deletes and compacts. What the
directory holds then replaces DIR/expected, for Orogen to compare with. `--read-only` leaves the
directories as they are; with `--separate` RocksDB 9.8.4 puts large values into blob files of its
own, and empties the oldest blob files, whoever wrote them.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import shutil
import sys

import rocks
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

PUTS = 150
# A value that every merge operator takes for one operand.
VALUE_BYTES = 8
# From so many bytes on a value goes to a blob file with `--separate`.
SEPARATED_BYTES = 1000


def check_with_ldb(db, expected, strict):
    """RocksDB 7.8.3 reads all of it."""
    text = rocks.ldb(db, "checkconsistency", strict=strict)
    if not text.strip().endswith("OK"):
        raise rocks.Mismatch(f"checkconsistency: {text[-300:]}")
    rocks.verify_tables(db)
    families = sorted(rocks.ldb_families(db))
    if families != sorted(expected):
        raise rocks.Mismatch(f"families: expected {sorted(expected)}, ldb lists {families}")
    for family, pairs in expected.items():
        rocks.compare(f"ldb scan {family}", pairs, rocks.ldb_scan(db, family, strict))


def write_with_ldb(db, family, rng):
    """RocksDB 7.8.3 writes, deletes and compacts; returns the puts and the deleted key."""
    puts = {b"ldb%d" % rng.randrange(1000): rng.randbytes(VALUE_BYTES) for _ in range(10)}
    words = [f"0x{word.hex()}" for pair in puts.items() for word in pair]
    here = f"--column_family={family}"
    rocks.ldb(db, here, "batchput", "--hex", *words)
    gone = rng.choice(sorted(puts))
    rocks.ldb(db, here, "delete", "--key_hex", f"0x{gone.hex()}")
    rocks.ldb(db, here, "compact")
    del puts[gone]
    return puts, gone


def check_with_binding(store, family, pairs):
    """RocksDB 9.8.4 finds the pairs in a scan, backwards, and one by one."""
    rocks.compare(f"rocksdict scan {family}", pairs, rocks.scan(store, family))
    handle = rocks.handle_of(store, family)
    backwards = rocks.scan(store, family, backwards=True)
    rocks.compare(f"rocksdict backwards {family}", pairs[::-1], backwards)
    for key, value in pairs:
        rocks.compare(f"rocksdict get {key.hex()}", [(key, value)], [(key, handle.get(key))])
    absent = [key + b"\x00absent" for key, _ in pairs[:200]]
    found = [key.hex() for key in absent if handle.get(key) is not None]
    if found:
        raise rocks.Mismatch(f"rocksdict finds keys that are not there: {found[:3]}")


def write_with_binding(store, family, pairs, rng):
    """RocksDB 9.8.4 puts, deletes single keys and a range, flushes and compacts."""
    handle = rocks.handle_of(store, family)
    model = dict(pairs)
    order = [key for key, _ in pairs]
    for at in range(PUTS):
        key = rng.choice(order) if order and at % 2 else b"new%d" % rng.randrange(10_000)
        value = rng.randbytes(VALUE_BYTES)
        handle[key] = value
        model[key] = value
    for key in rng.sample(order, len(order) // 10):
        del handle[key]
        model.pop(key, None)
    if len(order) > 20:
        at = rng.randrange(len(order) - 10)
        begin, end = order[at], order[at + 10]
        handle.delete_range(begin, end)
        low, high = min(begin, end), max(begin, end)
        # In either order of keys the end stays and the begin goes.
        for key in [k for k in model if low <= k <= high and k != end]:
            del model[key]
    handle.flush()
    handle.compact_range(None, None)
    batch = WriteBatch(raw_mode=True)
    if family != "default":
        batch.set_default_column_family(store.get_column_family_handle(family))
    for _ in range(20):
        key, value = rng.randbytes(6), rng.randbytes(VALUE_BYTES)
        batch.put(key, value)
        model[key] = value
    store.write(batch)
    found = rocks.scan(store, family)
    rocks.compare(f"rocksdict's own writes to {family}", sorted(model.items()), sorted(found))
    return found


def open_separating(db):
    """Opens for writing with blob files and their collection, whatever the directory says."""
    options, families = Options.load_latest(str(db))
    for each in [options, *families.values()]:
        each.set_enable_blob_files(True)
        each.set_min_blob_size(SEPARATED_BYTES)
        each.set_blob_file_size(256 << 10)
        each.set_blob_compression_type(DBCompressionType.lz4())
        each.set_enable_blob_gc(True)
        each.set_blob_gc_age_cutoff(0.6)
        each.set_blob_gc_force_threshold(0.3)
    options.create_if_missing(False)
    return Rdict(str(db), options, families)


def write_separated(store, family, pairs, rng):
    """RocksDB 9.8.4 overwrites, deletes and adds large values, flushing and compacting between."""
    handle = rocks.handle_of(store, family)
    model = dict(pairs)
    order = [key for key, _ in pairs]
    for turn in range(3):
        for key in rng.sample(order, len(order) // 3) + [b"own%d" % n for n in range(20)]:
            value = rng.randbytes(rng.randrange(SEPARATED_BYTES // 2, 8 * SEPARATED_BYTES))
            handle[key] = value
            model[key] = value
        for key in rng.sample(order, len(order) // 20):
            del handle[key]
            model.pop(key, None)
        # The last turn stays in the log.
        if turn < 2:
            handle.flush()
            handle.compact_range(None, None)
    found = rocks.scan(store, family)
    rocks.compare(f"rocksdict's own values in {family}", sorted(model.items()), found)
    return found


def separate(case_dir):
    """RocksDB writes large values into one directory; raises where it does not agree."""
    expected = rocks.expected_of(case_dir)
    rng = random.Random(rocks.read_meta(case_dir)["name"])
    store = open_separating(case_dir / "db")
    for family, pairs in expected.items():
        check_with_binding(store, family, pairs)
        found = write_separated(store, family, pairs, rng)
        rocks.write_dump(case_dir / "expected" / f"{family}.txt", found)
    store.close()


def check(case_dir, read_only):
    """Everything for one directory; raises where RocksDB does not agree."""
    db = case_dir / "db"
    meta = rocks.read_meta(case_dir)
    expected = rocks.expected_of(case_dir)
    rng = random.Random(meta["name"])
    if read_only:
        db = case_dir / "copy"
        shutil.rmtree(db, ignore_errors=True)
        shutil.copytree(case_dir / "db", db)
    if meta["ldb_reads"]:
        strict = meta["writer"].startswith("orogen")
        check_with_ldb(db, expected, strict)
        # What the older one deflates, the newer one's zlib takes for corrupt.
        if not read_only and "zlib" not in meta["features"]:
            for family in expected:
                puts, gone = write_with_ldb(db, family, rng)
                after = {**dict(expected[family]), **puts}
                after.pop(gone, None)
                found = rocks.ldb_scan(db, family)
                rocks.compare(f"ldb's writes to {family}", sorted(after.items()), sorted(found))
                expected[family] = found
    store = rocks.open_latest(db)
    for family, pairs in expected.items():
        check_with_binding(store, family, pairs)
        if not read_only:
            expected[family] = write_with_binding(store, family, pairs, rng)
    store.close()
    if read_only:
        shutil.rmtree(db)
        return
    for family, pairs in expected.items():
        rocks.write_dump(case_dir / "expected" / f"{family}.txt", pairs)


def judge(case_dir, how):
    """One line about a directory, and whether it is as it should be."""
    try:
        if how.separate:
            separate(case_dir)
        else:
            check(case_dir, how.read_only)
    except Exception as error:  # The binding raises Exception itself.
        return f"{case_dir.name}: {type(error).__name__}: {error}", False
    return f"{case_dir.name}: ok", True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--read-only", action="store_true")
    ways.add_argument("--separate", action="store_true")
    parser.add_argument("dirs", nargs="+", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    dirs = [path.resolve() for path in args.dirs]
    with concurrent.futures.ProcessPoolExecutor(2 * os.cpu_count()) as pool:
        results = list(pool.map(judge, dirs, [args] * len(dirs)))
    for line, _ in results:
        print(line)
    good = sum(ok for _, ok in results)
    print(f"{good} of {len(dirs)} directories agree with RocksDB")
    return 0 if good == len(dirs) else 1


if __name__ == "__main__":
    sys.exit(main())
