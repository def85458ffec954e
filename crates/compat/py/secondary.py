#!/usr/bin/env python3
"""RocksDB as a secondary of a database that somebody else writes.

    secondary.py DIR OWN_DIR EXPECTED

Follows the default family of DIR. For each line on the standard input it catches up, writes what
it sees to the file EXPECTED, and prints `done`.
"""

import os
import pathlib
import sys

import rocks
from rocksdict import AccessType, Options, Rdict


def main():
    directory, own, expected = sys.argv[1:]
    options = Options(raw_mode=True)
    options.set_max_open_files(-1)
    store = Rdict(directory, options, access_type=AccessType.secondary(own))
    for _ in sys.stdin:
        store.try_catch_up_with_primary()
        rocks.write_dump(pathlib.Path(expected), list(store.items()))
        print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
