"""Writes the blob files of testdata/blob with RocksDB's own programs.

Run: python make_blob.py <output directory>
Needs ldb (7.8 was used) on PATH, and the package rocksdict (9.8 was used).

Each line of index.txt: file, records, FNV-1a 64 of the lines "key value" in hex, in the order of
the file.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rocksdict import DBCompressionType, Options, Rdict

CODECS = ("none", "snappy", "lz4", "lz4hc", "zstd")


# The binding's RocksDB fails to write these ("Error compressing blob"); ldb's writes them, but no
# value that does not shrink.
OF_LDB = ("zlib", "bzip2")


def records(codec):
    rng = random.Random(7)
    for at in range(40):
        key = f"key{at:04d}".encode() + b"x" * rng.randrange(4)
        if codec in OF_LDB:
            value = rng.randbytes(8) * rng.randrange(30, 60)
        elif at % 4 == 0:
            value = rng.randbytes(rng.randrange(1, 300))
        else:
            value = rng.randbytes(8) * rng.randrange(1, 60)
        yield key, value


def fnv(digest, data):
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return digest


def with_rocksdict(folder, codec):
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(0)
    options.set_blob_compression_type(getattr(DBCompressionType, codec)())
    store = Rdict(folder, options)
    for key, value in records(codec):
        store[key] = value
    store.flush()
    store.close()


def with_ldb(folder, codec):
    common = ["ldb", f"--db={folder}", "--hex", "--enable_blob_files", "--min_blob_size=0"]
    common.append(f"--blob_compression_type={codec}")
    lines = [f"0x{key.hex()} ==> 0x{value.hex()}\n" for key, value in records(codec)]
    load = [*common, "load", "--create_if_missing", "--bulk_load"]
    subprocess.run(load, input="".join(lines), text=True, check=True)
    subprocess.run([*common, "compact"], check=True)


def write(codec, target):
    with tempfile.TemporaryDirectory() as folder:
        (with_ldb if codec in OF_LDB else with_rocksdict)(folder, codec)
        (made,) = Path(folder).glob("*.blob")
        shutil.copyfile(made, target)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for codec in (*CODECS, *OF_LDB):
        write(codec, out / f"{codec}.blob")
        digest = 0xCBF29CE484222325
        for key, value in records(codec):
            digest = fnv(digest, f"{key.hex()} {value.hex()}\n".encode())
        lines.append(f"{codec}.blob {len(list(records(codec)))} {digest:016x}\n")
    (out / "index.txt").write_text("".join(lines))


main()
