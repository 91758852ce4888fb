//! Quotas: how much of the free space a piece of engine work may allocate.
//!
//! On a nearly full device a flush or a merge that is best in the long run could take the space
//! that a later flush needs, and a snapshot could prevent it from being freed. So the caller
//! that starts such work gives it a quota. Allocations beyond it fail with `NoSpace`, as on a full
//! device, and the work returns what it took. Catalogs are not counted.
//!
//! ```text
//!   merge      |<---- quota ---->|<-------- reserve of the merge -------->|
//!   reclaiming |<------------ quota ------------>|<- its own reserve ---->|
//!              |<------------------- free space ------------------------->|
//! ```
//! Work that runs at the same time shares the free space: what one allocates counts against the
//! quotas of all, so that each leaves its reserve. But only its own quota refuses it: work with a
//! small reserve goes on beside work with a large one. Writes that are accepted meanwhile enlarge
//! what has to be left: they count against all quotas before they take space
//! ([`Storage::reserve`]). Space freed meanwhile raises no quota.
//!
//! Thread-safety: one mutex; allocations take it only while somebody holds a quota.

use super::Storage;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES_U64;
use crate::runtime::sync::{AtomicBool, Mutex, Ordering};
use std::collections::BTreeMap;

/// All quotas of a data file.
#[derive(Default)]
pub struct Quotas {
    /// True if there is any.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The blocks left of each quota.
    blocks_left: BTreeMap<u64, u64>,
}

impl State {
    fn count(&mut self, blocks: u64) {
        for left in self.blocks_left.values_mut() {
            *left = left.saturating_sub(blocks);
        }
    }
}

/// The quota of one piece of work, until it is dropped.
pub struct Quota<'a>(Option<(&'a Quotas, u64)>);

impl Quota<'static> {
    /// No limit.
    pub const fn unlimited() -> Self {
        Self(None)
    }
}

/// No limit, for tests.
#[cfg(any(test, feature = "internals"))]
pub static UNLIMITED: Quota<'static> = Quota::unlimited();

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        if let Some((quotas, number)) = self.0 {
            let mut state = quotas.state.lock();
            state.blocks_left.remove(&number);
            quotas.is_any.store(!state.blocks_left.is_empty(), Ordering::Relaxed);
        }
    }
}

impl Quotas {
    fn grant(&self, blocks: u64) -> Quota<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.blocks_left.insert(number, blocks);
        self.is_any.store(true, Ordering::Relaxed);
        Quota(Some((self, number)))
    }

    /// Counts `blocks` that work with `quota` allocates; `NoSpace` if fewer are left of it.
    pub(super) fn take(&self, blocks: u32, quota: &Quota<'_>) -> Result<()> {
        if !self.is_any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let left = quota.0.and_then(|(_, number)| state.blocks_left.get(&number));
        if left.is_some_and(|left| *left < u64::from(blocks)) {
            let text = "what is left of the device is kept for memtables and deletes";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        state.count(blocks.into());
        Ok(())
    }

    /// Counts `blocks` against all quotas.
    fn reserve(&self, blocks: u64) {
        self.state.lock().count(blocks);
    }
}

impl Storage {
    /// A quota of `bytes` for a piece of engine work.
    pub fn quota(&self, bytes: u64) -> Quota<'_> {
        self.quotas.grant(bytes / BLOCK_BYTES_U64)
    }

    /// Counts `bytes` against all quotas that exist now: the space that accepted writes will need.
    pub fn reserve(&self, bytes: u64) {
        self.quotas.reserve(bytes.div_ceil(BLOCK_BYTES_U64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_takes_counts_for_all_but_refuses_only_who_has_too_little() {
        let quotas = Quotas::default();
        assert!(quotas.take(u32::MAX, &UNLIMITED).is_ok());
        let few = quotas.grant(10);
        let many = quotas.grant(20);
        assert!(quotas.take(4, &few).is_ok());
        assert!(quotas.take(8, &many).is_ok());
        assert_eq!(quotas.take(1, &few).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(quotas.take(6, &many).is_ok(), "a refused allocation is not counted");
        assert!(quotas.take(1, &UNLIMITED).is_ok());
        assert!(quotas.take(2, &many).is_err());
        quotas.reserve(30);
        assert!(quotas.take(1, &many).is_err());
        drop(many);
        assert!(quotas.take(1, &few).is_err());
        drop(few);
        assert!(!quotas.is_any.load(Ordering::Relaxed));
    }
}
