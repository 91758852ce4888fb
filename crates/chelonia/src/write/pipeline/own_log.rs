//! A commit whose thread has a log of its own: the commit lock is held to take a place in the
//! order, not to append.
//!
//! ```text
//!   lock of the log   make space ................... append --> release
//!   commit lock                   prepare --> placed
//! ```
//! The log's lock is held from before the place is taken until the record is in the log, so that
//! seqnos ascend within each log, and whoever holds the locks of all logs finds every record with a
//! seqno in its log.
//!
//! Once a seqno is taken, its record must follow: without it no later write would survive a replay.
//! So all space is made before; where an append can fail for lack of space all the same (on file
//! systems that do not write in place), it is done under the commit lock, before the place is
//! taken.

use super::{Entries, Pipeline, Place, Tail, Unfinished};
use crate::base::error::Result;
use crate::base::ids::SeqNo;
use crate::base::logs::Starts;
use crate::runtime::sync::MutexGuard;
use crate::state::core::CommitState;
use crate::state::health::Health;

impl<T: Tail, const TICKETS: u64> Pipeline<'_, T, TICKETS> {
    /// Commits `entries` to the log `number`, whose locked tail is `own`; returns their last seqno
    /// when they are visible. After a transient error, such as `NoSpace`, nothing has changed.
    #[inline(never)]
    pub fn commit_to(
        &self,
        (number, own): (usize, MutexGuard<'_, Option<T>>),
        entries: &mut impl Entries,
    ) -> Result<SeqNo> {
        let (ticket, last, unfinished) = self.place_in(number, own, entries)?;
        entries.apply();
        std::mem::forget(unfinished);
        self.visibility.complete(ticket, last)?;
        Ok(last)
    }

    /// Takes a ticket and seqnos, and appends the record. Returns the ticket, the last seqno, and
    /// the duty to complete the ticket.
    fn place_in(
        &self,
        number: usize,
        mut own: MutexGuard<'_, Option<T>>,
        entries: &mut impl Entries,
    ) -> Result<(u64, SeqNo, Unfinished<'_, '_, T, TICKETS>)> {
        debug_assert!(entries.count() > 0, "an empty commit has no seqno");
        let count = entries.count() as u64;
        // Only a close takes the tail.
        let Some(tail) = &mut *own else { return Err(Health::closed()) };
        let bytes = entries.record().0.len();
        tail.make_space(bytes).map_err(|error| self.health.stop_unless_harmless(error))?;
        let mut order = self.order.lock();
        entries.prepare()?;
        let CommitState { next_seqno, next_ticket, totals, starts, .. } = &mut *order;
        self.visibility.wait_for_slot(*next_ticket)?;
        let (ticket, first) = (*next_ticket, *next_seqno);
        let last = SeqNo(first.0 + count - 1);
        starts[number] = tail.position();
        let is_space_sure = tail.is_space_sure();
        if !is_space_sure {
            append(tail, entries, first)
                .map_err(|error| self.health.stop_unless_harmless(error))?;
        }
        entries.placed(Place { starts: Starts::Each(starts), first, last });
        *next_ticket += 1;
        *next_seqno = last.next();
        totals.commits += 1;
        totals.entries += count;
        totals.user_bytes += entries.bytes();
        drop(order);
        let unfinished = Unfinished { pipeline: self };
        if is_space_sure {
            // The place is taken: any failure leaves a gap, and stops all writes.
            append(tail, entries, first).map_err(|error| self.health.stop(tail.stop(error)))?;
        }
        Ok((ticket, last, unfinished))
    }
}

/// Appends the record of `entries`, whose seqnos begin with `first`.
fn append(tail: &mut impl Tail, entries: &mut impl Entries, first: SeqNo) -> Result<()> {
    let record = entries.numbered(first);
    let hash = tail.hash(record);
    tail.append(record, hash).map(|_| ())
}
