#!/usr/bin/env python3
"""RocksDB as a primary that somebody else follows.

    primary.py DIR EXPECTED

Opens DIR with small memtables and recycled logs. Each line on the standard input is a seed: a
round of random writes in two families, with flushes, compactions and families that come and go
in between. After each round what all families hold is in the folder EXPECTED, a dump each, and
`done` is printed. It ends when the input does, without closing the database.
"""

import os
import pathlib
import random
import shutil
import sys

import rocks
from rocksdict import Options, Rdict, WriteBatch

KEYS = 400


def settings():
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(64 << 10)
    options.set_target_file_size_base(64 << 10)
    options.set_max_bytes_for_level_base(256 << 10)
    options.set_level_zero_file_num_compaction_trigger(2)
    options.set_recycle_log_file_num(2)
    options.set_max_manifest_file_size(4 << 10)
    return options


def play(rng, store, handles):
    for _ in range(rng.randrange(5, 60)):
        name = rng.choice(sorted(handles))
        what = rng.randrange(30)
        if what == 0:
            handles[name].flush()
        elif what == 1:
            handles[name].compact_range(None, None)
        elif what == 2 and len(handles) < 4:
            new = f"family{rng.randrange(1 << 30)}"
            handles[new] = store.create_column_family(new, settings())
        elif what == 3 and name != "default":
            del handles[name]
            store.drop_column_family(name)
        else:
            batch = WriteBatch(raw_mode=True)
            for _ in range(rng.randrange(1, 30)):
                family = store.get_column_family_handle(rng.choice(sorted(handles)))
                key = f"key{rng.randrange(KEYS):04}".encode()
                if rng.randrange(5) == 0:
                    batch.delete(key, family)
                else:
                    batch.put(key, rng.randbytes(rng.randrange(200)), family)
            store.write(batch)


def main():
    directory, expected = sys.argv[1], pathlib.Path(sys.argv[2])
    names = Rdict.list_cf(directory) if pathlib.Path(directory).exists() else ["default"]
    store = Rdict(directory, settings(), {name: settings() for name in names})
    handles = {name: rocks.handle_of(store, name) for name in names}
    for line in sys.stdin:
        play(random.Random(int(line)), store, handles)
        shutil.rmtree(expected, ignore_errors=True)
        expected.mkdir(parents=True)
        for name, handle in handles.items():
            rocks.write_dump(expected / name, list(handle.items()))
        print("done", flush=True)
    # As if it was killed.
    os._exit(0)


if __name__ == "__main__":
    main()
