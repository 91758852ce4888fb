//! Frame ownership: the part of the cache that its lock guards.
//!
//! The state machine of a frame is drawn in `crate::storage::cache`; this file implements its
//! transitions. Nothing here touches the memory of frames (except `relocate`, by `Frames::copy`),
//! runs deferred functions, or does I/O.
//!
//! Invariants:
//! 1. `free`, `loading`, `cached` and `limbo` count the frames in these states, without those of
//!    draining places.
//! 2. A frame is `Cached` if and only if the slot it names holds its number + 1.
//! 3. Frames of a draining place are never handed out; when all of them are free its slab leaves.

use super::frames::{FrameNo, Frames, PLACE_FRAMES, PLACES_MAX, frame_number, place_of};
use crate::base::checksum::identity;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::memory::slab::OwnedSlab;
use crate::memory::split::{Side, Split};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::{Arc, AtomicU32, Ordering};

/// The slots of one extent: 0, or the number of the frame that holds the block + 1.
pub(super) type Slots = Arc<[AtomicU32]>;

/// The ghost name of an evicted block: derived from its slot.
pub(super) fn ghost_of(slot: &AtomicU32) -> u64 {
    identity([std::ptr::from_ref(slot).addr() as u64, 0, 0])
}

/// The heap bytes of a place here and in `Frames` for the lifetime of the cache.
pub(super) const PLACE_BYTES: u64 = (size_of::<Place>() + PLACE_FRAMES + 8) as u64;

/// The heap bytes of a place while it has a slab.
pub(super) const SLAB_STATE_BYTES: u64 = (PLACE_FRAMES * size_of::<Frame>()) as u64;

/// The most places drained at a time: a reader that delays one delays the others too.
const DRAINING_MAX: usize = 4;

/// How many places are compared to choose one to drain.
const DRAIN_CANDIDATES: usize = 8;

/// The most frames that one clock run examines, which bounds how long the lock is held.
const CLOCK_STEPS_MAX: usize = 2048;

/// The state of a frame.
enum Frame {
    Free,
    Loading,
    Cached { slots: Slots, index: u32 },
    Limbo,
}

/// A slab cut into frames.
struct Place {
    slab: Option<OwnedSlab>,
    /// Empty without a slab.
    frames: Box<[Frame]>,
    /// A bit for each free frame; 0 without a slab.
    free: u64,
    /// In `State::with_free`, possibly outdated.
    listed: bool,
    draining: bool,
}

/// Frame counts by state.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) places: usize,
    pub(super) free: usize,
    pub(super) loading: usize,
    pub(super) cached: usize,
    pub(super) limbo: usize,
    /// Places that are being emptied.
    pub(super) draining: usize,
}

/// The state of all frames.
#[derive(Default)]
pub(super) struct State {
    places: Vec<Place>,
    /// Places with a free frame, possibly outdated; checked when used.
    with_free: Vec<usize>,
    /// Places without a slab.
    vacant: Vec<usize>,
    /// Frames taken from their slots whose release is not deferred yet.
    retired: Vec<FrameNo>,
    hand: FrameNo,
    drain_hand: usize,
    counts: Counts,
    /// Slabs that left since the cache was created.
    pub(super) withdrawn: u64,
    /// Blocks evicted by the clock.
    pub(super) evictions: u64,
}

impl State {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The heap bytes of this state and of `Frames`, for the budget.
    pub(super) fn heap_bytes(&self) -> u64 {
        self.places.len() as u64 * PLACE_BYTES + self.counts.places as u64 * SLAB_STATE_BYTES
    }

    /// Frames that are free or about to be.
    pub(super) fn spare(&self) -> usize {
        self.counts.free + self.counts.limbo
    }

    /// The target number of spare frames: a miss should find one while earlier ones are still in
    /// limbo.
    pub(super) fn reserve(&self) -> usize {
        (self.counts.places * PLACE_FRAMES / 32).clamp(8, 256)
    }

    /// Takes a free frame to load a block into.
    pub(super) fn take_free(&mut self) -> Option<FrameNo> {
        while let Some(&number) = self.with_free.last() {
            let place = &mut self.places[number];
            if place.free == 0 || place.draining {
                place.listed = false;
                self.with_free.pop();
                continue;
            }
            let within = place.free.trailing_zeros() as usize;
            place.free &= place.free - 1;
            place.frames[within] = Frame::Loading;
            self.counts.free -= 1;
            self.counts.loading += 1;
            return Some(frame_number(number, within));
        }
        None
    }

