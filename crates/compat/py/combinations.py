#!/usr/bin/env python3
"""Directories under many small combinations of options, each written by one release of RocksDB.

    combinations.py write ROWS DIR    writes each row of ROWS as DIR/<name>, laid out as rocks.py says
    combinations.py plain ROWS DIR    has compressed logs emptied, by the release that wrote them
    combinations.py judge DIR...      judges directories that Orogen wrote, then writes them on

ROWS is a list in JSON; a row has `name`, `seed`, `writer` (`9.8.4` or `7.8.3`), `wal`, `level`,
`deletes`, `merge`, `families`, `comparator`, `prefix`, and by sections of an OPTIONS file what is
not the default: `db`, `cf`, `table`. RocksDB 9.8.4 is the Python binding, its expected pairs are a
model's; 7.8.3 is db_bench, and what it expects is a scan by ldb. Each row has a process of its own,
forked from one that has no database open: starting an interpreter takes longer than a row.
"""

import json
import os
import pathlib
import random
import re
import shutil
import sys
import traceback

import check_orogen_dir
import rocks
from rocksdict import Options, Rdict, WriteBatch

REVERSE = "rocksdb.ReverseBytewiseComparator"
BENCH_MERGE = {"StringAppendOperator": "stringappend", "UInt64AddOperator": "uint64add"}
# The binding flushes a store that nothing refers to; these stay open until they are closed.
OPEN = []
JOBS = 2 * os.cpu_count()
# Enough for several blocks of the smallest size, restart points, and a few tables.
KEYS = 160
OPERATIONS = 70


def in_processes(tasks):
    """Does each task, a name and a function, in a process of its own; the names of those failed."""
    running, failed, tasks = {}, [], list(tasks)
    while tasks or running:
        while tasks and len(running) < JOBS:
            name, task = tasks.pop()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    task()
                    code = 0
                except BaseException as error:  # The binding raises what it likes.
                    print(f"{name}: {type(error).__name__}: {error}")
                    if not isinstance(error, rocks.Mismatch):
                        traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
                # Without closing what is open: as if killed.
                os._exit(code)
            running[child] = name
        child, status = os.wait()
        name = running.pop(child)
        if status != 0:
            failed.append(name)
    return sorted(failed)


# --- OPTIONS files ---


def changed(text, section, settings):
    """The text with other values in every section that begins so."""
    parts = re.split(r"(?m)^(?=\[)", text)
    for at, part in enumerate(parts):
        if part.startswith(f"[{section}"):
            for key, value in settings.items():
                line = f"  {key}={value}"
                part, found = re.subn(rf"(?m)^  {key}=.*$", lambda _: line, part)
                if found != 1:
                    raise rocks.Mismatch(f"{key} stands {found} times in an OPTIONS file")
            parts[at] = part
    return "".join(parts)


def newest_options(db):
    return max(pathlib.Path(db).glob("OPTIONS-*"))


def template(writer, out):
    """A database whose OPTIONS file has this release's defaults."""
    db = out / f"template-{writer}"
    if writer == "7.8.3":
        rocks.ldb(db, "put", "--create_if_missing", "key", "value")
    else:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        Rdict(str(db), options).close()


def options_of(row, text):
    everywhere = {
        "create_if_missing": "true",
        "create_missing_column_families": "true",
        # Files are as long as what is in them.
        "allow_fallocate": "false",
        "stats_dump_period_sec": "0",
        "stats_persist_period_sec": "0",
    }
    for section, settings in (
        ("DBOptions", everywhere | row["db"]),
        ("CFOptions", row["cf"]),
        ("TableOptions", row["table"]),
    ):
        text = changed(text, section, settings)
    return text


# --- RocksDB 9.8.4 ---


