//! Visibility: readers see the contiguous prefix of completed commits.
//!
//! A commit takes a *ticket* under the commit lock, in the order of the log. Then it copies its
//! entries into memtables without any lock, and completes its ticket. A completing thread moves the
//! visible seqno over every completed ticket in a row, so that a commit becomes visible only after
//! all earlier ones, even if a thread was preempted in the middle. A commit is acknowledged when it
//! is visible.
//!
//! ```text
//!   tickets   ... done done done | done busy done busy ...
//!                                ^ head      (visible = last seqno of the ticket before head)
//! ```
//!
//! A commit aborted by a panic keeps its ticket for good, and no later commit would ever become
//! visible. Then all waiting threads get an error ([`Visibility::abandon`]).
//!
//! Invariants:
//! 1. `visible` never decreases, and is the end of a commit, never its middle.
//! 2. At most [`TICKETS_MAX`] tickets are out at a time; slot `t % TICKETS_MAX` belongs to ticket
//!    `t` from when `head` passes `t - TICKETS_MAX` until it passes `t`.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, SPINS_MAX, YIELDS_MAX, hint,
    thread,
};

/// Most commits between the commit lock and their acknowledgement. More threads than this wait.
pub const TICKETS_MAX: u64 = 1024;

/// Consecutive tickets whose slots lie on different cache lines.
const ROW_TICKETS: u64 = 64;