    /// Adds a slab to the cache; returned if there is no number left for it.
    pub(super) fn install(&mut self, slab: OwnedSlab, frames: &Frames) -> Option<OwnedSlab> {
        let number = match self.vacant.pop() {
            Some(number) => number,
            None if self.places.len() < PLACES_MAX => {
                self.places.push(Place {
                    slab: None,
                    frames: Box::default(),
                    free: 0,
                    listed: false,
                    draining: false,
                });
                self.places.len() - 1
            }
            None => return Some(slab),
        };
        frames.set_memory(number, slab.as_ptr());
        let place = &mut self.places[number];
        (place.slab, place.free) = (Some(slab), u64::MAX);
        place.frames = (0..PLACE_FRAMES).map(|_| Frame::Free).collect();
        self.counts.places += 1;
        self.counts.free += PLACE_FRAMES;
        self.list(number);
        None
    }

    /// Publishes a loaded block: readers find it through its slot from now on. False if the slot
    /// has one already; then the frame is free again.
    pub(super) fn publish(&mut self, frame: FrameNo, slots: &Slots, index: u32) -> bool {
        let slot = &slots[index as usize];
        if slot.load(Ordering::Relaxed) != 0 {
            mark(Mark::BlockLoadedTwice);
            self.release_loading(frame);
            return false;
        }
        let (place, within) = place_of(frame);
        assert!(matches!(self.places[place].frames[within], Frame::Loading));
        self.places[place].frames[within] = Frame::Cached { slots: Arc::clone(slots), index };
        self.counts.loading -= 1;
        self.counts.cached += 1;
        // Release: a reader of the number sees the loaded block.
        slot.store(frame + 1, Ordering::Release);
        true
    }

    /// Frees a frame whose load failed or came second: only the loader has seen the frame.
    pub(super) fn release_loading(&mut self, frame: FrameNo) {
        let (place, within) = place_of(frame);
        assert!(matches!(self.places[place].frames[within], Frame::Loading));
        self.counts.loading -= 1;
        self.set_free(place, within);
    }

    /// Detaches slots, of a dropped extent or of a block that is written again, from their frames.
    pub(super) fn detach(&mut self, slots: &[AtomicU32]) {
        for slot in slots {
            if let Some(frame) = slot.load(Ordering::Relaxed).checked_sub(1) {
                self.take_away(frame);
            }
        }
    }

    /// Runs the clock until `wanted` frames were taken from their slots or it has examined enough
    /// of them.
    pub(super) fn evict(&mut self, wanted: usize, frames: &Frames, split: &Split) {
        let total = self.places.len() * PLACE_FRAMES;
        let mut taken = 0;
        for _ in 0..CLOCK_STEPS_MAX.min(total.saturating_mul(16)) {
            if taken >= wanted {
                break;
            }
            if self.hand as usize >= total {
                self.hand = 0;
            }
            let frame = self.hand;
            let (place, within) = place_of(frame);
            if self.places[place].slab.is_none() {
                self.hand = frame_number(place, PLACE_FRAMES - 1) + 1;
                continue;
            }
            self.hand += 1;
            let cached = matches!(self.places[place].frames[within], Frame::Cached { .. });
            if cached && frames.cool(frame) {
                self.take_away_for_space(frame, split);
                taken += 1;
            }
        }
    }

    /// Takes a cached frame from its slot for space, and records a ghost.
    fn take_away_for_space(&mut self, frame: FrameNo, split: &Split) {
        let (place, within) = place_of(frame);
        if let Frame::Cached { slots, index } = &self.places[place].frames[within] {
            split.evicted(Side::Blocks, ghost_of(&slots[*index as usize]), BLOCK_BYTES_U64);
        }
        self.take_away(frame);
        self.evictions += 1;
    }

    /// Takes a cached frame from its slot.
    fn take_away(&mut self, frame: FrameNo) {
        let (place, within) = place_of(frame);
        let state = std::mem::replace(&mut self.places[place].frames[within], Frame::Limbo);
        let Frame::Cached { slots, index } = state else {
            unreachable!("only cached frames have slots");
        };
        slots[index as usize].store(0, Ordering::Release);
        self.counts.cached -= 1;
        self.counts.limbo += usize::from(!self.places[place].draining);
        self.retired.push(frame);
    }

    /// The frames whose release must be deferred. The caller defers [`State::release`].
    #[must_use]
    pub(super) fn take_retired(&mut self) -> Vec<FrameNo> {
        std::mem::take(&mut self.retired)
    }

