//! The C interface of RocksDB, as much of it as the adapter calls, and a safe face for it.
//!
//! Declared by hand after `rocksdb/c.h` of version 7.8; the interface has been extended since, not
//! changed. The library is that of the system, linked by the build script.
//!
//! 1. A handle belongs to one owner here, which destroys it once, when it is dropped.
//! 2. Memory that the library allocates for the caller (messages, properties) is copied and freed
//!    at once.
//! 3. Calls with options in hand take them by reference: the library copies what it keeps.
//!
//! A [`Db`] is used from any thread, as RocksDB allows; iterators stay in the call that made them.

#![expect(unsafe_code, reason = "an island: calls of a C library, with pointers that it gave")]

use crate::failure::{Failure, Result};
use crate::stores::{Answers, Entries};
use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

/// A handle of the library: what is behind it is its own.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type Handle = *mut Opaque;

unsafe extern "C" {
    fn rocksdb_options_create() -> Handle;
    fn rocksdb_options_destroy(options: Handle);
    fn rocksdb_options_set_create_if_missing(options: Handle, value: c_uchar);
    fn rocksdb_options_set_error_if_exists(options: Handle, value: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Handle, bytes: usize);
    fn rocksdb_options_set_max_bytes_for_level_base(options: Handle, bytes: u64);
    fn rocksdb_options_set_target_file_size_base(options: Handle, bytes: u64);
    fn rocksdb_options_set_max_write_buffer_number(options: Handle, number: c_int);
    fn rocksdb_options_set_max_background_jobs(options: Handle, jobs: c_int);
    fn rocksdb_options_set_use_direct_reads(options: Handle, value: c_uchar);
    fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(options: Handle, value: c_uchar);
    fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    fn rocksdb_options_set_manual_wal_flush(options: Handle, value: c_uchar);
    fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    fn rocksdb_block_based_options_create() -> Handle;
    fn rocksdb_block_based_options_destroy(table: Handle);
    fn rocksdb_block_based_options_set_block_size(table: Handle, bytes: usize);
    fn rocksdb_block_based_options_set_filter_policy(table: Handle, policy: Handle);
    fn rocksdb_block_based_options_set_block_cache(table: Handle, cache: Handle);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> Handle;
    fn rocksdb_cache_create_lru(bytes: usize) -> Handle;
    fn rocksdb_cache_destroy(cache: Handle);
    fn rocksdb_open_column_families(
        options: Handle,
        name: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Handle,
        families: *mut Handle,
        error: *mut *mut c_char,
    ) -> Handle;
    fn rocksdb_column_family_handle_destroy(family: Handle);
    fn rocksdb_close(db: Handle);
    fn rocksdb_writeoptions_create() -> Handle;
    fn rocksdb_writeoptions_destroy(options: Handle);
    fn rocksdb_writeoptions_set_sync(options: Handle, value: c_uchar);
    fn rocksdb_readoptions_create() -> Handle;
    fn rocksdb_readoptions_destroy(options: Handle);
    fn rocksdb_flushoptions_create() -> Handle;
    fn rocksdb_flushoptions_destroy(options: Handle);
    fn rocksdb_flushoptions_set_wait(options: Handle, value: c_uchar);
    fn rocksdb_put(
        db: Handle,
        options: Handle,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_delete(
        db: Handle,
        options: Handle,
        key: *const u8,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: Handle,
        options: Handle,
        key: *const u8,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> Handle;
    fn rocksdb_pinnableslice_value(slice: Handle, bytes: *mut usize) -> *const u8;
    fn rocksdb_pinnableslice_destroy(slice: Handle);
    fn rocksdb_batched_multi_get_cf(
        db: Handle,
        options: Handle,
        family: Handle,
        count: usize,
        keys: *const *const u8,
        keys_bytes: *const usize,
        values: *mut Handle,
        errors: *mut *mut c_char,
        is_sorted: bool,
    );
    fn rocksdb_create_iterator(db: Handle, options: Handle) -> Handle;
    fn rocksdb_iter_destroy(iterator: Handle);
    fn rocksdb_iter_seek(iterator: Handle, key: *const u8, key_bytes: usize);
    fn rocksdb_iter_next(iterator: Handle);
    fn rocksdb_iter_valid(iterator: Handle) -> c_uchar;
    fn rocksdb_iter_key(iterator: Handle, bytes: *mut usize) -> *const u8;
    fn rocksdb_iter_value(iterator: Handle, bytes: *mut usize) -> *const u8;
    fn rocksdb_iter_get_error(iterator: Handle, error: *mut *mut c_char);
    fn rocksdb_flush(db: Handle, options: Handle, error: *mut *mut c_char);
    fn rocksdb_property_int(db: Handle, name: *const c_char, value: *mut u64) -> c_int;
    fn rocksdb_property_value(db: Handle, name: *const c_char) -> *mut c_char;
    fn rocksdb_free(memory: *mut c_void);
}

/// The code for blocks as they are.
pub const NO_COMPRESSION: c_int = 0;

/// The code for blocks compressed by LZ4.
pub const LZ4: c_int = 4;

/// The code for blocks compressed by zstd.
pub const ZSTD: c_int = 7;

/// Calls `call` with a place for an error, and gives that error.
fn checked<T>(what: &str, call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let result = call(&raw mut error);
    // SAFETY: the library left null there or a message that it allocated.
    match unsafe { taken(error) } {
        None => Ok(result),
        Some(message) => Err(Failure::failed(what, message)),
    }
}

/// Copies a text of the library and frees it; `None` of null.
///
/// # Safety
///
/// `text` is null, or a C string that the library allocated and nobody has freed.
unsafe fn taken(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's duty; it is copied before it is freed, once.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        rocksdb_free(text.cast());
        Some(copy)
    }
}

/// A handle and the function that destroys it.
struct Owned {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle),
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle came from the library with this destructor, and has no other owner.
        unsafe { (self.destroy)(self.handle) }
    }
}

