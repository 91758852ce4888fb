//! In-process lock of a directory that no other process can see: many readers or one writer.
//!
//! It excludes like the lock of a real directory, without waiting, and is released when its guard
//! is dropped. Thread-safety: any thread may take it or drop a guard.

use super::{LockGuard, OPEN_ELSEWHERE};
use crate::base::error::{Error, ErrorKind, Result};
use crate::runtime::sync::{Arc, Mutex};

/// The holders of the lock of one directory.
#[derive(Debug, Default)]
pub struct LockTable {
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    shared: usize,
    exclusive: bool,
}

impl LockTable {
    /// Takes the lock, or fails with `AlreadyOpen`.
    pub fn take(&self, exclusive: bool) -> Result<Box<dyn LockGuard>> {
        let mut held = self.held.lock();
        if held.exclusive || (exclusive && held.shared > 0) {
            return Err(Error::new(ErrorKind::AlreadyOpen, OPEN_ELSEWHERE));
        }
        if exclusive {
            held.exclusive = true;
        } else {
            held.shared += 1;
        }
        Ok(Box::new(Guard { held: Arc::clone(&self.held), exclusive }))
    }
}

#[derive(Debug)]
struct Guard {
    held: Arc<Mutex<Held>>,
    exclusive: bool,
}

impl LockGuard for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        if self.exclusive {
            held.exclusive = false;
        } else {
            held.shared -= 1;
        }
    }
}
