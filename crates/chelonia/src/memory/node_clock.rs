//! Cache replacement for decoded nodes: the nodes of all trees of a database under one clock.
//!
//! ```text
//!             admit                    clock (its turn came twice, not used)
//!   absent -----------> clock entry ----------------------------------------------> absent
//!                            | its owner drops it: forget
//!                            '-----------------------------------------------------> absent
//! ```
//!
//! There is one clock per database, so that a thousand keyspaces together take no more memory than
//! one, and keyspaces in use keep their nodes while idle ones lose them.
//!
//! Invariants:
//! 1. [`NodeClock::bytes`] is the sum of the bytes admitted and neither evicted nor forgotten.
//! 2. After an admission entries are evicted until the sum is within the share (an eighth of the
//!    budget less 2 MiB, of small budgets a sixteenth), or every entry was used since the clock
//!    last passed it. The entry just admitted stays.
//!
//! The clock's lock is taken last and never held while an entry is dropped. Thread-safety: every
//! method may be called from any thread.

use crate::memory::budget::Budget;
use crate::memory::epoch::{Epochs, Guard};
use crate::runtime::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use std::collections::VecDeque;

/// The fraction of the budget that the node clock may take.
const BUDGET_PARTS: u64 = 8;

/// Bytes that the share is smaller by, at most half of it: the sum of the entries does not count
/// what the allocator loses, of which small budgets have little to spare.
const LESS_BYTES: u64 = 2 << 20;

/// An object in memory that can be read again.
pub trait ClockEntry: Send + Sync {
    /// True if it was used since the last call.
    fn take_used(&self) -> bool;

    /// Drops it from memory, once every epoch guard of the time is gone. Returns the bytes it was
    /// admitted with; 0 if it was not in memory.
    fn evict(&self, guard: &Guard) -> u64;
}

/// The node clock of one database.
pub struct NodeClock {
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    bytes: AtomicU64,
    clock: Mutex<Clock>,
}

#[derive(Default)]
struct Clock {
    /// In the order the clock passes them. Some may be absent again, or dropped.
    hands: VecDeque<Weak<dyn ClockEntry>>,
    /// When there are this many, dropped ones are removed.
    prune_at: usize,
}

impl NodeClock {
    /// Creates a clock without entries.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, epochs: &Arc<Epochs>) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            epochs: Arc::clone(epochs),
            bytes: AtomicU64::new(0),
            clock: Mutex::default(),
        })
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes that entries may take.
    pub fn share(&self) -> u64 {
        let part = self.budget.limit() / BUDGET_PARTS;
        part - LESS_BYTES.min(part / 2)
    }

    /// Admits `resident`, which was just loaded with `bytes` bytes, and evicts others if the share
    /// is exceeded.
    pub fn admit(&self, resident: &Weak<dyn ClockEntry>, bytes: u64, guard: &Guard) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut clock = self.clock.lock();
        if clock.hands.len() >= clock.prune_at {
            clock.hands.retain(|resident| resident.strong_count() > 0);
            clock.prune_at = 2 * clock.hands.len() + 64;
        }
        clock.hands.push_back(Weak::clone(resident));
        drop(clock);
        self.shrink(Some(resident), guard);
    }

    /// Subtracts the `bytes` of an entry that its owner dropped.
    pub fn forget(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Evicts until the entries are within their share: after the budget was reduced.
    pub fn trim(&self) {
        self.shrink(None, &self.epochs.pin());
    }

    fn shrink(&self, spared: Option<&Weak<dyn ClockEntry>>, guard: &Guard) {
        let share = self.share();
        if self.bytes() <= share {
            return;
        }
        // Upgraded references are dropped after the lock: each may be the last one.
        let mut passed = Vec::new();
        let mut clock = self.clock.lock();
        // Two rounds: the first may only clear the use bits.
        for _ in 0..2 * clock.hands.len() {
            if self.bytes() <= share {
                break;
            }
            let Some(weak) = clock.hands.pop_front() else { break };
            let Some(resident) = weak.upgrade() else { continue };
            if spared.is_some_and(|spared| weak.ptr_eq(spared)) || resident.take_used() {
                clock.hands.push_back(weak);
            } else {
                self.forget(resident.evict(guard));
            }
            passed.push(resident);
        }
        drop(clock);
        drop(passed);
        // Evicted memory must not wait in this thread's own bag until it evicts more.
        guard.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync::AtomicBool;

    const MIB: u64 = 1 << 20;

    struct Page {
        used: AtomicBool,
        bytes: AtomicU64,
    }

    impl ClockEntry for Page {
        fn take_used(&self) -> bool {
            self.used.swap(false, Ordering::Relaxed)
        }

        fn evict(&self, _guard: &Guard) -> u64 {
            self.bytes.swap(0, Ordering::Relaxed)
        }
    }

    fn testing(budget: &Arc<Budget>) -> Arc<NodeClock> {
        NodeClock::new(budget, &Epochs::new().unwrap())
    }

    fn admit(node_clock: &NodeClock, bytes: u64) -> Arc<Page> {
        let page = Arc::new(Page { used: AtomicBool::new(false), bytes: AtomicU64::new(bytes) });
        let weak: Weak<dyn ClockEntry> = Arc::downgrade(&page) as _;
        node_clock.admit(&weak, bytes, &node_clock.epochs.pin());
        page
    }

    fn is_resident(page: &Page) -> bool {
        page.bytes.load(Ordering::Relaxed) > 0
    }

    #[test]
    fn those_who_are_used_stay_and_the_others_go() {
        let node_clock = testing(&Budget::new(8 * (8 + 2) * MIB));
        let busy: Vec<_> = (0..4).map(|_| admit(&node_clock, MIB)).collect();
        let idle: Vec<_> = (0..4).map(|_| admit(&node_clock, MIB)).collect();
        for _ in 0..20 {
            busy.iter().for_each(|page| page.used.store(true, Ordering::Relaxed));
            let newest = admit(&node_clock, MIB);
            assert!(is_resident(&newest));
            assert!(node_clock.bytes() <= node_clock.share());
            node_clock.forget(newest.bytes.swap(0, Ordering::Relaxed));
        }
        assert!(busy.iter().all(|page| is_resident(page)));
        assert!(!is_resident(&idle[0]));
    }

    #[test]
    fn a_smaller_budget_evicts_down_to_its_share_even_if_all_are_used() {
        let budget = Budget::new(8 * (8 + 2) * MIB);
        let node_clock = testing(&budget);
        let pages: Vec<_> = (0..8).map(|_| admit(&node_clock, MIB)).collect();
        pages.iter().for_each(|page| page.used.store(true, Ordering::Relaxed));
        budget.set_limit(8 * (2 + 2) * MIB);
        node_clock.trim();
        assert_eq!(node_clock.bytes(), 2 * MIB);
        assert_eq!(pages.iter().filter(|page| is_resident(page)).count(), 2);
    }

    #[test]
    fn the_last_one_stays_however_large_and_the_gone_leave_no_trace() {
        let node_clock = testing(&Budget::new(16 * MIB));
        for _ in 0..10_000 {
            let page = admit(&node_clock, 2 * MIB);
            assert!(is_resident(&page));
            assert_eq!(node_clock.bytes(), 2 * MIB);
            node_clock.forget(page.bytes.swap(0, Ordering::Relaxed));
        }
        assert!(node_clock.clock.lock().hands.len() < 200);
    }
}
