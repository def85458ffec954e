"""The cases: what a directory is written with, and by whom.

A case is a function that writes `db` below the folder it is given and returns what the database
must hold, by family, or None where only a scan can tell. The registry keeps them by name.
"""

import dataclasses
import typing

import rocks
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Checkpoint,
    ChecksumType,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SliceTransform,
    SstFileWriter,
    WriteOptions,
)
from workload import Workload

BYTEWISE = "leveldb.BytewiseComparator"
REVERSE = "rocksdb.ReverseBytewiseComparator"
BINDING = "rocksdict 0.3.29 (RocksDB 9.8.4)"
BENCH = "db_bench 7.8.3"
LDB = "ldb 7.8.3"


@dataclasses.dataclass
class Case:
    name: str
    write: typing.Callable
    writer: str
    options: str
    comparator: str = BYTEWISE
    merge_operator: str = ""
    # What a reader needs beyond puts, deletes, merges and range deletions in block-based tables.
    features: tuple = ()
    # False where Debian's RocksDB is too old to read the tables.
    ldb_reads: bool = True
    # The writer ends as if killed, with data in the log only.
    killed: bool = False


CASES = {}


def case(name, writer=BINDING, **about):
    def register(write):
        CASES[name] = Case(name=name, write=write, writer=writer, **about)
        return write

    return register


# --- the binding under one changed option: the same workload each ---


def default_options(format_version=5):
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    table = BlockBasedOptions()
    table.set_format_version(format_version)
    table.set_block_size(1024)
    return options, table


# The binding flushes a store that nothing refers to; these stay open until they are closed.
OPEN = []


def open_store(folder, options, table=None):
    if table is not None:
        options.set_block_based_table_factory(table)
    store = Rdict(str(folder / "db"), options)
    OPEN.append(store)
    return store


def close(store):
    store.close()


def option_case(name, described, change, format_version=5, compact=True, features=()):
    def write(folder):
        options, table = default_options(format_version)
        change(options, table)
        store = open_store(folder, options, table)
        load = Workload({"default": store}, seed=name)
        load.run(compact=compact)
        close(store)
        return load.expected()

    reads = format_version <= rocks.LDB_FORMAT_VERSION_MAX
    case(name, options=described, ldb_reads=reads, features=features)(write)


for codec in ("none", "snappy", "zlib", "bz2", "lz4", "lz4hc", "zstd"):
    option_case(
        f"codec-{codec}",
        f"compression={codec}",
        lambda o, t, codec=codec: o.set_compression_type(getattr(DBCompressionType, codec)()),
        features=(codec,) if codec in ("zlib", "bz2") else (),
    )


def zstd_dictionary(options, table):
    options.set_compression_type(DBCompressionType.zstd())
    options.set_compression_options(-14, 3, 0, 4096)
    options.set_zstd_max_train_bytes(65536)


option_case("codec-zstd-dictionary", "compression=zstd max_dict_bytes=4096", zstd_dictionary)


def codec_by_level(options, table):
    kinds = DBCompressionType
    options.set_compression_per_level([kinds.none(), kinds.lz4(), kinds.zstd()])
    options.set_num_levels(3)


option_case("codec-by-level", "compression_per_level=none,lz4,zstd", codec_by_level)

for checksum in ("no_checksum", "xxhash", "xxhash64", "xxh3"):
    option_case(
        f"checksum-{checksum.replace('_', '-')}",
        f"checksum={checksum}",
        lambda o, t, kind=checksum: t.set_checksum_type(getattr(ChecksumType, kind)()),
    )

for version in (2, 3, 4, 6):
    option_case(f"format-{version}", f"format_version={version}", lambda o, t: None, version)
option_case(
    "format-6-xxh3-lz4",
    "format_version=6 checksum=xxh3 compression=lz4",
    lambda o, t: (
        t.set_checksum_type(ChecksumType.xxh3()),
        o.set_compression_type(DBCompressionType.lz4()),
    ),
    6,
)