/// How a database is tuned.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Bytes of a memtable; there are two.
    pub write_buffer_bytes: usize,
    /// Bytes of level 1, with tables of a quarter of it; `None` for the defaults.
    pub level_bytes: Option<u64>,
    /// Bytes of the cache of blocks.
    pub cache_bytes: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bits of the full Bloom filters for each key.
    pub filter_bits: f64,
    /// The code of the compression of blocks.
    pub compression: c_int,
    /// Threads for flushes and compactions.
    pub background_jobs: c_int,
    /// The log is written out only when its buffer is full.
    pub buffers_log: bool,
    /// Every write syncs the log.
    pub syncs: bool,
}

/// An open database. Its options are dropped after it, in this order.
pub struct Db {
    family: Owned,
    db: Owned,
    write: Owned,
    read: Owned,
    _options: Owned,
}

// SAFETY: RocksDB's handles of databases, column families, read and write options may be used by
// any number of threads at the same time; nothing here changes them after they were made.
unsafe impl Sync for Db {}

/// The options of a database, with its table and cache.
fn options(tuning: &Tuning) -> Owned {
    // SAFETY: every handle is made here and destroyed here or owned by what is returned; the filter
    // policy goes over to the table, the cache and the table are shared with the options, which
    // hold their own references.
    unsafe {
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_error_if_exists(options, 1);
        rocksdb_options_set_write_buffer_size(options, tuning.write_buffer_bytes);
        rocksdb_options_set_max_write_buffer_number(options, 2);
        if let Some(bytes) = tuning.level_bytes {
            rocksdb_options_set_max_bytes_for_level_base(options, bytes);
            rocksdb_options_set_target_file_size_base(options, bytes / 4);
        }
        rocksdb_options_set_max_background_jobs(options, tuning.background_jobs);
        rocksdb_options_set_use_direct_reads(options, 1);
        rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
        rocksdb_options_set_compression(options, tuning.compression);
        rocksdb_options_set_manual_wal_flush(options, u8::from(tuning.buffers_log));
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_size(table, tuning.block_bytes);
        let policy = rocksdb_filterpolicy_create_bloom_full(tuning.filter_bits);
        rocksdb_block_based_options_set_filter_policy(table, policy);
        let cache = rocksdb_cache_create_lru(tuning.cache_bytes);
        rocksdb_block_based_options_set_block_cache(table, cache);
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_block_based_options_destroy(table);
        rocksdb_cache_destroy(cache);
        Owned { handle: options, destroy: rocksdb_options_destroy }
    }
}

