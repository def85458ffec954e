#!/usr/bin/env python3
"""Lets RocksDB's own programs write directories under many combinations of options.

    make_dirs.py --out DIR [--jobs N] [CASE...]

Each case becomes DIR/<case>, laid out as rocks.py says. What is expected is a model of what was
written, where there is one, or a scan by the writer. It is compared with scans of a copy by both
generations of RocksDB; the older is left out where it cannot read the tables.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time

import cases
import rocks


def write_case(case, folder):
    """Writes one case in this process, which a killed case ends."""
    db = folder / "db"
    found = case.write(folder)
    if found is None:
        found = {family: rocks.ldb_scan(db, family) for family in rocks.ldb_families(db)}
    for family, pairs in found.items():
        rocks.write_dump(folder / "expected" / f"{family}.txt", pairs)
    meta = {
        "name": case.name,
        "writer": case.writer,
        "options": case.options,
        "comparator": case.comparator,
        "merge_operator": case.merge_operator,
        "features": list(case.features),
        "ldb_reads": case.ldb_reads,
        "families": sorted(found),
    }
    rocks.write_meta(folder, meta)
    if case.killed:
        # The store is still open: its data is in the log, and stays there.
        os._exit(0)


def check_case(case, folder):
    """Compares what is expected with scans of a copy: reading must not change the case."""
    copy = folder / "copy"
    shutil.copytree(folder / "db", copy)
    expected = rocks.expected_of(folder)
    if case.ldb_reads:
        for family, pairs in expected.items():
            rocks.compare(f"{case.name}: ldb", pairs, rocks.ldb_scan(copy, family))
    store = rocks.open_latest(copy)
    for family, pairs in expected.items():
        rocks.compare(f"{case.name}: rocksdict", pairs, rocks.scan(store, family))
    store.close()
    shutil.rmtree(copy)


def run_one(name, out):
    """Writes and checks a case in processes of its own; returns what went wrong, if anything."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stage in ("--write", "--check"):
        done = subprocess.run(
            [sys.executable, __file__, "--out", str(out), stage, name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            return f"{name} {stage}: {done.stdout.strip()[-2000:]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2 * os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--write", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--check", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    out = args.out.resolve()
    if args.list:
        for case in cases.CASES.values():
            print(f"{case.name:28} {case.writer:34} {case.options}")
        return 0
    if args.write or args.check:
        name = args.write or args.check
        stage = write_case if args.write else check_case
        stage(cases.CASES[name], out / name)
        return 0
    unknown = set(args.cases) - set(cases.CASES)
    if unknown:
        parser.error(f"no such case: {' '.join(sorted(unknown))}")
    start = time.monotonic()
    chosen = args.cases or list(cases.CASES)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda name: run_one(name, out), chosen))
    failures = [result for result in results if result]
    for failure in failures:
        print(failure)
    seconds = time.monotonic() - start
    print(f"{len(chosen) - len(failures)} of {len(chosen)} directories in {seconds:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
