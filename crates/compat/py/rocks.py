"""What the generator and the checker share: dumps, and calls of RocksDB's own programs.

A case is a folder with
    db/                 the database directory
    expected/<cf>.txt   a line for each pair, in the order of a scan: key and value in hex
    meta.json           who wrote it, under which options, and what it needs of a reader
"""

import json
import pathlib
import subprocess

from rocksdict import Options, Rdict, ReadOptions

# The newest table format that Debian's RocksDB 7.8.3 reads.
LDB_FORMAT_VERSION_MAX = 5


class Mismatch(Exception):
    """A program of RocksDB does not agree with what was expected."""


def run(*command, stdin=None):
    """Runs a program and returns what it printed; a failure has its output in the message."""
    done = subprocess.run(
        [str(word) for word in command],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise Mismatch(f"{' '.join(str(w) for w in command)} exited {done.returncode}\n{tail}")
    return done.stdout


def write_dump(path, pairs):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii") as out:
        for key, value in pairs:
            out.write(f"{key.hex()} {value.hex()}\n")


def read_dump(path):
    pairs = []
    for line in path.read_text(encoding="ascii").splitlines():
        key, value = line.split(" ")
        pairs.append((bytes.fromhex(key), bytes.fromhex(value)))
    return pairs


def write_meta(case_dir, meta):
    text = json.dumps(meta, indent=2, sort_keys=True) + "\n"
    (case_dir / "meta.json").write_text(text, encoding="ascii")


def read_meta(case_dir):
    return json.loads((case_dir / "meta.json").read_text(encoding="ascii"))


def expected_of(case_dir):
    """The expected pairs of each family, by name."""
    meta = read_meta(case_dir)
    dumps = case_dir / "expected"
    return {family: read_dump(dumps / f"{family}.txt") for family in meta["families"]}


def describe_difference(want, got):
    """The first difference of two lists of pairs, in words."""
    for at, (wanted, found) in enumerate(zip(want, got)):
        if wanted != found:
            wanted, found = (f"{k.hex()}={v.hex()[:80]}" for k, v in (wanted, found))
            return f"pair {at}: expected {wanted}, found {found}"
    return f"expected {len(want)} pairs, found {len(got)}"


def compare(what, want, got):
    if want != got:
        raise Mismatch(f"{what}: {describe_difference(want, got)}")


# --- Debian's tools ---


def ldb(db, *args, stdin=None, strict=False):
    """Calls ldb. A newer RocksDB writes options that it does not know; `strict` forbids them."""
    lenient = () if strict else ("--ignore_unknown_options",)
    return run("ldb", f"--db={db}", *lenient, *args, stdin=stdin)


def ldb_families(db):
    text = ldb(db, "list_column_families")
    inside = text[text.index("{") + 1 : text.rindex("}")]
    return [name.strip() for name in inside.split(",")]


def ldb_scan(db, family, strict=False):
    """Every pair of a family, as RocksDB 7.8.3 reads it; the directory stays as it is."""
    pairs = []
    text = ldb(db, f"--column_family={family}", "scan", "--hex", strict=strict)
    for line in text.splitlines():
        key, colon, value = line.partition(" : ")
        if not colon and line.endswith(" :"):
            key, value = line[:-2], "0x"
        if not key.startswith("0x") or not value.startswith("0x"):
            raise Mismatch(f"ldb scan printed: {line[:200]}")
        pairs.append((bytes.fromhex(key[2:]), bytes.fromhex(value[2:])))
    return pairs


def verify_tables(db):
    """Lets sst_dump read every block of every table and compare its checksum."""
    tables = len(list(pathlib.Path(db).glob("*.sst")))
    if tables:
        # Without the second word it reads the blocks and compares nothing.
        text = run("sst_dump", f"--file={db}", "--command=verify", "--verify_checksum")
        if "Corruption" in text or text.count("The file is ok") != tables:
            raise Mismatch(f"sst_dump verify of {tables} tables: {text[-400:]}")


# --- the Python binding ---


def open_latest(db):
    """Opens for writing under the options that the directory says it was written with."""
    options, families = Options.load_latest(str(db))
    options.create_if_missing(False)
    return Rdict(str(db), options, families)


def handle_of(store, family):
    return store if family == "default" else store.get_column_family(family)


def scan(store, family="default", backwards=False):
    """Every pair. Without the option a family with prefixes is only read right within one."""
    options = ReadOptions()
    options.set_total_order_seek(True)
    items = handle_of(store, family).items(backwards=backwards, read_opt=options)
    return [(bytes(key), bytes(value)) for key, value in items]