    /// Releases frames that no reader can hold any more: limbo is over. Returns slabs that leave.
    #[must_use]
    pub(super) fn release(&mut self, numbers: &[FrameNo], frames: &Frames) -> Vec<OwnedSlab> {
        let mut leaving = Vec::new();
        for frame in numbers {
            let (place, within) = place_of(*frame);
            assert!(matches!(self.places[place].frames[within], Frame::Limbo));
            self.counts.limbo -= usize::from(!self.places[place].draining);
            self.set_free(place, within);
            leaving.extend(self.withdraw_if_drained(place, frames));
        }
        leaving
    }

    /// Starts to drain a place, the coldest of a few, so that its slab can leave; an empty one
    /// leaves at once.
    #[must_use]
    pub(super) fn drain(&mut self, frames: &Frames, split: &Split) -> Option<OwnedSlab> {
        if self.counts.draining >= DRAINING_MAX {
            return None;
        }
        let place = self.coldest_place(frames)?;
        self.places[place].draining = true;
        self.counts.draining += 1;
        // These frames must not be used for relocated blocks.
        self.counts.free -= self.places[place].free.count_ones() as usize;
        for within in 0..PLACE_FRAMES {
            match self.places[place].frames[within] {
                Frame::Free => {}
                Frame::Limbo => self.counts.limbo -= 1,
                Frame::Cached { .. } => {
                    let frame = frame_number(place, within);
                    if frames.heat_of(frame).rounds_left() == 0 || !self.relocate(frame, frames) {
                        self.take_away_for_space(frame, split);
                    }
                }
                Frame::Loading => unreachable!("places with a load under way are not drained"),
            }
        }
        self.withdraw_if_drained(place, frames)
    }

    /// Copies the block of a frame in a draining place to a free frame, and points its slot to
    /// that. False if no frame can be spared.
    fn relocate(&mut self, frame: FrameNo, frames: &Frames) -> bool {
        if self.counts.free <= self.reserve() / 2 {
            return false;
        }
        let Some(target) = self.take_free() else { return false };
        frames.copy(frame, target);
        let (place, within) = place_of(frame);
        let state = std::mem::replace(&mut self.places[place].frames[within], Frame::Limbo);
        let Frame::Cached { slots, index } = state else {
            unreachable!("only cached frames are copied");
        };
        // Release: a reader of the number sees the copy.
        slots[index as usize].store(target + 1, Ordering::Release);
        let (place, within) = place_of(target);
        self.places[place].frames[within] = Frame::Cached { slots, index };
        mark(Mark::BlockRelocated);
        // One cached frame replaces another.
        self.counts.loading -= 1;
        self.retired.push(frame);
        true
    }

    /// The coldest of the next few places that can be drained.
    fn coldest_place(&mut self, frames: &Frames) -> Option<usize> {
        let mut best: Option<(u32, usize)> = None;
        let mut seen = 0;
        for _ in 0..self.places.len() {
            self.drain_hand = (self.drain_hand + 1) % self.places.len();
            let number = self.drain_hand;
            let place = &self.places[number];
            let loading = place.frames.iter().any(|frame| matches!(frame, Frame::Loading));
            if place.slab.is_none() || place.draining || loading {
                continue;
            }
            let worth = (0..PLACE_FRAMES)
                .filter(|within| matches!(place.frames[*within], Frame::Cached { .. }))
                .map(|within| {
                    let heat = frames.heat_of(frame_number(number, within));
                    1 + u32::from(heat.rounds_left())
                })
                .sum();
            if best.is_none_or(|(least, _)| worth < least) {
                best = Some((worth, number));
            }
            seen += 1;
            if seen == DRAIN_CANDIDATES || worth == 0 {
                break;
            }
        }
        best.map(|(_, number)| number)
    }

    /// Removes the slab of a draining place when none of its frames is in use.
    fn withdraw_if_drained(&mut self, number: usize, frames: &Frames) -> Option<OwnedSlab> {
        let place = &mut self.places[number];
        if !place.draining || place.free != u64::MAX {
            return None;
        }
        (place.draining, place.free) = (false, 0);
        place.frames = Box::default();
        let slab = place.slab.take();
        frames.set_memory(number, std::ptr::null_mut());
        self.vacant.push(number);
        self.counts.draining -= 1;
        self.counts.places -= 1;
        self.withdrawn += 1;
        slab
    }

    fn set_free(&mut self, number: usize, within: usize) {
        let place = &mut self.places[number];
        place.frames[within] = Frame::Free;
        place.free |= 1 << within;
        if !place.draining {
            self.counts.free += 1;
            self.list(number);
        }
    }

    fn list(&mut self, number: usize) {
        let place = &mut self.places[number];
        if !place.listed {
            place.listed = true;
            self.with_free.push(number);
        }
    }
}
