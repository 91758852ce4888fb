//! Detects whether this process is a forked child.
//!
//! An open database does not survive a fork: a child has the same files, the same mapped memory and
//! the same lock, and none of the threads. So a database that was opened before a fork must not be
//! used by the child. The child is detected by a page that the system clears in children
//! (`MADV_WIPEONFORK`), at the cost of one load.

#![expect(unsafe_code, reason = "an island: reads memory that the system may clear")]

use crate::base::error::{Error, Result};
use crate::memory::pages::{PAGE_BYTES, Pages};

/// The value in a page that reads as zeros in a child.
const MARK: u8 = 1;

/// A mark that is valid in the process that made it, and in no child of it.
pub struct ForkMark {
    /// `None` where the system does not clear pages in a child: then a fork is not detected.
    page: Option<Pages>,
}

impl ForkMark {
    /// Creates the mark of this process.
    pub fn new() -> Result<Self> {
        let mut page = Pages::map(PAGE_BYTES).ok_or_else(Error::out_of_memory)?;
        if !page.clear_in_children() {
            return Ok(Self { page: None });
        }
        // SAFETY: the page is mapped, and nobody else has it yet.
        unsafe { page.as_ptr().write_volatile(MARK) };
        Ok(Self { page: Some(page) })
    }

    /// True in the process that made the mark.
    #[inline]
    #[must_use]
    pub fn is_this_process(&self) -> bool {
        match &self.page {
            // SAFETY: the page stays mapped while it is held, and is written by nobody after `new`.
            Some(page) => unsafe { page.as_ptr().read_volatile() == MARK },
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_made_it_is_known() {
        assert!(ForkMark::new().unwrap().is_this_process());
    }
}
