//! The memory layout of the inner nodes of the index.
//!
//! ```text
//! header (24)      lock and obsolete mark 2 | unused 1 | count 1 | prefix length 4 | prefix 8
//!                  | terminal 8
//! node of 4        header | keys 8 (the low four bytes)  | 4 slots                      =   64
//! node of 16       header | keys 16                      | 16 slots           (+ 24)    =  192
//! node of 48       header | a byte per key: slot + 1     | 48 slots           (+ 40)    =  704
//! node of 256      header | 256 slots                                         (+ 40)    = 2112
//! ```
//!
//! Keys of nodes of 4 and 16 are stored in the order of insertion. A prefix up to 8 bytes is stored
//! in the node; a longer one is an address of key bytes in some record. Zeros are no keys and null
//! slots in every kind.

use super::child::{Child, Kind, Slot};
use crate::kernels::prefetch::prefetch_read;
use crate::runtime::sync::{AtomicU8, AtomicU64, Mutex, Ordering};

/// Maximum length of an inline prefix.
pub(super) const PREFIX_INLINE_BYTES: usize = 8;

/// The part of a path below the parent's slot: inline if it is short.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Prefix {
    pub(super) inline: [u8; PREFIX_INLINE_BYTES],
    pub(super) outside: *const u8,
}

#[repr(C)]
pub(super) struct Header {
    /// True inside: the node is obsolete.
    pub(super) lock: Mutex<bool>,
    pub(super) _unused: u8,
    /// Number of used keys; unused in nodes of 256.
    pub(super) count: AtomicU8,
    pub(super) prefix_bytes: u32,
    pub(super) prefix: Prefix,
    pub(super) terminal: Slot,
}

#[repr(C)]
pub(super) struct N4 {
    pub(super) header: Header,
    pub(super) keys: AtomicU64,
    pub(super) slots: [Slot; 4],
}

#[repr(C)]
pub(super) struct N16 {
    pub(super) header: Header,
    pub(super) keys: [AtomicU64; 2],
    pub(super) slots: [Slot; 16],
    _padding: [u64; 3],
}

#[repr(C)]
pub(super) struct N48 {
    pub(super) header: Header,
    pub(super) index: [AtomicU64; 32],
    pub(super) slots: [Slot; 48],
    _padding: [u64; 5],
}

#[repr(C)]
pub(super) struct N256 {
    pub(super) header: Header,
    pub(super) slots: [Slot; 256],
    _padding: [u64; 5],
}

const _: () = assert!(size_of::<Header>() == 24);
const _: () = assert!(size_of::<N4>() == 64 && size_of::<N16>() == 192);
const _: () = assert!(size_of::<N48>() == 704 && size_of::<N256>() == 2112);
const _: () = assert!(align_of::<N256>() == crate::memtable::arena::ALIGNMENT);

/// Offset of the byte index of a node of 48.
const N48_INDEX: usize = std::mem::offset_of!(N48, index);

/// Offset of the slots of a node of 256.
const N256_SLOTS: usize = std::mem::offset_of!(N256, slots);

impl Child {
    /// Prefetches the memory that a search for `byte` in a node touches first; does nothing for
    /// entries.
    #[inline]
    pub(super) fn prefetch_slot(self, byte: u8) {
        match self.tag() {
            0 => {}
            kind => {
                let node = self.tagged_address().wrapping_sub(kind);
                prefetch_read(node);
                if kind == Kind::N48 as usize {
                    prefetch_read(node.wrapping_add(N48_INDEX + usize::from(byte)));
                } else if kind == Kind::N256 as usize {
                    prefetch_read(node.wrapping_add(N256_SLOTS + 8 * usize::from(byte)));
                }
            }
        }
    }
}

impl N4 {
    /// The keys and their number.
    #[inline]
    pub(super) fn keys(&self, count: usize) -> ([u8; 8], usize) {
        (self.keys.load(Ordering::Relaxed).to_le_bytes(), count.min(4))
    }
}

impl N16 {
    /// The keys and their number.
    #[inline]
    pub(super) fn keys(&self, count: usize) -> ([u8; 16], usize) {
        let [low, high] = self.keys.each_ref().map(|word| word.load(Ordering::Relaxed));
        let keys = u128::from(low) | (u128::from(high) << 64);
        (keys.to_le_bytes(), count.min(16))
    }
}

impl N48 {
    /// The least used key that is not less than `from`.
    #[inline]
    pub(super) fn key_from(&self, from: u8) -> Option<u8> {
        let mut at = usize::from(from) / 8;
        let mut word = self.index[at].load(Ordering::Acquire) & (u64::MAX << (from % 8 * 8));
        while word == 0 {
            at += 1;
            word = self.index.get(at)?.load(Ordering::Acquire);
        }
        u8::try_from(at * 8 + word.trailing_zeros() as usize / 8).ok()
    }

    /// The greatest used key that is not greater than `upto`.
    #[inline]
    pub(super) fn key_upto(&self, upto: u8) -> Option<u8> {
        let mut at = usize::from(upto) / 8;
        let mut word = self.index[at].load(Ordering::Acquire) & (u64::MAX >> (56 - upto % 8 * 8));
        while word == 0 {
            at = at.checked_sub(1)?;
            word = self.index[at].load(Ordering::Acquire);
        }
        u8::try_from(at * 8 + (63 - word.leading_zeros() as usize) / 8).ok()
    }
}

/// Index of the least of `keys` that is not less than `from`.
#[inline]
pub(super) fn least(keys: &[u8], from: u8) -> Option<usize> {
    let places = keys.iter().enumerate().filter(|(_, key)| **key >= from);
    places.min_by_key(|(_, key)| **key).map(|(at, _)| at)
}

/// Index of the greatest of `keys` that is not greater than `upto`.
#[inline]
pub(super) fn greatest(keys: &[u8], upto: u8) -> Option<usize> {
    let places = keys.iter().enumerate().filter(|(_, key)| **key <= upto);
    places.max_by_key(|(_, key)| **key).map(|(at, _)| at)
}

/// Publishes one byte of a word that is changed only by the caller; the byte must still be zero.
pub(super) fn set_byte(word: &AtomicU64, at: usize, byte: u8) {
    let old = word.load(Ordering::Relaxed);
    debug_assert!(old.to_le_bytes()[at] == 0, "keys are appended, not changed");
    word.store(old | (u64::from(byte) << (at * 8)), Ordering::Release);
}
