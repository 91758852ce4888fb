//! A safe face for WiredTiger, over the functions of `shim.c` beside this file.
//!
//! 1. A [`Connection`] is used by any thread; a [`Cursor`] has a session of its own and stays with
//!    the thread that made it: it is not `Send`, as it holds a pointer.
//! 2. Cursors borrow the connection, so it is closed after all of them.
//! 3. After each call a cursor holds no page: what it read has been copied.

#![expect(unsafe_code, reason = "an island: calls of a C library, with pointers that it gave")]

use crate::failure::{Failure, Result};
use crate::stores::Entries;
use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;

/// The one table.
const TABLE: &CStr = c"table:bench";

/// A handle of the library: what is behind it is its own.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

type Handle = *mut Opaque;

unsafe extern "C" {
    fn wiredtiger_strerror(code: c_int) -> *const c_char;
    fn wiredtiger_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int)
    -> *const c_char;
    fn chelonia_wt_not_found() -> c_int;
    fn chelonia_wt_open(
        home: *const c_char,
        config: *const c_char,
        connection: *mut Handle,
    ) -> c_int;
    fn chelonia_wt_close(connection: Handle) -> c_int;
    fn chelonia_wt_session(connection: Handle, session: *mut Handle) -> c_int;
    fn chelonia_wt_session_close(session: Handle) -> c_int;
    fn chelonia_wt_create(session: Handle, table: *const c_char, config: *const c_char) -> c_int;
    fn chelonia_wt_checkpoint(session: Handle) -> c_int;
    fn chelonia_wt_log_bytes(session: Handle, bytes: *mut u64) -> c_int;
    fn chelonia_wt_cursor(session: Handle, table: *const c_char, cursor: *mut Handle) -> c_int;
    fn chelonia_wt_insert(
        cursor: Handle,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
    ) -> c_int;
    fn chelonia_wt_remove(cursor: Handle, key: *const u8, key_bytes: usize) -> c_int;
    fn chelonia_wt_search(cursor: Handle, key: *const u8, key_bytes: usize) -> c_int;
    fn chelonia_wt_seek(cursor: Handle, key: *const u8, key_bytes: usize) -> c_int;
    fn chelonia_wt_next(cursor: Handle) -> c_int;
    fn chelonia_wt_entry(
        cursor: Handle,
        key: *mut *const u8,
        key_bytes: *mut usize,
        value: *mut *const u8,
        value_bytes: *mut usize,
    ) -> c_int;
    fn chelonia_wt_reset(cursor: Handle) -> c_int;
}

/// Fails with the library's own words unless `code` is 0.
fn checked(what: &str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: any code has a text, which stays for ever.
    let text = unsafe { CStr::from_ptr(wiredtiger_strerror(code)) };
    Err(Failure::failed(what, text.to_string_lossy()))
}

/// The same, but false if it says that there is nothing.
fn found(what: &str, code: c_int) -> Result<bool> {
    // SAFETY: it gives a constant.
    if code == unsafe { chelonia_wt_not_found() } {
        return Ok(false);
    }
    checked(what, code).map(|()| true)
}

/// The version of the library that runs.
pub fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three places for numbers.
    unsafe { wiredtiger_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}

/// An open database with one table.
pub struct Connection {
    handle: Handle,
}

// SAFETY: WiredTiger's connections are for all threads of a process; only sessions are not.
unsafe impl Sync for Connection {}

/// A session; closing it closes its cursors.
struct Session<'a> {
    handle: Handle,
    _connection: PhantomData<&'a Connection>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: an open session with no other owner. A failure cannot be handled here.
        unsafe { chelonia_wt_session_close(self.handle) };
    }
}

impl Connection {
    /// Makes a new database in the folder `path`.
    pub fn create(path: &Path, config: &str, table_config: &str) -> Result<Self> {
        let text = |text: &[u8]| CString::new(text).map_err(|error| Failure::failed("open", error));
        let path = text(path.as_os_str().as_encoded_bytes())?;
        let (config, table_config) = (text(config.as_bytes())?, text(table_config.as_bytes())?);
        let mut handle = ptr::null_mut();
        // SAFETY: C strings that outlive the call, and a place for the handle.
        let code = unsafe { chelonia_wt_open(path.as_ptr(), config.as_ptr(), &raw mut handle) };
        checked("open", code)?;
        let connection = Self { handle };
        let session = connection.session()?;
        // SAFETY: an open session and C strings.
        let code =
            unsafe { chelonia_wt_create(session.handle, TABLE.as_ptr(), table_config.as_ptr()) };
        checked("make the table", code)?;
        drop(session);
        Ok(connection)
    }

