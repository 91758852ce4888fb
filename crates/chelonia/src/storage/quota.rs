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
//! small reserve goes on beside work with a large one. Space freed meanwhile raises no quota.
//!
//! Writes that are accepted meanwhile enlarge what has to be left. The space that all writes since
//! the open need or needed is their *claim*, which only grows; a quota counts its growth since it
//! was begun ([`Storage::claim`]), before those writes take space. So a quota is begun before the
//! free space is looked at, and limited afterwards: no write is missed in between.
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
    /// The account of each quota.
    accounts: BTreeMap<u64, Account>,
}

/// The bytes that count against a quota.
struct Account {
    limit: u64,
    /// Bytes allocated by all work since the quota was begun.
    allocated: u64,
    /// The claim when the quota was begun.
    claim_before: u64,
    /// The largest claim since.
    claim: u64,
}

impl Account {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.allocated + (self.claim - self.claim_before))
    }
}

/// The quota of one piece of work, until it is dropped.
pub struct Quota<'a>(Option<(&'a Quotas, u64)>);

impl Quota<'_> {
    /// Limits the quota, which was unlimited, to `bytes`, less what has counted against it so far.
    #[must_use]
    pub fn limited(self, bytes: u64) -> Self {
        if let Some((quotas, number)) = self.0
            && let Some(account) = quotas.state.lock().accounts.get_mut(&number)
        {
            account.limit = bytes;
        }
        self
    }
}

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
            state.accounts.remove(&number);
            quotas.is_any.store(!state.accounts.is_empty(), Ordering::Relaxed);
        }
    }
}

impl Quotas {
    fn begin(&self, claim: u64) -> Quota<'_> {
        let account = Account { limit: u64::MAX, allocated: 0, claim_before: claim, claim };
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.accounts.insert(number, account);
        self.is_any.store(true, Ordering::Relaxed);
        Quota(Some((self, number)))
    }

    /// Counts `blocks` that work with `quota` allocates; `NoSpace` if fewer are left of it.
    pub(super) fn take(&self, blocks: u32, quota: &Quota<'_>) -> Result<()> {
        if !self.is_any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes = u64::from(blocks) * BLOCK_BYTES_U64;
        let mut state = self.state.lock();
        let account = quota.0.and_then(|(_, number)| state.accounts.get(&number));
        if account.is_some_and(|account| account.left() < bytes) {
            let text = "what is left of the device is kept for memtables and deletes";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        state.accounts.values_mut().for_each(|account| account.allocated += bytes);
        Ok(())
    }

    fn claim(&self, claim: u64) {
        for account in self.state.lock().accounts.values_mut() {
            account.claim = account.claim.max(claim);
        }
    }
}

impl Storage {
    /// Begins a quota for a piece of engine work, unlimited at first; `claim` is that of all writes
    /// so far.
    pub fn begin_quota(&self, claim: u64) -> Quota<'_> {
        self.quotas.begin(claim)
    }

    /// Counts what accepted writes claim against all quotas: `claim` is the total in bytes, so that
    /// the same claim may be made again.
    pub fn claim(&self, claim: u64) {
        self.quotas.claim(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_takes_counts_for_all_but_refuses_only_who_has_too_little() {
        let quotas = Quotas::default();
        assert!(quotas.take(u32::MAX, &UNLIMITED).is_ok());
        let few = quotas.begin(0).limited(10 * BLOCK_BYTES_U64);
        let many = quotas.begin(0).limited(20 * BLOCK_BYTES_U64);
        assert!(quotas.take(4, &few).is_ok());
        assert!(quotas.take(8, &many).is_ok());
        assert_eq!(quotas.take(1, &few).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(quotas.take(6, &many).is_ok(), "a refused allocation is not counted");
        assert!(quotas.take(1, &UNLIMITED).is_ok());
        assert!(quotas.take(2, &many).is_err());
        drop(many);
        assert!(quotas.take(1, &few).is_err());
        drop(few);
        assert!(!quotas.is_any.load(Ordering::Relaxed));
    }

    #[test]
    fn a_claim_counts_once_and_from_the_begin_of_a_quota() {
        let quotas = Quotas::default();
        quotas.claim(100 * BLOCK_BYTES_U64);
        let old = quotas.begin(100 * BLOCK_BYTES_U64);
        quotas.claim(105 * BLOCK_BYTES_U64);
        let old = old.limited(10 * BLOCK_BYTES_U64);
        let new = quotas.begin(105 * BLOCK_BYTES_U64).limited(10 * BLOCK_BYTES_U64);
        for claim in [105, 103, 107, 107] {
            quotas.claim(claim * BLOCK_BYTES_U64);
        }
        assert!(quotas.take(4, &old).is_err() && quotas.take(3, &old).is_ok());
        assert!(quotas.take(6, &new).is_err() && quotas.take(5, &new).is_ok());
    }
}
