//! What of RocksDB's C interface the workloads need, as of 7.8.3, linked as the system has it.
//!
//! 1. Each pointer of a wrapper is one that the library made, not null, and is given back once, when the wrapper is dropped.
//! 2. A cursor borrows its database, so that is closed last.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::slice;

use peers_driver::Result;

/// A type of the library of which only pointers are known.
macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        struct $name {
            bytes: [u8; 0],
            marker: PhantomData<*mut u8>,
        }
    )* };
}

opaque!(CDb COptions CTableOptions CCache CWriteOptions CReadOptions CBatch CIterator);

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_open(o: *const COptions, name: *const c_char, error: *mut *mut c_char) -> *mut CDb;
    fn rocksdb_close(db: *mut CDb);
    fn rocksdb_free(memory: *mut c_char);
    fn rocksdb_write(
        db: *mut CDb,
        options: *const CWriteOptions,
        batch: *mut CBatch,
        error: *mut *mut c_char,
    );

    fn rocksdb_options_create() -> *mut COptions;
    fn rocksdb_options_destroy(options: *mut COptions);
    fn rocksdb_options_set_create_if_missing(options: *mut COptions, value: c_uchar);
    fn rocksdb_options_set_max_background_jobs(options: *mut COptions, value: c_int);
    fn rocksdb_options_set_write_buffer_size(options: *mut COptions, value: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: *mut COptions, value: c_int);
    fn rocksdb_options_set_max_bytes_for_level_base(options: *mut COptions, value: u64);
    fn rocksdb_options_set_enable_pipelined_write(options: *mut COptions, value: c_uchar);
    fn rocksdb_options_set_compression(options: *mut COptions, value: c_int);
    fn rocksdb_options_set_block_based_table_factory(
        options: *mut COptions,
        table: *mut CTableOptions,
    );
    fn rocksdb_block_based_options_create() -> *mut CTableOptions;
    fn rocksdb_block_based_options_destroy(options: *mut CTableOptions);
    fn rocksdb_block_based_options_set_block_size(options: *mut CTableOptions, value: usize);
    fn rocksdb_block_based_options_set_block_cache(options: *mut CTableOptions, cache: *mut CCache);
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut CCache;
    fn rocksdb_cache_destroy(cache: *mut CCache);

    fn rocksdb_writeoptions_create() -> *mut CWriteOptions;
    fn rocksdb_writeoptions_destroy(options: *mut CWriteOptions);
    fn rocksdb_writeoptions_set_sync(options: *mut CWriteOptions, value: c_uchar);
    fn rocksdb_readoptions_create() -> *mut CReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut CReadOptions);

    fn rocksdb_writebatch_create() -> *mut CBatch;
    fn rocksdb_writebatch_destroy(batch: *mut CBatch);
    fn rocksdb_writebatch_clear(batch: *mut CBatch);
    fn rocksdb_writebatch_put(
        batch: *mut CBatch,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn rocksdb_writebatch_delete_range(
        batch: *mut CBatch,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );

    fn rocksdb_create_iterator(db: *mut CDb, options: *const CReadOptions) -> *mut CIterator;
    fn rocksdb_iter_destroy(cursor: *mut CIterator);
    fn rocksdb_iter_seek(cursor: *mut CIterator, key: *const c_char, len: usize);
    fn rocksdb_iter_seek_for_prev(cursor: *mut CIterator, key: *const c_char, len: usize);
    fn rocksdb_iter_valid(cursor: *const CIterator) -> c_uchar;
    fn rocksdb_iter_next(cursor: *mut CIterator);
    fn rocksdb_iter_key(cursor: *const CIterator, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(cursor: *const CIterator, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(cursor: *const CIterator, error: *mut *mut c_char);
}

/// The error that the library has told, if it has.
fn outcome(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error is a text that ends with a zero, and nobody else has it.
    let text = unsafe { CStr::from_ptr(error) };
    let text = text.to_string_lossy().into_owned();
    // SAFETY: it was allocated by the library, and nothing refers to it any more.
    unsafe { rocksdb_free(error) };
    Err(text.into())
}

/// Settings; the defaults are what TiKV gives its log store, on a machine of two processors.
pub(crate) struct Kept {
    pub(crate) jobs: c_int,
    pub(crate) buffer_bytes: usize,
    pub(crate) buffers: c_int,
    pub(crate) level_bytes: u64,
    pub(crate) block_bytes: usize,
    pub(crate) cache_bytes: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            jobs: 2,
            buffer_bytes: 64 << 20,
            buffers: 5,
            level_bytes: 512 << 20,
            block_bytes: 64 << 10,
            cache_bytes: 256 << 20,
        }
    }
}

/// No compression: payloads are random bytes.
const NO_COMPRESSION: c_int = 0;

/// An open database.
pub(crate) struct Db {
    db: *mut CDb,
    read: *mut CReadOptions,
    synced: *mut CWriteOptions,
    unsynced: *mut CWriteOptions,
}

// SAFETY: a database may be used by any thread, and its options are not changed.
unsafe impl Send for Db {}
// SAFETY: the same.
unsafe impl Sync for Db {}