class Family:
    """A family of the binding beside a model."""

    def __init__(self, store, name, row, rng):
        self.store, self.name, self.rng = store, name, rng
        self.handle = rocks.handle_of(store, name)
        self.reverse = row["comparator"] == REVERSE
        self.ranges = row["deletes"] == "ranges"
        self.points = row["deletes"] != "none"
        self.model = {}

    def key(self):
        # Some are shorter than every prefix.
        number = self.rng.randrange(KEYS)
        return b"s%d" % number if number % 10 == 0 else b"key%06d" % number

    def value(self):
        return self.rng.randbytes(self.rng.randrange(1, 20)) + b"lorem ipsum " * self.rng.randrange(5)

    def write(self):
        for _ in range(OPERATIONS // 4):
            self.put(self.handle)
        batch = WriteBatch(raw_mode=True)
        if self.name != "default":
            batch.set_default_column_family(self.store.get_column_family_handle(self.name))
        for _ in range(OPERATIONS // 2):
            self.put(batch)
        self.store.write(batch)
        for _ in range(OPERATIONS // 8 if self.points else 0):
            key = self.key()
            self.handle.delete(key)
            self.model.pop(key, None)
        if self.ranges:
            begin, end = sorted((self.key(), self.key()), reverse=self.reverse)
            self.handle.delete_range(begin, end)
            low, high = min(begin, end), max(begin, end)
            for key in [k for k in self.model if low <= k <= high and k != end]:
                del self.model[key]
            self.put(self.handle)

    def put(self, into):
        key, value = self.key(), self.value()
        into.put(key, value)
        self.model[key] = value

    def expected(self):
        return sorted(self.model.items(), reverse=self.reverse)


def write_with_binding(row, folder, text):
    names = ["default", *(f"family{at}" for at in range(1, row["families"]))]
    text = options_of(row, text)
    at = text.index("[CFOptions")
    text += "".join(text[at:].replace('"default"', f'"{name}"') for name in names[1:])
    (folder / "OPTIONS-000001").write_text(text, encoding="ascii")
    options, columns = Options.load_latest(str(folder))
    store = Rdict(str(folder / "db"), options, columns)
    rng = random.Random(row["seed"])
    families = [Family(store, name, row, rng) for name in names]
    OPEN.append((store, families))
    for at in range(3):
        for family in families:
            family.write()
            family.handle.flush()
            if row["level"] != "0" and at == (2 if row["level"] == "last" else 1):
                family.handle.compact_range(None, None)
    if row["wal"] != "flushed":
        for family in families:
            family.write()
    expected = {family.name: family.expected() for family in families}
    if row["wal"] == "manual":
        store.flush_wal(True)
        # This stays in the writer's memory, and the writer ends as if killed.
        families[-1].put(families[-1].handle)
    if row["wal"] == "flushed":
        for family in families[1:]:
            family.handle.close()
        store.close()
    (folder / "OPTIONS-000001").unlink()
    return expected


# --- RocksDB 7.8.3 ---


def write_with_bench(row, folder, text):
    (folder / "options.ini").write_text(options_of(row, text), encoding="ascii")
    more = "mergerandom" if row["merge"] else "overwrite"
    benchmarks = ["fillrandom", "flush", more, "flush"]
    if row["level"] == "mixed":
        benchmarks.append("compact")
    if row["deletes"] == "points":
        benchmarks.append("deleterandom")
    benchmarks += [more, "flush"]
    if row["level"] == "last":
        benchmarks.append("compact")
    if row["wal"] != "flushed":
        benchmarks.append(more)
    flags = [
        f"--db={folder / 'db'}",
        f"--options_file={folder / 'options.ini'}",
        f"--benchmarks={','.join(benchmarks)}",
        f"--seed={row['seed']}",
        f"--num={2 * KEYS}",
        f"--merge_keys={KEYS // 2}",
        f"--deletes={OPERATIONS // 2}",
        f"--value_size={8 if row['merge'] == 'UInt64AddOperator' else 40}",
    ]
    if row["merge"]:
        flags.append(f"--merge_operator={BENCH_MERGE[row['merge']]}")
    if row["families"] > 1:
        flags += [f"--num_column_families={row['families']}", "--num_hot_column_families=0"]
    if row["deletes"] == "ranges":
        flags += [
            "--writes_per_range_tombstone=40",
            "--range_tombstone_width=12",
            "--max_num_range_tombstones=100",
        ]
    elif row["prefix"]:
        # The order of such keys is not that of their numbers, which a range needs.
        flags += ["--prefix_size=8", "--keys_per_prefix=10"]
    rocks.run("db_bench", *flags)
    (folder / "options.ini").unlink()
    db = folder / "db"
    # One start less where it is known that there is one.
    families = rocks.ldb_families(db) if row["families"] > 1 else ["default"]
    return {family: rocks.ldb_scan(db, family) for family in families}


# --- the commands ---


def write(row, folder, text):
    folder.mkdir(parents=True)
    writer = write_with_bench if row["writer"] == "7.8.3" else write_with_binding
    found = writer(row, folder, text)
    for family, pairs in found.items():
        rocks.write_dump(folder / "expected" / f"{family}.txt", pairs)
    meta = {key: row[key] for key in ("name", "writer", "comparator", "ldb_reads")}
    meta |= {
        "merge_operator": row["merge"],
        "features": [],
        "families": sorted(found),
        "options": " ".join(f"{k}={v}" for part in ("db", "cf", "table") for k, v in row[part].items()),
    }
    rocks.write_meta(folder, meta)


def make_log_plain(row, folder):
    """Opens the directory without compression of logs, which puts what the logs hold into tables."""
    db = folder / "db"
    options = newest_options(db)
    text = options.read_text(encoding="ascii")
    text = changed(text, "DBOptions", {"wal_compression": "kNoCompression"})
    options.write_text(text, encoding="ascii")
    if row["writer"] == "7.8.3":
        rocks.ldb(db, "delete", "no such key")
    else:
        rocks.open_latest(db).close()


def judge(folder):
    """7.8.3 reads and verifies all where it can; 9.8.4 reads, writes and compacts."""
    db = folder / "db"
    meta = rocks.read_meta(folder)
    expected = rocks.expected_of(folder)
    if meta["ldb_reads"]:
        check_orogen_dir.check_with_ldb(db, expected, strict=True)
    rng = random.Random(meta["name"])
    store = rocks.open_latest(db)
    for family, pairs in expected.items():
        check_orogen_dir.check_with_binding(store, family, pairs)
        pairs = check_orogen_dir.write_with_binding(store, family, pairs, rng)
        rocks.write_dump(folder / "expected" / f"{family}.txt", pairs)
    store.close()


def main():
    command, *paths = sys.argv[1:]
    if command == "judge":
        folders = [pathlib.Path(path).resolve() for path in paths]
        tasks = [(folder.name, lambda folder=folder: judge(folder)) for folder in folders]
    else:
        rows = json.loads(pathlib.Path(paths[0]).read_text(encoding="ascii"))
        out = pathlib.Path(paths[1]).resolve()
        if command == "write":
            shutil.rmtree(out, ignore_errors=True)
            texts = {}
            # In processes of their own: this one must have opened nothing when it forks.
            writers = sorted({row["writer"] for row in rows})
            out.mkdir(parents=True)
            if in_processes((w, lambda w=w: template(w, out)) for w in writers):
                return 1
            for writer in writers:
                path = out / f"template-{writer}"
                texts[writer] = newest_options(path).read_text(encoding="ascii")
                shutil.rmtree(path)

            def step(row):
                write(row, out / row["name"], texts[row["writer"]])

        else:

            def step(row):
                make_log_plain(row, out / row["name"])

        tasks = [(row["name"], lambda row=row: step(row)) for row in rows]
    failed = in_processes(tasks)
    if failed:
        print(f"{len(failed)} of {len(tasks)} failed: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
