#!/usr/bin/env python3
"""Lets RocksDB judge directories that Orogen wrote, then write them on.

    check_orogen_dir.py [--read-only] DIR...

Each DIR is laid out as rocks.py says. RocksDB 7.8.3 checks the files against the MANIFEST, reads
every block of every table, scans, writes and compacts; RocksDB 9.8.4 opens under the options of
the directory, scans both ways, looks up every key, writes, deletes and compacts. What the
directory holds then replaces DIR/expected, for Orogen to compare with. `--read-only` leaves the
directories as they are.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import shutil
import sys

import rocks
from rocksdict import WriteBatch

PUTS = 150
# A value that every merge operator takes for one operand.
VALUE_BYTES = 8


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


def judge(case_dir, read_only):
    """One line about a directory, and whether it is as it should be."""
    try:
        check(case_dir, read_only)
    except Exception as error:  # The binding raises Exception itself.
        return f"{case_dir.name}: {type(error).__name__}: {error}", False
    return f"{case_dir.name}: ok", True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("dirs", nargs="+", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    dirs = [path.resolve() for path in args.dirs]
    with concurrent.futures.ProcessPoolExecutor(2 * os.cpu_count()) as pool:
        results = list(pool.map(judge, dirs, [args.read_only] * len(dirs)))
    for line, _ in results:
        print(line)
    good = sum(ok for _, ok in results)
    print(f"{good} of {len(dirs)} directories agree with RocksDB")
    return 0 if good == len(dirs) else 1


if __name__ == "__main__":
    sys.exit(main())
