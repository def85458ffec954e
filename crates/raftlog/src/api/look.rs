//! Looking at a directory that is not open: its records, and whether they are whole. Nothing is changed.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_env::FileSystem;

use super::{Command, Error, Result};
use crate::dirs::Dirs;
use crate::events::FileBlockHandle;
use crate::format::Compression;
use crate::item::{Entries, Item, Op};
use crate::memtable::Block;
use crate::names::{FileId, Name, Queue, parse};
use crate::recover::{list, look, newest_of};

/// How a block of entries is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompressionType {
    /// As it is.
    None = 0,
    /// LZ4.
    Lz4 = 1,
}

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryIndex {
    /// Its index in the log.
    pub index: u64,
    /// The block of the entries that were written together; its length is that in the file.
    pub entries: Option<FileBlockHandle>,
    /// How the block is stored.
    pub compression_type: CompressionType,
    /// Where the entry begins in the raw block.
    pub entry_offset: u32,
    /// Bytes of the entry.
    pub entry_len: u32,
}

/// Entries of consecutive indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryIndexes(pub Vec<EntryIndex>);

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpType {
    /// It is set.
    Put = 1,
    /// It is removed.
    Del = 2,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Which.
    pub op_type: OpType,
    /// The key.
    pub key: Vec<u8>,
    /// Its value if it is set.
    pub value: Option<Vec<u8>>,
    /// The file that says so.
    pub file_id: Option<FileId>,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItemContent {
    /// Adds entries.
    EntryIndexes(EntryIndexes),
    /// Concerns the whole group.
    Command(Command),
    /// Changes a key. The key `__\x01` marks records of the rewrite queue that take effect together.
    Kv(KeyValue),
}

/// An operation on a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogItem {
    /// The group.
    pub raft_group_id: u64,
    /// What is done to it.
    pub content: LogItemContent,
}

fn entry_indexes(entries: &Entries, block: Block) -> EntryIndexes {
    let handle = FileBlockHandle {
        id: block.file,
        offset: block.offset,
        len: block.len as usize,
    };
    let compression_type = match block.compression {
        Compression::None => CompressionType::None,
        Compression::Lz4 => CompressionType::Lz4,
    };
    let mut entry_offset = entries.start;
    let each = entries
        .ends
        .iter()
        .zip(entries.first..)
        .map(|(end, index)| {
            let entry = EntryIndex {
                index,
                entries: Some(handle),
                compression_type,
                entry_offset,
                entry_len: end - entry_offset,
            };
            entry_offset = *end;
            entry
        });
    EntryIndexes(each.collect())
}

fn log_item(item: Item, block: Block) -> LogItem {
    let change = |op_type, key, value| {
        LogItemContent::Kv(KeyValue {
            op_type,
            key,
            value,
            file_id: Some(block.file),
        })
    };
    let content = match item.op {
        Op::Entries(entries) => LogItemContent::EntryIndexes(entry_indexes(&entries, block)),
        Op::Clean => LogItemContent::Command(Command::Clean),
        Op::Compact { index } => LogItemContent::Command(Command::Compact { index }),
        Op::Put { key, value } => change(OpType::Put, key, Some(value)),
        Op::Delete { key } => change(OpType::Del, key, None),
    };
    LogItem {
        raft_group_id: item.group,
        content,
    }
}

/// The operations of files, one after the other. A file is read when it is come to, but for the
/// entries themselves; its damage is an error behind what is before it.
pub struct LogItemReader<F> {
    fs: Arc<dyn FileSystem>,
    /// With each whether it is one of the newest.
    files: VecDeque<(FileId, PathBuf, bool)>,
    items: VecDeque<Result<LogItem>>,
    marker: PhantomData<fn() -> F>,
}

impl<F> fmt::Debug for LogItemReader<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogItemReader")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl<F> LogItemReader<F> {
    /// Of a file or of all files of a directory, the rewrite queue first.
    pub(super) fn new(fs: Arc<dyn FileSystem>, path: &Path) -> Result<Self> {
        let is_dir = match fs.metadata(path) {
            Err(e) if e.is_file_not_found() => {
                let absent = format!("there is no such file or directory: {}", path.display());
                return Err(Error::InvalidArgument(absent));
            }
            metadata => metadata?.is_dir,
        };
        if is_dir {
            return Self::of(fs, &Dirs::new(path, None)?);
        }
        let name = path.file_name().map(|name| name.to_string_lossy());
        let Some(Name::Log(id)) = name.map(|name| parse(&name)) else {
            return Err(Error::InvalidArgument(format!(
                "not the name of a log file: {}",
                path.display()
            )));
        };
        Ok(Self {
            fs,
            // What is behind it is not known.
            files: VecDeque::from([(id, path.to_owned(), true)]),
            items: VecDeque::new(),
            marker: PhantomData,
        })
    }

    /// Of all files of the directories.
    pub(super) fn of(fs: Arc<dyn FileSystem>, dirs: &Dirs) -> Result<Self> {
        let mut files = VecDeque::new();
        for queue in [Queue::Rewrite, Queue::Append] {
            let places = list(&*fs, dirs, queue)?;
            let newest = newest_of(&*fs, &places)?;
            let places = places.into_iter().enumerate();
            files.extend(places.map(|(at, place)| (place.id, place.path(), at >= newest)));
        }
        Ok(Self {
            fs,
            files,
            items: VecDeque::new(),
            marker: PhantomData,
        })
    }
}

impl<F> Iterator for LogItemReader<F> {
    type Item = Result<LogItem>;

    fn next(&mut self) -> Option<Result<LogItem>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some(item);
            }
            let (id, path, is_newest) = self.files.pop_front()?;
            let items = &mut self.items;
            let looked = look(&*self.fs, &path, id, true, |records, block| {
                items.extend(records.into_iter().map(|item| Ok(log_item(item, block))));
                Ok(())
            });
            let damage = looked.map_or_else(Some, |behind| behind.told(is_newest));
            if let Some(e) = damage {
                items.push_back(Err(e.into()));
            }
        }
    }
}