/// The order in which commits become visible. At most `TICKETS` are out at a time: fewer than the
/// default only in exhaustive tests of event orders.
pub struct Visibility<const TICKETS: u64 = TICKETS_MAX> {
    /// The seqno of the last visible write.
    visible: AtomicU64,
    /// The first ticket that is not yet visible.
    head: AtomicU64,
    slots: Box<[Slot]>,
    /// A ticket will never be completed.
    abandoned: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// One ticket's completion.
struct Slot {
    /// Ticket + 1 once it is complete; anything else means not yet.
    done: AtomicU64,
    /// The last seqno of the ticket's commit; valid once `done` is set.
    end: AtomicU64,
}

impl<const TICKETS: u64> Visibility<TICKETS> {
    /// Creates the state in which everything up to `visible` is visible and nothing is in flight.
    #[must_use]
    pub fn new(visible: SeqNo) -> Self {
        let slot = |_| Slot { done: AtomicU64::new(0), end: AtomicU64::new(0) };
        Self {
            visible: AtomicU64::new(visible.0),
            head: AtomicU64::new(0),
            slots: (0..TICKETS).map(slot).collect(),
            abandoned: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// The last visible seqno. Sequentially consistent: pins rely on its order against their own
    /// marks (`crate::versions::pins`).
    #[inline]
    pub fn visible(&self) -> SeqNo {
        SeqNo(self.visible.load(Ordering::SeqCst))
    }

    /// True if `ticket` may be assigned now; the holder of the commit lock waits until it may.
    #[inline]
    pub fn has_space(&self, ticket: u64) -> bool {
        // Sequentially consistent because threads wait for it: see `advance`.
        ticket < self.head.load(Ordering::SeqCst) + TICKETS
    }

    /// Waits until `ticket` may be assigned. `Stopped` if that will never happen.
    #[inline]
    pub fn wait_for_slot(&self, ticket: u64) -> Result<()> {
        if self.has_space(ticket) {
            return Ok(());
        }
        self.wait(|| self.has_space(ticket))
    }

    /// Completes `ticket`, whose commit ends with seqno `end` and is in its memtables. Returns when
    /// the commit is visible, or `Stopped` if it never will be.
    #[inline]
    pub fn complete(&self, ticket: u64, end: SeqNo) -> Result<()> {
        if self.head.load(Ordering::SeqCst) == ticket {
            // All earlier tickets are complete, and no other thread moves the head past a ticket
            // that is not marked: it needs no mark. A swap is as cheap as such a store, and is
            // ordered among the changes by other threads, for loom as well.
            self.visible.swap(end.0, Ordering::SeqCst);
            self.head.store(ticket + 1, Ordering::SeqCst);
            self.advance(true);
            return Ok(());
        }
        self.complete_later(ticket, end)
    }

    #[inline(never)]
    fn complete_later(&self, ticket: u64, end: SeqNo) -> Result<()> {
        mark(Mark::CommitOutOfOrder);
        let slot = self.slot(ticket);
        slot.end.store(end.0, Ordering::Relaxed);
        // Sequentially consistent, like all of `head`, against a neighbour doing the same: either
        // it sees this ticket complete, or this thread sees the head it moved up to the ticket. So
        // none is left behind.
        slot.done.swap(ticket + 1, Ordering::SeqCst);
        self.advance(false);
        self.wait_until_visible(end)
    }

    /// Waits until `seqno` is visible. `Stopped` if it never will be.
    pub fn wait_until_visible(&self, seqno: SeqNo) -> Result<()> {
        self.wait(|| self.visible() >= seqno)
    }

    /// Records that an assigned ticket will never be completed, and wakes all waiting threads.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        let _order = self.sleep.lock();
        self.wake.notify_all();
    }

    /// The slot of a ticket. Consecutive tickets, held by different threads, use separate cache
    /// lines.
    fn slot(&self, ticket: u64) -> &Slot {
        let place = ticket % TICKETS;
        let (row, column) = (place / ROW_TICKETS, place % ROW_TICKETS);
        let scattered = column * (TICKETS / ROW_TICKETS).max(1) + row;
        &self.slots[usize::try_from(scattered).unwrap_or(0)]
    }

    /// Moves `head` and `visible` over the completed tickets in a row. `moved`: the caller has
    /// already moved them.
    fn advance(&self, mut moved: bool) {
        loop {
            let head = self.head.load(Ordering::SeqCst);
            let slot = self.slot(head);
            if slot.done.load(Ordering::SeqCst) != head + 1 {
                break;
            }
            // The slot may be given to ticket head + TICKETS only after head moved, and then
            // the exchange fails and `end` is not used.
            let end = slot.end.load(Ordering::Relaxed);
            let next = head + 1;
            if self.head.compare_exchange(head, next, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                self.visible.fetch_max(end, Ordering::SeqCst);
                moved = true;
            }
        }
        // Sequentially consistent against the sleeper's increment: either the sleeper sees the new
        // numbers, or this thread sees the sleeper.
        if moved && self.sleepers.load(Ordering::SeqCst) > 0 {
            let _order = self.sleep.lock();
            self.wake.notify_all();
        }
    }

    fn wait(&self, ready: impl Fn() -> bool) -> Result<()> {
        for round in 0..SPINS_MAX + YIELDS_MAX {
            if ready() {
                return Ok(());
            }
            if round < SPINS_MAX { hint::spin_loop() } else { thread::yield_now() }
        }
        mark(Mark::CommitSlept);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut order = self.sleep.lock();
        let mut abandoned = false;
        while !ready() && !abandoned {
            // Read under the lock that `abandon` takes before it wakes.
            abandoned = self.abandoned.load(Ordering::SeqCst);
            if !abandoned {
                self.wake.wait(&mut order);
            }
        }
        drop(order);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if abandoned {
            let text = "a commit was aborted by a panic; reopen the database";
            return Err(Error::new(ErrorKind::Stopped, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visibility_is_the_completed_prefix() {
        let visibility: Visibility = Visibility::new(SeqNo(10));
        std::thread::scope(|scope| {
            let later = scope.spawn(|| visibility.complete(1, SeqNo(15)).unwrap());
            while visibility.slot(1).done.load(Ordering::Acquire) != 2 {
                std::thread::yield_now();
            }
            assert_eq!(visibility.visible(), SeqNo(10));
            visibility.complete(0, SeqNo(12)).unwrap();
            later.join().unwrap();
        });
        assert_eq!(visibility.visible(), SeqNo(15));
    }

    #[test]
    fn many_threads_all_become_visible_in_order() {
        let visibility: Visibility = Visibility::new(SeqNo::ZERO);
        let order = Mutex::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (visibility, order) = (&visibility, &order);
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        let (ticket, end) = {
                            let mut next = order.lock();
                            visibility.wait_for_slot(next.0).unwrap();
                            let ticket = next.0;
                            next.0 += 1;
                            next.1 += 1 + thread;
                            (ticket, SeqNo(next.1))
                        };
                        visibility.complete(ticket, end).unwrap();
                        assert!(visibility.visible() >= end);
                    }
                });
            }
        });
        assert_eq!(visibility.visible().0, order.lock().1);
        assert_eq!(visibility.head.load(Ordering::Relaxed), 20_000);
    }

    #[test]
    fn nobody_waits_for_a_commit_that_was_broken_off() {
        let visibility: Visibility = Visibility::new(SeqNo::ZERO);
        std::thread::scope(|scope| {
            let later = scope.spawn(|| visibility.complete(1, SeqNo(2)));
            let room = scope.spawn(|| visibility.wait_for_slot(TICKETS_MAX));
            visibility.abandon();
            assert_eq!(later.join().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
            assert_eq!(room.join().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
        });
        assert_eq!(visibility.visible(), SeqNo::ZERO);
    }
}
