//! Transfers on RocksDB's `OptimisticTransactionDB`, by its C interface.
//!
//! Declared by hand after `rocksdb/c.h` of version 7.8. Each handle has one owner, which destroys
//! it once; messages and values that the library allocates are copied and freed at once.

#![expect(unsafe_code, reason = "an island: calls of a C library, with pointers that it gave")]

use super::{BALANCE, Bank, Teller, balance_of, key, value};
use crate::failure::{Failure, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

/// As much memory as the others have.
const CACHE_BYTES: usize = 1 << 30;

/// A handle of the library: the memory behind it is its own.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type Handle = *mut Opaque;

unsafe extern "C" {
    fn rocksdb_options_create() -> Handle;
    fn rocksdb_options_set_create_if_missing(options: Handle, value: c_uchar);
    fn rocksdb_options_set_compression(options: Handle, kind: c_int);
    fn rocksdb_options_set_max_background_jobs(options: Handle, jobs: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: Handle, table: Handle);
    fn rocksdb_block_based_options_create() -> Handle;
    fn rocksdb_block_based_options_set_block_cache(table: Handle, cache: Handle);
    fn rocksdb_cache_create_lru(bytes: usize) -> Handle;
    fn rocksdb_writeoptions_create() -> Handle;
    fn rocksdb_readoptions_create() -> Handle;
    fn rocksdb_optimistictransaction_options_create() -> Handle;
    fn rocksdb_optimistictransaction_options_set_set_snapshot(options: Handle, value: c_uchar);
    fn rocksdb_optimistictransactiondb_open(
        options: Handle,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> Handle;
    fn rocksdb_optimistictransactiondb_close(database: Handle);
    fn rocksdb_optimistictransaction_begin(
        database: Handle,
        write: Handle,
        options: Handle,
        old: Handle,
    ) -> Handle;
    fn rocksdb_transaction_destroy(transaction: Handle);
    fn rocksdb_transaction_commit(transaction: Handle, error: *mut *mut c_char);
    fn rocksdb_transaction_get_for_update(
        transaction: Handle,
        options: Handle,
        key: *const u8,
        key_bytes: usize,
        value_bytes: *mut usize,
        exclusive: c_uchar,
        error: *mut *mut c_char,
    ) -> *mut u8;
    fn rocksdb_transaction_put(
        transaction: Handle,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_free(memory: *mut c_void);
}

/// An open database. Its options live as long as the process: there are few, and the library shares
/// them with its own threads.
struct RocksDb {
    database: Handle,
    write: Handle,
    read: Handle,
    transaction: Handle,
}

// SAFETY: RocksDB's databases and options may be used by any number of threads; nothing here
// changes them after they were made.
unsafe impl Sync for RocksDb {}

/// A teller reuses the handle of its last transaction, as RocksDB recommends.
struct RocksTeller<'a> {
    bank: &'a RocksDb,
    transaction: Handle,
}

/// Calls `call` with a place for an error; gives the message, if there is one.
fn message<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> std::result::Result<T, String> {
    let mut error: *mut c_char = ptr::null_mut();
    let result = call(&raw mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: the library left a message that it allocated; it is copied and freed once.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        Err(text)
    }
}

/// Makes a database.
pub fn open(path: &Path) -> Result<Box<dyn Bank>> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|error| Failure::failed("open", error))?;
    // SAFETY: all handles are new and stay; the name outlives the call.
    unsafe {
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_compression(options, 0);
        rocksdb_options_set_max_background_jobs(options, 2);
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(CACHE_BYTES));
        rocksdb_options_set_block_based_table_factory(options, table);
        let transaction = rocksdb_optimistictransaction_options_create();
        rocksdb_optimistictransaction_options_set_set_snapshot(transaction, 1);
        let database =
            message(|error| rocksdb_optimistictransactiondb_open(options, name.as_ptr(), error))
                .map_err(|error| Failure::failed("open", error))?;
        Ok(Box::new(RocksDb {
            database,
            write: rocksdb_writeoptions_create(),
            read: rocksdb_readoptions_create(),
            transaction,
        }))
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: it has no other owner, and tellers borrow it.
        unsafe { rocksdb_optimistictransactiondb_close(self.database) }
    }
}

impl Drop for RocksTeller<'_> {
    fn drop(&mut self) {
        if !self.transaction.is_null() {
            // SAFETY: it has no other owner, and its database is open.
            unsafe { rocksdb_transaction_destroy(self.transaction) }
        }
    }
}

impl Bank for RocksDb {
    fn teller(&self) -> Result<Box<dyn Teller + '_>> {
        Ok(Box::new(RocksTeller { bank: self, transaction: ptr::null_mut() }))
    }
}

impl RocksTeller<'_> {
    fn begin(&mut self) {
        let RocksDb { database, write, transaction, .. } = *self.bank;
        // SAFETY: open handles; the old transaction, or null, goes over to the call.
        self.transaction = unsafe {
            rocksdb_optimistictransaction_begin(database, write, transaction, self.transaction)
        };
    }

    fn get(&mut self, account: u64) -> Result<u64> {
        let (key, mut length) = (key(account), 0);
        // SAFETY: open handles, and pointers with the lengths of what they point to.
        let found = message(|error| unsafe {
            let (read, bytes) = (self.bank.read, key.as_ptr());
            let length = &raw mut length;
            rocksdb_transaction_get_for_update(
                self.transaction,
                read,
                bytes,
                key.len(),
                length,
                1,
                error,
            )
        });
        let found = found.map_err(|error| Failure::failed("get", error))?;
        if found.is_null() {
            return balance_of(None);
        }
        // SAFETY: the library allocated `length` bytes; they are read and freed once.
        unsafe {
            let balance = balance_of(Some(std::slice::from_raw_parts(found, length)));
            rocksdb_free(found.cast());
            balance
        }
    }

    fn put(&mut self, account: u64, balance: u64) -> Result<()> {
        let (key, value) = (key(account), value(balance));
        // SAFETY: an open transaction, and pointers with the lengths of what they point to.
        let put = message(|error| unsafe {
            let (value, length) = (value.as_ptr(), value.len());
            rocksdb_transaction_put(
                self.transaction,
                key.as_ptr(),
                key.len(),
                value,
                length,
                error,
            );
        });
        put.map_err(|error| Failure::failed("insert", error))
    }

    /// False after a conflict.
    fn commit(&mut self) -> Result<bool> {
        // SAFETY: an open transaction.
        match message(|error| unsafe { rocksdb_transaction_commit(self.transaction, error) }) {
            Ok(()) => Ok(true),
            Err(text) if text.contains("Resource busy") || text.contains("Try again") => Ok(false),
            Err(text) => Err(Failure::failed("commit", text)),
        }
    }
}

impl Teller for RocksTeller<'_> {
    fn open_accounts(&mut self, accounts: std::ops::Range<u64>) -> Result<()> {
        self.begin();
        for account in accounts {
            self.put(account, BALANCE)?;
        }
        self.commit().map(|_| ())
    }

    fn transfer(&mut self, from: u64, to: u64, amount: u64) -> Result<bool> {
        self.begin();
        for (account, change) in [(from, amount.wrapping_neg()), (to, amount)] {
            let old = self.get(account)?;
            self.put(account, old.wrapping_add(change))?;
        }
        self.commit()
    }

    fn balance(&mut self, account: u64) -> Result<u64> {
        self.begin();
        self.get(account)
    }
}
