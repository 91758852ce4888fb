//! The memory of cached records: slabs in the order they were filled.
//!
//! ```text
//!   oldest                                               newest
//!   [ walked | to walk ]  [ full ]  [ full ] ...  [ full ]  [ used | free ]   [reserve]
//!      -> hot records are copied to the end                    ^ append
//! ```
//!
//! Records are appended to the newest slab and examined again, one after the other, in the oldest:
//! a clock whose hand advances as far as space is needed. When the hand has passed a slab, no
//! record in it is linked and it can be freed.
//!
//! The reserve becomes the next newest slab: it provides space to copy to before the oldest slab is
//! empty.

#![expect(unsafe_code, reason = "an island: records are written to and read from raw slabs")]

use super::record::{ALIGNMENT, Record, bytes_of};
use super::table::fits_a_slot;
use crate::base::ids::KeyspaceId;
use crate::base::limits::SLAB_BYTES;
use crate::memory::epoch::Guard;
use crate::memory::slab::OwnedSlab;
use std::collections::VecDeque;
use std::ptr::NonNull;

const _: () = assert!(SLAB_BYTES.is_multiple_of(ALIGNMENT));

/// A slab with records from its start on.
struct Filled {
    slab: OwnedSlab,
    used: usize,
}

impl Filled {
    /// The address at `offset`, if it is within the slab.
    fn address(&self, offset: usize) -> Option<NonNull<u8>> {
        if offset >= SLAB_BYTES {
            return None;
        }
        NonNull::new(self.slab.as_ptr().wrapping_add(offset))
    }
}

/// The slabs of a cache, under its lock.
#[derive(Default)]
pub(super) struct Queue {
    slabs: VecDeque<Filled>,
    /// Position of the hand in the oldest slab.
    walked: usize,
    reserve: Option<OwnedSlab>,
}

impl Queue {
    /// Bytes that can be appended without a new slab.
    pub fn room(&self) -> usize {
        self.slabs.back().map_or(0, |newest| SLAB_BYTES - newest.used)
    }

    /// True if there is a reserve.
    pub fn has_reserve(&self) -> bool {
        self.reserve.is_some()
    }

    /// Sets the reserve slab.
    pub fn set_reserve(&mut self, slab: OwnedSlab) {
        self.reserve = Some(slab);
    }

    /// Removes the reserve slab.
    pub fn take_reserve(&mut self) -> Option<OwnedSlab> {
        self.reserve.take()
    }

    /// Makes the reserve the newest slab; does nothing without one.
    pub fn begin_slab(&mut self) {
        let slab = self.reserve.take();
        self.slabs.extend(slab.map(|slab| Filled { slab, used: 0 }));
    }

    /// Number of slabs.
    pub fn slabs(&self) -> usize {
        self.slabs.len() + usize::from(self.reserve.is_some())
    }

    /// Appends a record, if there is space.
    pub fn append<'g>(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        value: &[u8],
        heat: u8,
        _guard: &'g Guard,
    ) -> Option<Record<'g>> {
        let bytes = bytes_of(key, value);
        let newest = self.slabs.back_mut()?;
        if SLAB_BYTES - newest.used < bytes {
            return None;
        }
        let address = newest.address(newest.used).filter(|address| fits_a_slot(*address))?;
        newest.used += bytes;
        // SAFETY: the bytes from `used` on are unused, are within the slab, and are not returned
        // again: a slab that leaves the queue is dropped or refilled only after the epochs of its
        // time, `_guard`'s among them (the cache checks that it is one of its epochs). Slabs are
        // aligned to blocks, and records have multiples of their alignment.
        Some(unsafe { Record::write(address, keyspace, key, value, heat) })
    }

    /// Returns the next record under the hand, linked or not; `None` at the end of the oldest slab.
    /// The newest slab is walked only if `even_newest`.
    pub fn walk<'g>(&mut self, even_newest: bool, _guard: &'g Guard) -> Option<Record<'g>> {
        if self.slabs.len() < 2 && !even_newest {
            return None;
        }
        let oldest = self.slabs.front()?;
        if self.walked >= oldest.used {
            return None;
        }
        let address = oldest.address(self.walked)?;
        // SAFETY: records lie end to end from the start of a slab to `used`, and stay until the
        // slab has left the queue and the epochs of that time are over, `_guard`'s among them.
        let record = unsafe { Record::at(address) };
        self.walked += record.slab_bytes();
        Some(record)
    }

    /// Removes the oldest slab if the hand has passed all of it. The caller must keep it until the
    /// current epochs are over.
    pub fn take_walked(&mut self) -> Option<OwnedSlab> {
        if self.slabs.front().is_none_or(|oldest| self.walked < oldest.used) {
            return None;
        }
        self.walked = 0;
        self.slabs.pop_front().map(|oldest| oldest.slab)
    }
}