impl Db {
    pub(crate) fn open(dir: &Path, kept: &Kept) -> Result<Self> {
        let name = CString::new(dir.as_os_str().as_bytes())?;
        let mut error = ptr::null_mut();
        // SAFETY: each pointer is one that the library has just made, and what the database needs of the settings it
        // shares before they are given back; `name` ends with a zero.
        let db = unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_max_background_jobs(options, kept.jobs);
            rocksdb_options_set_write_buffer_size(options, kept.buffer_bytes);
            rocksdb_options_set_max_write_buffer_number(options, kept.buffers);
            rocksdb_options_set_max_bytes_for_level_base(options, kept.level_bytes);
            rocksdb_options_set_enable_pipelined_write(options, 1);
            rocksdb_options_set_compression(options, NO_COMPRESSION);
            let table = rocksdb_block_based_options_create();
            let cache = rocksdb_cache_create_lru(kept.cache_bytes);
            rocksdb_block_based_options_set_block_size(table, kept.block_bytes);
            rocksdb_block_based_options_set_block_cache(table, cache);
            rocksdb_options_set_block_based_table_factory(options, table);
            let db = rocksdb_open(options, name.as_ptr(), &raw mut error);
            rocksdb_cache_destroy(cache);
            rocksdb_block_based_options_destroy(table);
            rocksdb_options_destroy(options);
            db
        };
        outcome(error)?;
        // SAFETY: it takes nothing.
        let read = unsafe { rocksdb_readoptions_create() };
        // SAFETY: they take nothing but what they have just made.
        let [synced, unsynced] = [1, 0].map(|sync| unsafe {
            let options = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(options, sync);
            options
        });
        Ok(Self {
            db,
            read,
            synced,
            unsynced,
        })
    }

    /// Writes a batch, which is then empty.
    pub(crate) fn write(&self, batch: &mut Batch, sync: bool) -> Result<()> {
        let options = if sync { self.synced } else { self.unsynced };
        let mut error = ptr::null_mut();
        // SAFETY: all of them are there, and nobody else has the batch.
        unsafe { rocksdb_write(self.db, options, batch.0, &raw mut error) };
        outcome(error)?;
        // SAFETY: as above.
        unsafe { rocksdb_writebatch_clear(batch.0) };
        Ok(())
    }

    pub(crate) fn cursor(&self) -> Cursor<'_> {
        // SAFETY: both are there as long as the cursor.
        let cursor = unsafe { rocksdb_create_iterator(self.db, self.read) };
        Cursor(cursor, PhantomData)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: nothing refers to them any more.
        unsafe {
            rocksdb_close(self.db);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.synced);
            rocksdb_writeoptions_destroy(self.unsynced);
        }
    }
}

/// Operations that are written together.
pub(crate) struct Batch(*mut CBatch);

impl Default for Batch {
    fn default() -> Self {
        // SAFETY: it takes nothing.
        Self(unsafe { rocksdb_writebatch_create() })
    }
}

impl Batch {
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: both are readable for their lengths, and are copied.
        unsafe { rocksdb_writebatch_put(self.0, key_at, key.len(), value_at, value.len()) };
    }

    pub(crate) fn delete_range(&mut self, start: &[u8], end: &[u8]) {
        let (start_at, end_at) = (start.as_ptr().cast(), end.as_ptr().cast());
        // SAFETY: both are readable for their lengths, and are copied.
        unsafe {
            rocksdb_writebatch_delete_range(self.0, start_at, start.len(), end_at, end.len())
        };
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { rocksdb_writebatch_destroy(self.0) };
    }
}

/// A place in a database, or behind its end.
pub(crate) struct Cursor<'d>(*mut CIterator, PhantomData<&'d Db>);

impl Cursor<'_> {
    pub(crate) fn seek(&mut self, key: &[u8]) {
        // SAFETY: `key` is readable for its length.
        unsafe { rocksdb_iter_seek(self.0, key.as_ptr().cast(), key.len()) };
    }

    pub(crate) fn seek_for_prev(&mut self, key: &[u8]) {
        // SAFETY: `key` is readable for its length.
        unsafe { rocksdb_iter_seek_for_prev(self.0, key.as_ptr().cast(), key.len()) };
    }

    /// Goes on to the next key, if it is at one.
    pub(crate) fn next(&mut self) {
        if self.is_valid() {
            // SAFETY: it is at a key.
            unsafe { rocksdb_iter_next(self.0) };
        }
    }

    fn is_valid(&self) -> bool {
        // SAFETY: the cursor is there.
        unsafe { rocksdb_iter_valid(self.0) != 0 }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.bytes(rocksdb_iter_key)
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.bytes(rocksdb_iter_value)
    }

    /// What one of two functions gives of the place.
    fn bytes(
        &self,
        of: unsafe extern "C" fn(*const CIterator, *mut usize) -> *const c_char,
    ) -> Option<&[u8]> {
        let mut len = 0;
        if !self.is_valid() {
            return None;
        }
        // SAFETY: it is at a key, which both functions ask for.
        let at = unsafe { of(self.0, &raw mut len) };
        // SAFETY: the bytes stay until the cursor moves, for which it has to be borrowed again.
        Some(unsafe { slice::from_raw_parts(at.cast(), len) })
    }

    /// The error that made it be nowhere, if that was one.
    pub(crate) fn check(&self) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the cursor is there.
        unsafe { rocksdb_iter_get_error(self.0, &raw mut error) };
        outcome(error)
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { rocksdb_iter_destroy(self.0) };
    }
}
