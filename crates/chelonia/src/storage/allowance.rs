//! Allocation limit for engine work that is not urgent.
//!
//! On a nearly full device a flush or a merge that is best in the long run could take the space
//! that a later flush needs, and a snapshot could prevent it from being freed. So the starter of
//! such work sets a limit; allocations beyond it fail with `NoSpace`, as on a full device, and the
//! work returns what it took. Large values and catalogs are not counted.
//!
//! With several holders the smallest limit applies until the last of them is dropped. Space freed
//! meanwhile does not raise the limit.
//!
//! Thread-safety: one mutex, taken only while somebody holds an allowance.

use super::Storage;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::{AtomicBool, Mutex, Ordering};

/// The remaining number of blocks that engines may allocate.
#[derive(Default)]
pub struct Allowance {
    is_limited: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holders: usize,
    blocks_left: u64,
}

/// Limits allocations by engines until it is dropped.
pub struct Limited<'a>(&'a Allowance);

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.holders -= 1;
        if state.holders == 0 {
            self.0.is_limited.store(false, Ordering::Relaxed);
        }
    }
}

impl Allowance {
    fn hold(&self, blocks: u64) -> Limited<'_> {
        let mut state = self.state.lock();
        state.blocks_left = if state.holders == 0 { blocks } else { state.blocks_left.min(blocks) };
        state.holders += 1;
        self.is_limited.store(true, Ordering::Relaxed);
        Limited(self)
    }

    /// Counts `blocks`, or fails with `NoSpace` if that is more than the remaining allowance.
    pub(super) fn take(&self, blocks: u32) -> Result<()> {
        if !self.is_limited.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let left = state.blocks_left.checked_sub(blocks.into());
        match left {
            _ if state.holders == 0 => Ok(()),
            Some(left) => {
                state.blocks_left = left;
                Ok(())
            }
            None => {
                let text = "what is left of the device is kept for memtables and deletes";
                Err(Error::new(ErrorKind::NoSpace, text))
            }
        }
    }
}

impl Storage {
    /// Limits allocations by engines to `bytes` while the result lives.
    pub fn limit(&self, bytes: u64) -> Limited<'_> {
        self.allowance.hold(bytes / BLOCK_BYTES_U64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_allowance_applies_until_the_last_holder_is_gone() {
        let allowance = Allowance::default();
        assert!(allowance.take(u32::MAX).is_ok());
        let one = allowance.hold(10);
        assert!(allowance.take(4).is_ok());
        let other = allowance.hold(20);
        assert!(allowance.take(6).is_ok());
        assert_eq!(allowance.take(1).unwrap_err().kind(), ErrorKind::NoSpace);
        drop(one);
        assert!(allowance.take(1).is_err());
        drop(other);
        assert!(allowance.take(u32::MAX).is_ok());
        let _again = allowance.hold(1);
        assert!(allowance.take(1).is_ok() && allowance.take(1).is_err());
    }
}