option_case("filter-bloom", "bloom 10 bits", lambda o, t: t.set_bloom_filter(10, False))
option_case(
    "filter-bloom-legacy",
    "bloom 10 bits, format_version=4: the older layout",
    lambda o, t: t.set_bloom_filter(10, False),
    4,
)


def partitioned(options, table):
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(256)
    table.set_bloom_filter(10, False)


option_case("index-filter-partitioned", "two-level index, partitioned bloom", partitioned)
option_case("index-filter-partitioned-6", "the same in format_version=6", partitioned, 6)
option_case(
    "index-two-level",
    "two-level index, metadata_block_size=256",
    lambda o, t: (
        t.set_index_type(BlockBasedIndexType.two_level_index_search()),
        t.set_metadata_block_size(256),
    ),
)


def hash_index(options, table):
    table.set_index_type(BlockBasedIndexType.hash_search())
    options.set_prefix_extractor(SliceTransform.create_fixed_prefix(5))


option_case("index-hash", "hash index over prefixes of 5 bytes", hash_index)
option_case(
    "index-restart-interval",
    "index_block_restart_interval=16 block_restart_interval=4",
    lambda o, t: (t.set_index_block_restart_interval(16), t.set_block_restart_interval(4)),
)
option_case(
    "block-hash-index",
    "data_block_index_type=binary_and_hash",
    lambda o, t: (
        t.set_data_block_index_type(DataBlockIndexType.binary_and_hash()),
        t.set_data_block_hash_ratio(0.75),
    ),
)


def prefix_bloom(options, table):
    options.set_prefix_extractor(SliceTransform.create_max_len_prefix(6))
    options.set_memtable_prefix_bloom_ratio(0.1)
    table.set_bloom_filter(10, False)


option_case("prefix-extractor", "capped prefix of 6 bytes, bloom 10 bits", prefix_bloom)

option_case(
    "compaction-universal",
    "compaction_style=universal",
    lambda o, t: (
        o.set_compaction_style(DBCompactionStyle.universal()),
        o.set_level_zero_file_num_compaction_trigger(2),
    ),
)


def small_levels(dynamic):
    def change(options, table):
        options.set_level_compaction_dynamic_level_bytes(dynamic)
        options.set_write_buffer_size(64 << 10)
        options.set_target_file_size_base(8 << 10)
        options.set_max_bytes_for_level_base(16 << 10)
        options.set_level_zero_file_num_compaction_trigger(2)

    return change


option_case("levels-dynamic", "dynamic level bytes, tiny levels", small_levels(True), compact=False)
option_case("levels-static", "static level bytes, tiny levels", small_levels(False), compact=False)
option_case(
    "manifest-many",
    "max_manifest_file_size=1: a new MANIFEST for each edit",
    lambda o, t: o.set_max_manifest_file_size(1),
)
option_case("write-unordered", "unordered_write", lambda o, t: o.set_unordered_write(True))
option_case(
    "write-pipelined", "enable_pipelined_write", lambda o, t: o.set_enable_pipelined_write(True)
)


# --- the binding, each with a story ---


@case("empty", options="created, nothing written")
def write_empty(folder):
    close(open_store(folder, *default_options()))
    return {"default": []}


@case("all-deleted", options="every key deleted, tombstones in tables")
def write_all_deleted(folder):
    options, table = default_options()
    options.set_disable_auto_compactions(True)
    load = Workload({"default": open_store(folder, options, table)}, seed="deleted")
    load.phase()
    load.flush()
    for key in list(load.models["default"]):
        load.delete(key)
    load.flush()
    close(load.families["default"])
    return load.expected()


@case("l0-many", options="30 files in level 0, auto compactions off")
def write_l0_many(folder):
    options, table = default_options()
    options.set_disable_auto_compactions(True)
    load = Workload({"default": open_store(folder, options, table)}, seed="l0")
    for _ in range(30):
        load.phase(count=60)
        load.flush()
    close(load.families["default"])
    return load.expected()