    fn session(&self) -> Result<Session<'_>> {
        let mut handle = ptr::null_mut();
        // SAFETY: an open connection and a place for the handle.
        let code = unsafe { chelonia_wt_session(self.handle, &raw mut handle) };
        checked("open a session", code)?;
        Ok(Session { handle, _connection: PhantomData })
    }

    /// A cursor for the calling thread.
    pub fn cursor(&self) -> Result<Cursor<'_>> {
        let session = self.session()?;
        let mut handle = ptr::null_mut();
        // SAFETY: an open session, a C string and a place for the handle.
        let code = unsafe { chelonia_wt_cursor(session.handle, TABLE.as_ptr(), &raw mut handle) };
        checked("open a cursor", code)?;
        Ok(Cursor { handle, _session: session })
    }

    /// Makes everything that is committed durable in the data file.
    pub fn checkpoint(&self) -> Result<()> {
        let session = self.session()?;
        // SAFETY: an open session.
        checked("checkpoint", unsafe { chelonia_wt_checkpoint(session.handle) })
    }

    /// Bytes written to the log.
    pub fn log_bytes(&self) -> Result<u64> {
        let session = self.session()?;
        let mut bytes = 0;
        // SAFETY: an open session and a place for the number.
        let code = unsafe { chelonia_wt_log_bytes(session.handle, &raw mut bytes) };
        checked("read the statistics", code)?;
        Ok(bytes)
    }

    /// Closes it; a checkpoint is part of that.
    pub fn close(mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: an open connection without sessions, as they borrow it.
        checked("close", unsafe { chelonia_wt_close(handle) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: as in `close`; an error cannot be reported here.
            unsafe { chelonia_wt_close(self.handle) };
        }
    }
}

/// A place in the table, and a session around it.
pub struct Cursor<'a> {
    handle: Handle,
    _session: Session<'a>,
}

impl Cursor<'_> {
    /// Sets `key` to `value`: a transaction of its own.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: an open cursor, and pointers with the lengths of their slices.
        let code = unsafe {
            chelonia_wt_insert(self.handle, key.as_ptr(), key.len(), value.as_ptr(), value.len())
        };
        checked("insert", code)
    }

    /// Removes `key`: a transaction of its own.
    pub fn remove(&mut self, key: &[u8]) -> Result<()> {
        // SAFETY: an open cursor, and a pointer with the length of its slice.
        let code = unsafe { chelonia_wt_remove(self.handle, key.as_ptr(), key.len()) };
        found("remove", code)?;
        self.reset()
    }

    /// Adds the value of `key` to `value`; false if there is none.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        // SAFETY: as in `remove`.
        let code = unsafe { chelonia_wt_search(self.handle, key.as_ptr(), key.len()) };
        let is_there = found("get", code)?;
        if is_there {
            value.extend_from_slice(self.entry("get")?.1);
        }
        self.reset()?;
        Ok(is_there)
    }

    /// Adds up to `count` entries from key `from` on to `entries`.
    pub fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        // SAFETY: as in `remove`.
        let mut code = unsafe { chelonia_wt_seek(self.handle, from.as_ptr(), from.len()) };
        for step in 0..count {
            if step > 0 {
                // SAFETY: an open cursor that stands on an entry.
                code = unsafe { chelonia_wt_next(self.handle) };
            }
            if !found("scan", code)? {
                break;
            }
            let (key, value) = self.entry("scan")?;
            entries.push(key, value);
        }
        self.reset()
    }

    /// Key and value where the cursor stands, until it moves.
    fn entry(&self, what: &str) -> Result<(&[u8], &[u8])> {
        let (mut key, mut value) = (ptr::null(), ptr::null());
        let (mut key_bytes, mut value_bytes) = (0, 0);
        // SAFETY: an open cursor and places for the results.
        let code = unsafe {
            chelonia_wt_entry(
                self.handle,
                &raw mut key,
                &raw mut key_bytes,
                &raw mut value,
                &raw mut value_bytes,
            )
        };
        checked(what, code)?;
        // SAFETY: the library gave pointers with their lengths, which stay until the next call for
        // the cursor; that takes it mutably.
        Ok(unsafe { (bytes(key, key_bytes), bytes(value, value_bytes)) })
    }

    fn reset(&mut self) -> Result<()> {
        // SAFETY: an open cursor.
        checked("reset a cursor", unsafe { chelonia_wt_reset(self.handle) })
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
