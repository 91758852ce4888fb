//! A model of a small device: the used blocks of each file, and the capacity.
//!
//! Thread-safety: the holder's mutex.

use crate::base::limits::BLOCK_BYTES_U64;
use std::collections::{BTreeMap, BTreeSet};

/// The used blocks of all files. Files are identified by name; a removed file frees its blocks at
/// once, even if it is still open.
#[derive(Debug, Default)]
pub struct Space {
    files: BTreeMap<String, BTreeSet<u64>>,
    taken: u64,
    /// The capacity in bytes.
    capacity: Option<u64>,
}

impl Space {
    /// The used bytes.
    pub fn taken_bytes(&self) -> u64 {
        self.taken * BLOCK_BYTES_U64
    }

    /// The free bytes, if the capacity is limited.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.capacity?.saturating_sub(self.taken_bytes()))
    }

    /// Sets the capacity.
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        self.capacity = capacity;
    }

    /// Registers a new, empty file.
    pub fn create(&mut self, name: &str) {
        self.files.insert(name.to_owned(), BTreeSet::new());
    }

    /// Registers a file, unless it is registered.
    pub fn make(&mut self, name: &str) {
        self.files.entry(name.to_owned()).or_default();
    }

    /// Removes a file.
    pub fn remove(&mut self, name: &str) {
        let blocks = self.files.remove(name).unwrap_or_default();
        self.taken -= blocks.len() as u64;
    }

    /// Takes the blocks of a range; false, and nothing is taken, if there are not enough. Removed
    /// files take none.
    pub fn take(&mut self, name: &str, offset: u64, bytes: u64) -> bool {
        let Some(blocks) = self.files.get_mut(name) else { return true };
        let range =
            offset / BLOCK_BYTES_U64..offset.saturating_add(bytes).div_ceil(BLOCK_BYTES_U64);
        let fresh: Vec<_> = range.filter(|block| !blocks.contains(block)).collect();
        let taken = self.taken + fresh.len() as u64;
        let fits = |capacity| taken.saturating_mul(BLOCK_BYTES_U64) <= capacity;
        if !fresh.is_empty() && !self.capacity.is_none_or(fits) {
            return false;
        }
        blocks.extend(fresh);
        self.taken = taken;
        true
    }

    /// Frees the blocks that lie wholly in a range.
    pub fn give_back(&mut self, name: &str, offset: u64, end: u64) {
        let Some(blocks) = self.files.get_mut(name) else { return };
        let (first, last) = (offset.div_ceil(BLOCK_BYTES_U64), end / BLOCK_BYTES_U64);
        if first >= last {
            return;
        }
        let before = blocks.len();
        let mut behind = blocks.split_off(&first);
        blocks.append(&mut behind.split_off(&last));
        self.taken -= (before - blocks.len()) as u64;
    }

    /// The device bytes used by a file.
    pub fn file_bytes(&self, name: &str) -> u64 {
        self.files.get(name).map_or(0, |blocks| blocks.len() as u64 * BLOCK_BYTES_U64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_once_and_come_back() {
        let mut space = Space::default();
        space.set_capacity(Some(3 * BLOCK_BYTES_U64));
        space.create("a");
        assert!(space.take("a", 0, 1));
        assert!(space.take("a", 100, 2 * BLOCK_BYTES_U64));
        assert_eq!(space.taken_bytes(), 3 * BLOCK_BYTES_U64);
        assert!(space.take("a", 0, 3 * BLOCK_BYTES_U64));
        assert!(!space.take("a", 0, 3 * BLOCK_BYTES_U64 + 1));
        space.give_back("a", 1, 2 * BLOCK_BYTES_U64);
        assert_eq!(space.taken_bytes(), 2 * BLOCK_BYTES_U64);
        space.remove("a");
        assert_eq!(space.taken_bytes(), 0);
        assert!(space.take("a", 0, 1 << 30));
    }
}
