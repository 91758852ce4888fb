//! The memory of frames, as readers find it without a lock.
//!
//! Frames are numbered; 64 consecutive numbers are a *place*, which holds one slab or none. Places
//! are kept in chunks that double in size and never move, so that a number is turned into an
//! address by two loads that all readers share.
//!
//! ```text
//!   chunk 0: 16 places   chunk 1: 32 places   chunk 2: 64 places ...
//!   place:   address of its slab (null: none) | 64 heats
//! ```
//!
//! A *heat* is the number of clock rounds that a frame survives ([`Heat`]). It is a hint: a race
//! loses a use at most.
//!
//! Invariants:
//! 1. A place's slab changes only while all its frames are free and unused (the state machine in
//!    `crate::storage::cache`).

#![expect(unsafe_code, reason = "an island: blocks are copied between frames")]

use crate::base::limits::{BLOCK_BYTES, SLAB_BYTES};
use crate::runtime::sync::{AtomicPtr, AtomicU8, OnceLock, Ordering};

/// Frames of a place: one slab.
pub(super) const PLACE_FRAMES: usize = SLAB_BYTES / BLOCK_BYTES;

const _: () = assert!(PLACE_FRAMES == 64);

/// Places of chunk 0.
const CHUNK_PLACES: usize = 16;

/// This many chunks hold every place whose frames have numbers of 32 bits.
const CHUNKS: usize = 22;

/// The most places; frame numbers stay below `u32::MAX`, which the slots need.
pub(super) const PLACES_MAX: usize = CHUNK_PLACES * ((1 << CHUNKS) - 1);

const _: () = assert!((PLACES_MAX as u64) * (PLACE_FRAMES as u64) < u32::MAX as u64);

/// The number of a frame.
pub(super) type FrameNo = u32;

/// How long a block stays: the low half is the number of clock rounds it survives, which each use
/// increments, up to the high half.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Heat(u8);

/// The low half of a heat.
const LEFT: u8 = 0x0f;

impl Heat {
    /// `left` rounds now, and at most `most` (below 16).
    pub(super) const fn new(left: u8, most: u8) -> Self {
        Self((most << 4) | (left & LEFT))
    }

    pub(super) fn rounds_left(self) -> u8 {
        self.0 & LEFT
    }

    fn most(self) -> u8 {
        self.0 >> 4
    }
}

/// A place as readers see it.
struct Place {
    memory: AtomicPtr<u8>,
    heats: [AtomicU8; PLACE_FRAMES],
}