impl Db {
    /// Makes a new database in the folder `path`.
    pub fn create(path: &Path, tuning: &Tuning) -> Result<Self> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|error| Failure::failed("open", error))?;
        let options = options(tuning);
        let name = c"default".as_ptr();
        let mut family = ptr::null_mut();
        // SAFETY: one column family is named, so each array has one element; all of it outlives
        // the call, and both results are checked and owned.
        let db = checked("open", |error| unsafe {
            rocksdb_open_column_families(
                options.handle,
                path.as_ptr(),
                1,
                &raw const name,
                &raw const options.handle,
                &raw mut family,
                error,
            )
        })?;
        // SAFETY: the results are new handles, each owned once, with its destructor.
        unsafe {
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(write, u8::from(tuning.syncs));
            Ok(Self {
                family: Owned { handle: family, destroy: rocksdb_column_family_handle_destroy },
                db: Owned { handle: db, destroy: rocksdb_close },
                write: Owned { handle: write, destroy: rocksdb_writeoptions_destroy },
                read: Owned {
                    handle: rocksdb_readoptions_create(),
                    destroy: rocksdb_readoptions_destroy,
                },
                _options: options,
            })
        }
    }

    /// Sets `key` to `value`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (db, options) = (self.db.handle, self.write.handle);
        // SAFETY: open handles, and pointers with the lengths of their slices.
        checked("insert", |error| unsafe {
            rocksdb_put(db, options, key.as_ptr(), key.len(), value.as_ptr(), value.len(), error);
        })
    }

    /// Removes `key`.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let (db, options) = (self.db.handle, self.write.handle);
        // SAFETY: open handles, and a pointer with the length of its slice.
        checked("remove", |error| unsafe {
            rocksdb_delete(db, options, key.as_ptr(), key.len(), error);
        })
    }

    /// Adds the value of `key` to `value`; false if there is none.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (db, options) = (self.db.handle, self.read.handle);
        // SAFETY: open handles, and a pointer with the length of its slice.
        let slice = checked("get", |error| unsafe {
            rocksdb_get_pinned(db, options, key.as_ptr(), key.len(), error)
        })?;
        let Some(slice) = Pinned::of(slice) else { return Ok(false) };
        value.extend_from_slice(slice.bytes());
        Ok(true)
    }

    /// Adds the values of `keys` in their order to `answers`.
    pub fn multi_get(&self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let pointers: Vec<*const u8> = keys.iter().map(|key| key.as_ptr()).collect();
        let lengths: Vec<usize> = keys.iter().map(Vec::len).collect();
        let mut values = vec![ptr::null_mut(); keys.len()];
        let mut errors = vec![ptr::null_mut(); keys.len()];
        // SAFETY: open handles, and four arrays of as many elements as are said.
        unsafe {
            rocksdb_batched_multi_get_cf(
                self.db.handle,
                self.read.handle,
                self.family.handle,
                keys.len(),
                pointers.as_ptr(),
                lengths.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                false,
            );
        }
        // All are taken before the first error is returned, so that none is leaked.
        let values: Vec<Option<Pinned>> = values.into_iter().map(Pinned::of).collect();
        // SAFETY: the library left null or a message of its own in each place.
        let errors = errors.into_iter().filter_map(|error| unsafe { taken(error) });
        if let Some(message) = errors.reduce(|first, _| first) {
            return Err(Failure::failed("multi_get", message));
        }
        for value in &values {
            answers.push(value.as_ref().map(Pinned::bytes));
        }
        Ok(())
    }

    /// Adds up to `count` entries from key `from` on to `entries`.
    pub fn scan(&self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        // SAFETY: open handles; the iterator is owned here and dropped before the database.
        let iterator = unsafe {
            let handle = rocksdb_create_iterator(self.db.handle, self.read.handle);
            rocksdb_iter_seek(handle, from.as_ptr(), from.len());
            Owned { handle, destroy: rocksdb_iter_destroy }
        };
        for step in 0..count {
            // SAFETY: a valid iterator moves on, and key and value of a valid one stay where they
            // are until it moves.
            unsafe {
                if step > 0 {
                    rocksdb_iter_next(iterator.handle);
                }
                if rocksdb_iter_valid(iterator.handle) == 0 {
                    break;
                }
                let (mut key_bytes, mut value_bytes) = (0, 0);
                let key = rocksdb_iter_key(iterator.handle, &raw mut key_bytes);
                let value = rocksdb_iter_value(iterator.handle, &raw mut value_bytes);
                entries.push(bytes(key, key_bytes), bytes(value, value_bytes));
            }
        }
        // SAFETY: the iterator is there until the end of this function.
        checked("scan", |error| unsafe { rocksdb_iter_get_error(iterator.handle, error) })
    }

    /// Writes out the memtables that are there, and waits for it.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: a new handle, owned here.
        let options = unsafe {
            let handle = rocksdb_flushoptions_create();
            rocksdb_flushoptions_set_wait(handle, 1);
            Owned { handle, destroy: rocksdb_flushoptions_destroy }
        };
        // SAFETY: open handles.
        checked("flush", |error| unsafe { rocksdb_flush(self.db.handle, options.handle, error) })
    }

    /// A property that is a number; `None` if this version has it not.
    pub fn number(&self, name: &CStr) -> Option<u64> {
        let mut value = 0;
        // SAFETY: an open handle, a C string, a place for the number.
        let code = unsafe { rocksdb_property_int(self.db.handle, name.as_ptr(), &raw mut value) };
        (code == 0).then_some(value)
    }

    /// A property that is a text.
    pub fn text(&self, name: &CStr) -> Option<String> {
        // SAFETY: an open handle and a C string; the result is null or ours to free.
        unsafe { taken(rocksdb_property_value(self.db.handle, name.as_ptr())) }
    }
}

/// A value that the library holds for us.
struct Pinned(Owned);

impl Pinned {
    /// Of a handle that is new, or null: there is no value.
    fn of(handle: Handle) -> Option<Self> {
        let owned = || Self(Owned { handle, destroy: rocksdb_pinnableslice_destroy });
        (!handle.is_null()).then(owned)
    }

    fn bytes(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the library gives a pointer with its length, which stay while the handle does.
        unsafe {
            let start = rocksdb_pinnableslice_value(self.0.handle, &raw mut length);
            bytes(start, length)
        }
    }
}

/// A slice of what the library gave: a pointer, which may be null if there is nothing.
///
/// # Safety
///
/// `start` is null or points to `length` bytes that stay for `'a`.
unsafe fn bytes<'a>(start: *const u8, length: usize) -> &'a [u8] {
    // SAFETY: the caller's duty.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, length) } }
}