@case("families", options="four families with options of their own, one of them dropped")
def write_families(folder):
    options, table = default_options()
    store = open_store(folder, options, table)
    families = {"default": store}
    for name, codec in (("zstd", "zstd"), ("plain", "none"), ("gone", "lz4")):
        own, own_table = default_options()
        own.set_compression_type(getattr(DBCompressionType, codec)())
        own.set_block_based_table_factory(own_table)
        families[name] = store.create_column_family(name, own)
    load = Workload(families, seed="families")
    load.run()
    families.pop("gone").close()
    store.drop_column_family("gone")
    load.models.pop("gone")
    load.phase("plain", 100)
    for name in ("zstd", "plain"):
        families[name].close()
    close(store)
    return load.expected()


@case("families-log", options="three families, data in the log", killed=True)
def write_families_log(folder):
    options, table = default_options()
    store = open_store(folder, options, table)
    families = {"default": store}
    for name in ("one", "two"):
        own, own_table = default_options()
        own.set_block_based_table_factory(own_table)
        families[name] = store.create_column_family(name, own)
    load = Workload(families, seed="families-log")
    for _ in range(3):
        for name in families:
            load.phase(name, 150)
        load.flush("one")
    return load.expected()


@case("log-only", options="nothing flushed, killed", killed=True)
def write_log_only(folder):
    load = Workload({"default": open_store(folder, *default_options())}, seed="log")
    load.phase(count=1500)
    return load.expected()


@case("log-and-tables", options="flushed, written on, killed", killed=True)
def write_log_and_tables(folder):
    load = Workload({"default": open_store(folder, *default_options())}, seed="log+")
    load.run()
    load.delete_range(b"key000100", b"key000200")
    load.phase(count=300)
    load.delete_range(b"key000150", b"key000160")
    load.phase(count=100)
    return load.expected()


@case("log-fragments", options="records of the log longer than its blocks, killed", killed=True)
def write_log_fragments(folder):
    load = Workload({"default": open_store(folder, *default_options())}, seed="fragments")
    for at in range(120):
        load.put(f"key{at:05d}".encode(), load.rng.randbytes(load.rng.randrange(1, 90_000)))
    return load.expected()


@case("log-recycled", options="recycle_log_file_num=2, killed", killed=True)
def write_log_recycled(folder):
    options, table = default_options()
    options.set_recycle_log_file_num(2)
    options.set_write_buffer_size(64 << 10)
    load = Workload({"default": open_store(folder, options, table)}, seed="recycled")
    for _ in range(8):
        load.phase(count=300)
        load.flush()
    # Shorter than what the recycled file held before: old records follow the new ones.
    load.phase(count=80)
    return load.expected()