/// All places.
pub(super) struct Frames {
    chunks: [OnceLock<Box<[Place]>>; CHUNKS],
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { chunks: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// Sets the slab of `place` to `memory` (null: none).
    pub(super) fn set_memory(&self, place: usize, memory: *mut u8) {
        let (chunk, index) = chunk_of(place);
        let places = self.chunks[chunk].get_or_init(|| {
            (0..CHUNK_PLACES << chunk)
                .map(|_| Place {
                    memory: AtomicPtr::new(std::ptr::null_mut()),
                    heats: std::array::from_fn(|_| AtomicU8::new(0)),
                })
                .collect()
        });
        places[index].memory.store(memory, Ordering::Release);
    }

    /// The address of a frame whose place has a slab.
    #[inline]
    pub(super) fn address(&self, frame: FrameNo) -> *mut u8 {
        let (place, within) = place_of(frame);
        address_in(self.place(place), within)
    }

    /// The address of a used frame, with its heat incremented. The heat is written only if that
    /// changes it, so that the cache lines of hot frames stay shared between processors.
    #[inline]
    pub(super) fn hit(&self, frame: FrameNo) -> *mut u8 {
        let (place, within) = place_of(frame);
        let place = self.place(place);
        if let Some(place) = place {
            let heat = &place.heats[within];
            let now = Heat(heat.load(Ordering::Relaxed));
            if now.rounds_left() < now.most() {
                heat.store(now.0 + 1, Ordering::Relaxed);
            }
        }
        address_in(place, within)
    }

    /// Sets the initial heat of a frame.
    pub(super) fn set_heat(&self, frame: FrameNo, heat: Heat) {
        if let Some(own) = self.heat(frame) {
            own.store(heat.0, Ordering::Relaxed);
        }
    }

    /// Applies one clock round: true if the frame was cold already, else its heat is decremented.
    pub(super) fn cool(&self, frame: FrameNo) -> bool {
        let Some(own) = self.heat(frame) else { return true };
        let now = Heat(own.load(Ordering::Relaxed));
        if now.rounds_left() == 0 {
            return true;
        }
        own.store(now.0 - 1, Ordering::Relaxed);
        false
    }

    /// The heat of the frame.
    pub(super) fn heat_of(&self, frame: FrameNo) -> Heat {
        self.heat(frame).map_or_else(Heat::default, |own| Heat(own.load(Ordering::Relaxed)))
    }

    /// Copies a block, and its heat, to another frame. The caller holds the lock under which `from`
    /// is Cached and `to` was taken from the free ones.
    pub(super) fn copy(&self, from: FrameNo, to: FrameNo) {
        self.set_heat(to, self.heat_of(from));
        let (from, to) = (self.address(from), self.address(to));
        // SAFETY: both are different frames of slabs that the lock keeps; nobody writes a Cached
        // one, and only the caller has the number of a frame just taken.
        unsafe { std::ptr::copy_nonoverlapping(from, to, BLOCK_BYTES) };
    }

    #[inline]
    fn place(&self, place: usize) -> Option<&Place> {
        let (chunk, index) = chunk_of(place);
        self.chunks.get(chunk)?.get()?.get(index)
    }

    #[inline]
    fn heat(&self, frame: FrameNo) -> Option<&AtomicU8> {
        let (place, within) = place_of(frame);
        self.place(place).map(|place| &place.heats[within])
    }
}

/// The address of a frame of a place. The number of the frame came from a slot or from under the
/// lock, so the slab was set before: the order of this load does not matter.
#[inline]
fn address_in(place: Option<&Place>, within: usize) -> *mut u8 {
    let memory = place.map_or(std::ptr::null_mut(), |place| place.memory.load(Ordering::Relaxed));
    assert!(!memory.is_null(), "a frame without memory is in use");
    memory.wrapping_add(within * BLOCK_BYTES)
}

/// The place of a frame, and its index within the place.
#[inline]
pub(super) fn place_of(frame: FrameNo) -> (usize, usize) {
    let frame = frame as usize;
    (frame / PLACE_FRAMES, frame % PLACE_FRAMES)
}

/// The number of frame `within` of `place`.
pub(super) fn frame_number(place: usize, within: usize) -> FrameNo {
    debug_assert!(place < PLACES_MAX && within < PLACE_FRAMES);
    u32::try_from(place * PLACE_FRAMES + within).unwrap_or(u32::MAX)
}

/// The chunk of a place, and the index within the chunk.
#[inline]
fn chunk_of(place: usize) -> (usize, usize) {
    let shifted = place + CHUNK_PLACES;
    let chunk = (shifted.ilog2() - CHUNK_PLACES.ilog2()) as usize;
    (chunk, shifted - (CHUNK_PLACES << chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fill_chunks_without_gaps() {
        let mut expected = (0, 0);
        for place in 0..5_000 {
            assert_eq!(chunk_of(place), expected);
            expected.1 += 1;
            if expected.1 == CHUNK_PLACES << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(chunk_of(PLACES_MAX - 1).0, CHUNKS - 1);
        assert_eq!(place_of(frame_number(77, 13)), (77, 13));
    }

    #[test]
    fn heat_falls_by_rounds_and_rises_by_uses() {
        let frames = Frames::new();
        frames.set_memory(0, std::ptr::dangling_mut());
        frames.set_heat(5, Heat::new(1, 3));
        assert!(!frames.cool(5));
        assert!(frames.cool(5));
        for left in [1, 2, 3, 3] {
            let _ = frames.hit(5);
            assert_eq!(frames.heat_of(5), Heat::new(left, 3));
        }
        assert!(!frames.cool(5) && !frames.cool(5) && !frames.cool(5) && frames.cool(5));
    }
}
