//! Slots of page groups that are not part of the newest version and must not be overwritten yet.
//!
//! A *group* of pages is one extent, cut into slots of one page each (`crate::pages`). A page is
//! updated by writing its next image to a free slot of its group. The slot of the image before is
//! not free at once: older versions that are held, and the durable root, may still refer to it. It
//! is held here from the version that lost it to the end of its lifetime, like a lost extent.
//!
//! ```text
//!   free ---- written, then published ----> in use ---- lost by a version ----> held ----> free
//! ```
//!
//! After an open only the durable root exists, so no slot is held.

use crate::base::ids::{BlockNo, Generation};
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::{Arc, Mutex};
use std::collections::HashMap;

/// Approximate memory of one held slot in bytes.
const SLOT_BYTES: usize = 24;

/// The charge is adjusted in steps of this many slots.
const CHARGED_STEP: usize = 256;

/// The held slots of all groups of a data file.
pub(super) struct HeldSlots {
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The generation of the lost page by the first block of its slot.
    held: HashMap<BlockNo, Generation>,
    charge: Option<Charge>,
}

impl HeldSlots {
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), state: Mutex::default() }
    }

    /// Holds the slots of lost pages.
    pub fn hold(&self, pages: impl Iterator<Item = (BlockNo, Generation)>) {
        let mut state = self.state.lock();
        state.held.extend(pages);
        self.note_charge(&mut state);
    }

    /// Ends the hold of a lost page. Nothing happens if the page was lost with its group.
    pub fn release(&self, slot: BlockNo, generation: Generation) {
        let mut state = self.state.lock();
        if state.held.get(&slot) == Some(&generation) {
            state.held.remove(&slot);
            self.note_charge(&mut state);
        }
    }

    /// Returns those of `slots` that are not held.
    pub fn free_of(&self, slots: impl Iterator<Item = BlockNo>) -> Vec<BlockNo> {
        let state = self.state.lock();
        slots.filter(|slot| !state.held.contains_key(slot)).collect()
    }

    fn note_charge(&self, state: &mut State) {
        let count = state.held.len().next_multiple_of(CHARGED_STEP);
        if state.held.capacity() > 4 * count {
            state.held.shrink_to(2 * count);
        }
        let bytes = (count * SLOT_BYTES) as u64;
        match &mut state.charge {
            Some(charge) if charge.bytes() != bytes => charge.resize(bytes),
            Some(_) => {}
            None if bytes == 0 => {}
            None => state.charge = Some(self.budget.charge(Use::Metadata, bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_held_until_its_own_page_is_released() {
        let budget = Budget::new(16 << 20);
        let slots = HeldSlots::new(&budget);
        let before = budget.used_by(Use::Metadata);
        slots.hold((0..1000).map(|number| (BlockNo(number), Generation(7))));
        assert!(budget.used_by(Use::Metadata) > before);
        let free = |slots: &HeldSlots| slots.free_of((990..1005).map(BlockNo)).len();
        assert_eq!(free(&slots), 5);
        // The page of another time in the same place.
        slots.release(BlockNo(995), Generation(6));
        assert_eq!(free(&slots), 5);
        slots.release(BlockNo(995), Generation(7));
        assert_eq!(free(&slots), 6);
        for number in 0..1000 {
            slots.release(BlockNo(number), Generation(7));
        }
        assert_eq!((free(&slots), budget.used_by(Use::Metadata)), (15, before));
    }
}