@case("log-recycled-families", options="the same, one of two families needs them all", killed=True)
def write_log_recycled_families(folder):
    options, table = default_options()
    options.set_recycle_log_file_num(2)
    store = open_store(folder, options, table)
    own, own_table = default_options()
    own.set_block_based_table_factory(own_table)
    families = {"default": store, "busy": store.create_column_family("busy", own)}
    load = Workload(families, seed="recycled-families")
    for count in (300, 100):
        for _ in range(4):
            load.phase("default", count // 5)
            load.phase("busy", count)
            load.flush("busy")
        if count == 300:
            load.flush("default")
    load.phase("default", 20)
    return load.expected()


@case("log-off", options="written without the log, then flushed")
def write_log_off(folder):
    store = open_store(folder, *default_options())
    without_log = WriteOptions()
    without_log.disable_wal = True
    store.set_write_options(without_log)
    load = Workload({"default": store}, seed="off")
    for at in range(1500):
        load.put(f"{at * 7 % 1500:05d}".encode(), load.value())
    load.flush()
    close(store)
    return load.expected()


@case("range-deletions", options="range tombstones in tables over older levels")
def write_range_deletions(folder):
    options, table = default_options()
    options.set_disable_auto_compactions(True)
    load = Workload({"default": open_store(folder, options, table)}, seed="ranges")
    for at in range(6):
        load.phase(count=400)
        for _ in range(5):
            begin, end = sorted((load.key(), load.key()))
            load.delete_range(begin, end)
        load.phase(count=100)
        load.flush()
        if at == 2:
            load.families["default"].compact_range(None, b"key000350")
    close(load.families["default"])
    return load.expected()


@case("range-deletions-6", options="range tombstones in format_version=6", ldb_reads=False)
def write_range_deletions_new(folder):
    options, table = default_options(6)
    load = Workload({"default": open_store(folder, options, table)}, seed="ranges-6")
    for _ in range(4):
        load.phase(count=400)
        begin, end = sorted((load.key(), load.key()))
        load.delete_range(begin, end)
        load.flush()
    close(load.families["default"])
    return load.expected()


@case("snapshots", options="several versions of each key kept in tables by snapshots")
def write_snapshots(folder):
    store = open_store(folder, *default_options())
    load = Workload({"default": store}, seed="snapshots", keys=200)
    snapshots = []
    for _ in range(4):
        load.phase(count=300)
        snapshots.append(store.snapshot())
    load.flush()
    store.compact_range(None, None)
    snapshots.clear()
    close(store)
    return load.expected()


@case("bytes", options="keys of any bytes, empty key, empty values, prefixes of each other")
def write_bytes(folder):
    store = open_store(folder, *default_options())
    load = Workload({"default": store}, seed="bytes")
    load.put(b"", b"value of the empty key")
    for length in range(1, 40):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            load.put(bytes([byte]) * length, b"")
            load.put(bytes([0xFF]) * length + bytes([byte]), bytes([byte]) * length)
    for _ in range(800):
        load.put(load.rng.randbytes(load.rng.randrange(1, 24)), load.rng.randbytes(5))
    load.flush()
    for key in load.rng.sample(sorted(load.models["default"]), 200):
        load.delete(key)
    load.put(b"k" * 5000, b"a long key")
    load.flush()
    close(store)
    return load.expected()


@case("values-large", options="values to 200 KiB, lz4")
def write_values_large(folder):
    options, table = default_options()
    options.set_compression_type(DBCompressionType.lz4())
    store = open_store(folder, options, table)
    load = Workload({"default": store}, seed="large")
    for at in range(40):
        half = load.rng.randrange(100 << 10)
        load.put(f"large{at % 25:03d}".encode(), load.rng.randbytes(half) + b"x" * half)
        if at % 15 == 14:
            load.flush()
    load.flush()
    close(store)
    return load.expected()


@case("ingested", options="files from outside over and under what was written")
def write_ingested(folder):
    options, table = default_options()
    options.set_disable_auto_compactions(True)
    store = open_store(folder, options, table)
    load = Workload({"default": store}, seed="ingested")
    load.phase()
    for at in range(3):
        own, own_table = default_options()
        own.set_block_based_table_factory(own_table)
        path = str(folder / f"outside{at}.sst")
        writer = SstFileWriter(own)
        writer.open(path)
        for key in sorted({load.key() for _ in range(100)}):
            value = load.value()
            writer[key] = value
            load.models["default"][key] = value
        writer.finish()
        ingest = IngestExternalFileOptions()
        ingest.set_move_files(True)
        store.ingest_external_file([path], ingest)
        load.phase(count=100)
    load.flush()
    close(store)
    for path in folder.glob("outside*.sst"):
        path.unlink()
    return load.expected()


@case("ingested-ldb", writer=LDB, options="ldb ingest_extern_sst, sequence number in the file")
def write_ingested_by_ldb(folder):
    db, outside = folder / "db", folder / "outside.sst"
    pairs = {f"row{at:04d}": f"old {at}" for at in range(0, 600, 2)}
    new = {f"row{at:04d}": f"new {at}" for at in range(0, 600, 3)}

    def lines(pairs):
        return "".join(f"{key} ==> {value}\n" for key, value in pairs.items())

    rocks.ldb(db, "load", "--create_if_missing", stdin=lines(pairs))
    rocks.ldb(db, "write_extern_sst", outside, stdin=lines(new))
    rocks.ldb(db, "ingest_extern_sst", outside, "--allow_global_seqno", "--write_global_seqno")
    outside.unlink()
    return {"default": [(k.encode(), v.encode()) for k, v in sorted((pairs | new).items())]}


@case("reopened", options="opened and written ten times: many OPTIONS and MANIFEST files")
def write_reopened(folder):
    load = Workload({}, seed="reopened")
    load.models["default"] = {}
    for _ in range(10):
        load.families["default"] = open_store(folder, *default_options())
        load.phase(count=120)
        close(load.families["default"])
    return load.expected()


@case("checkpoint", options="a checkpoint of a database that was written on")
def write_checkpoint(folder):
    options, table = default_options()
    options.set_block_based_table_factory(table)
    store = Rdict(str(folder / "origin"), options)
    load = Workload({"default": store}, seed="checkpoint")
    load.run()
    load.phase(count=50)
    expected = load.expected()
    Checkpoint(store).create_checkpoint(str(folder / "db"))
    load.phase(count=50)
    close(store)
    rocks.run("rm", "-r", folder / "origin")
    return expected


@case("repaired", options="MANIFEST and CURRENT lost, then repaired")
def write_repaired(folder):
    load = Workload({"default": open_store(folder, *default_options())}, seed="repaired")
    load.run()
    close(load.families["default"])
    (folder / "db" / "CURRENT").unlink()
    for path in (folder / "db").glob("MANIFEST-*"):
        path.unlink()
    options, table = default_options()
    options.set_block_based_table_factory(table)
    Rdict.repair(str(folder / "db"), options)
    return load.expected()


def write_blobs(folder, codec, size_min, collects):
    options, table = default_options()
    options.set_enable_blob_files(True)
    options.set_min_blob_size(size_min)
    options.set_blob_file_size(64 << 10)
    options.set_blob_compression_type(codec)
    options.set_enable_blob_gc(collects)
    store = open_store(folder, options, table)
    load = Workload({"default": store}, seed="blobs")
    for at in range(4):
        load.phase(count=200)
        for _ in range(60):
            load.put(load.key(), load.rng.randbytes(40) * load.rng.randrange(1, 60))
        load.flush()
        if at == 1:
            store.compact_range(None, None)
    close(store)
    return load.expected()


case("blobs", options="integrated blob files, lz4, garbage collection", features=("blob",))(
    lambda folder: write_blobs(folder, DBCompressionType.lz4(), size_min=200, collects=True)
)
case("blobs-all", options="integrated blob files, zstd, every value", features=("blob",))(
    lambda folder: write_blobs(folder, DBCompressionType.zstd(), size_min=0, collects=False)
)


@case("wide-columns", options="entities of several columns", features=("wide-columns",))
def write_wide_columns(folder):
    store = open_store(folder, *default_options())
    for at in range(200):
        store.put_entity(f"row{at:04d}".encode(), [b"", b"b"], [b"first", str(at).encode()])
    store.flush()
    close(store)
    # A scan shows the column without a name.
    return {"default": [(f"row{at:04d}".encode(), b"first") for at in range(200)]}


# --- db_bench and ldb ---


def bench_case(name, options, *flags, **about):
    def write(folder):
        flags_given = [f"--{flag}" for flag in flags]
        rocks.run(
            "db_bench",
            f"--db={folder / 'db'}",
            "--seed=7",
            "--num=1500",
            "--value_size=60",
            "--block_size=1024",
            "--compression_type=none",
            "--write_buffer_size=65536",
            *flags_given,
        )

    case(name, writer=BENCH, options=options, **about)(write)


WRITE_ALL = "benchmarks=fillrandom,overwrite,flush,waitforcompaction"
for version in (0, 1):
    bench_case(
        f"format-{version}",
        f"format_version={version}: the oldest footers",
        WRITE_ALL,
        f"format_version={version}",
        "checksum_type=1",
    )
bench_case(
    "blobs-by-level",
    "integrated blob files from level 1 on, all values, read ahead by compactions",
    "benchmarks=fillrandom,compact0,overwrite,flush,waitforcompaction",
    "enable_blob_files",
    "min_blob_size=50",
    "blob_file_starting_level=1",
    "enable_blob_garbage_collection",
    "blob_garbage_collection_age_cutoff=0.5",
    "blob_compaction_readahead_size=65536",
    features=("blob",),
)
bench_case("filter-ribbon", "ribbon 10 bits", WRITE_ALL, "use_ribbon_filter", "bloom_bits=10")
bench_case(
    "filter-ribbon-partitioned",
    "partitioned ribbon filter and index",
    WRITE_ALL,
    "use_ribbon_filter",
    "bloom_bits=10",
    "partition_index_and_filters",
    "metadata_block_size=256",
)
bench_case(
    "filter-prefix-only",
    "bloom 10 bits over prefixes, none over whole keys",
    WRITE_ALL,
    "bloom_bits=10",
    "prefix_size=8",
    "keys_per_prefix=10",
    "whole_key_filtering=false",
)
bench_case("index-first-key", "index with first keys", WRITE_ALL, "index_with_first_key")
bench_case("index-plain", "index not compressed", WRITE_ALL, "enable_index_compression=false")
bench_case("index-long", "index keys not shortened", WRITE_ALL, "index_shortening_mode=0")
bench_case(
    "families-bench", "three families", WRITE_ALL, "num_column_families=3", "num_hot_column_families=0"
)
bench_case("log-bench", "db_bench leaves its data in the log", "benchmarks=fillrandom",
           "write_buffer_size=67108864")
bench_case(
    "log-compressed",
    "wal_compression=zstd, data in the log",
    "benchmarks=fillrandom",
    "write_buffer_size=67108864",
    "wal_compression=zstd",
    features=("wal-compression",),
)
bench_case(
    "threads", "four writers", "benchmarks=fillrandom", "threads=4", "num=500", "batch_size=10"
)
bench_case(
    "range-deletions-bench",
    "a range tombstone in 50 writes",
    "benchmarks=fillrandom,flush,waitforcompaction",
    "writes_per_range_tombstone=50",
    "range_tombstone_width=20",
    "max_num_range_tombstones=100",
)
bench_case(
    "single-deletions",
    "single deletes and new puts in turn",
    "benchmarks=fillrandom,randomreplacekeys,flush",
    "use_single_deletes",
    "numdistinct=50",
)
for operator, label in (("stringappend", "StringAppendOperator"), ("uint64add", "UInt64AddOperator")):
    bench_case(
        f"merge-{operator}",
        f"merge_operator={operator}, operands in several levels and in the log",
        "benchmarks=mergerandom,flush,mergerandom,waitforcompaction",
        f"merge_operator={operator}",
        "merge_keys=300",
        "value_size=8",
        "write_buffer_size=16384",
        merge_operator=label,
    )


@case("reverse", writer=BENCH, options="the reverse bytewise order", comparator=REVERSE)
def write_reverse(folder):
    # db_bench takes other orders from an options file only.
    rocks.run("db_bench", f"--db={folder / 'origin'}", "--benchmarks=fillseq", "--num=1")
    options = max((folder / "origin").glob("OPTIONS-*"))
    changed = folder / "reverse.ini"
    text = options.read_text(encoding="ascii")
    changed.write_text(text.replace(f"={BYTEWISE}", f"={REVERSE}"), encoding="ascii")
    rocks.run("rm", "-r", folder / "origin")
    rocks.run(
        "db_bench",
        f"--db={folder / 'db'}",
        f"--options_file={changed}",
        "--benchmarks=fillrandom,flush,overwrite,flush,overwrite",
        "--num=1500",
        "--value_size=60",
        "--seed=9",
    )
    changed.unlink()


@case("loaded", writer=LDB, options="ldb load, deleterange, put")
def write_loaded(folder):
    db = folder / "db"
    pairs = {f"row{at * 37 % 900:04d}": f"value {at}" for at in range(900)}
    text = "".join(f"{key} ==> {value}\n" for key, value in pairs.items())
    rocks.ldb(db, "load", "--create_if_missing", stdin=text)
    rocks.ldb(db, "deleterange", "row0100", "row0200")
    rocks.ldb(db, "put", "row0150", "again")
    kept = {k: v for k, v in pairs.items() if not "row0100" <= k < "row0200"}
    kept["row0150"] = "again"
    return {"default": [(k.encode(), v.encode()) for k, v in sorted(kept.items())]}
