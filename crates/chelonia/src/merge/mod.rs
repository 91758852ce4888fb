//! Merging sorted streams: newest wins.
//!
//! [`Merge`] reads any number of [`SortedStream`]s that all go in one direction and gives one that
//! has each key once, with the update of the newest source. The age of a source is its place in the
//! list: the first is the newest. A merge is a sorted stream itself, so merges stack.
//!
//! ```text
//!   sources   0 (newest)  ... d  k
//!             1           ... b  k        order: 1 at b, 0 at d, 2 at m
//!             2 (oldest)  ... k  m        (2's k lost to 0's and was passed over)
//! ```
//!
//! The sources that stand on an entry are kept in key order, the least first, in two small parallel
//! arrays: the first eight key bytes as a number, and the source. A step moves one source to its
//! new place. The place is found by counting the smaller numbers, which needs no branches; whole
//! keys are compared only where numbers are equal.
//!
//! Invariants:
//! 1. The keys in the order are distinct and strictly in the merge's direction: a source that meets
//!    a key that a newer one stands on is moved past it at once.
//! 2. `heads[i]` belongs to the key that `sources[order[i]]` stands on.
//! 3. Every entry of every source is either given or counted in [`Merge::passed_over`].
//!
//! After an error the merge must not be used any further. A merge belongs to one thread.

use crate::base::error::Result;
use crate::base::keys::{Direction, head64};
use crate::base::stream::{SortedStream, Update};
use std::cmp::Ordering;

mod updates;

pub use updates::UpdatesStream;

#[cfg(test)]
mod tests;

/// What becomes of tombstones that win.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tombstones {
    /// They are given: something older may lie below.
    Keep,
    /// They are passed over: nothing older lies below.
    Drop,
}

/// What a merge has read and not given.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PassedOver {
    /// Entries that a newer one hid, and tombstones that were dropped.
    pub entries: u64,
    /// The tombstones among them that were dropped because they won.
    pub tombstones: u64,
    /// Key and inline value bytes of the entries.
    pub bytes: u64,
}

/// Sorted streams merged into one: see the head of the file.
pub struct Merge<S> {
    /// Newest first.
    sources: Vec<S>,
    /// The first bytes of the keys the ordered sources stand on, as [`Merge::head`] makes them.
    heads: Vec<u64>,
    /// The sources that stand on an entry, by key.
    order: Vec<usize>,
    direction: Direction,
    tombstones: Tombstones,
    passed_over: PassedOver,
}

impl<S: SortedStream> Merge<S> {
    /// Merges `sources`, newest first; all must go in `direction`.
    pub fn new(sources: Vec<S>, direction: Direction, tombstones: Tombstones) -> Result<Self> {
        let count = sources.len();
        let mut merge = Self {
            sources,
            heads: Vec::with_capacity(count),
            order: Vec::with_capacity(count),
            direction,
            tombstones,
            passed_over: PassedOver::default(),
        };
        for source in 0..count {
            merge.place(source)?;
        }
        merge.skip_tombstones()?;
        Ok(merge)
    }

    /// What has been read and not given so far.
    #[must_use]
    pub fn passed_over(&self) -> PassedOver {
        self.passed_over
    }

    /// Gives the sources back.
    #[must_use]
    pub fn into_sources(self) -> Vec<S> {
        self.sources
    }

    /// The number that orders `key` among the heads.
    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        match self.direction {
            Direction::Ascending => head64(key),
            Direction::Descending => !head64(key),
        }
    }

    /// Compares two keys in the merge's direction.
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        match self.direction {
            Direction::Ascending => left.cmp(right),
            Direction::Descending => right.cmp(left),
        }
    }

    /// Puts `source`, which is not in the order, at its place in it. Where keys are equal the newer
    /// source stays and the older one moves on and is placed anew.
    fn place(&mut self, mut source: usize) -> Result<()> {
        loop {
            let Some(key) = self.sources[source].key() else { return Ok(()) };
            let head = self.head(key);
            let mut place = self.heads.iter().filter(|other| **other < head).count();
            let mut rival = None;
            while self.heads.get(place) == Some(&head) {
                let other = self.order[place];
                let other_key = self.sources[other].key().unwrap_or_default();
                match self.compare(key, other_key) {
                    Ordering::Less => break,
                    Ordering::Greater => place += 1,
                    Ordering::Equal => {
                        rival = Some(other);
                        break;
                    }
                }
            }
            match rival {
                None => {
                    self.heads.insert(place, head);
                    self.order.insert(place, source);
                    return Ok(());
                }
                Some(other) => {
                    self.order[place] = source.min(other);
                    source = source.max(other);
                    self.pass_over(source)?;
                }
            }
        }
    }

    /// Moves `source` past an entry that is not given.
    fn pass_over(&mut self, source: usize) -> Result<()> {
        let stream = &mut self.sources[source];
        let key_bytes = stream.key().map_or(0, <[u8]>::len);
        self.passed_over.entries += 1;
        self.passed_over.bytes += (key_bytes + stream.update().inline_bytes()) as u64;
        stream.advance()
    }

    /// Moves the first source of the order, whose entry was given or is dropped, to its new place.
    #[inline]
    fn step(&mut self) -> Result<()> {
        let Some(&source) = self.order.first() else { return Ok(()) };
        self.sources[source].advance()?;
        let Some(key) = self.sources[source].key() else {
            self.heads.remove(0);
            self.order.remove(0);
            return Ok(());
        };
        let head = self.head(key);
        let smaller = self.heads[1..].iter().filter(|other| **other < head).count();
        if self.heads.get(smaller + 1) == Some(&head) {
            // Equal heads decide nothing: compare whole keys, on the slow way.
            self.heads.remove(0);
            self.order.remove(0);
            return self.place(source);
        }
        // Element by element: the ranges are a few words long, less than a call costs.
        for index in 0..smaller {
            self.heads[index] = self.heads[index + 1];
            self.order[index] = self.order[index + 1];
        }
        self.heads[smaller] = head;
        self.order[smaller] = source;
        Ok(())
    }

    fn skip_tombstones(&mut self) -> Result<()> {
        if self.tombstones == Tombstones::Keep {
            return Ok(());
        }
        while let Some(&source) = self.order.first() {
            let stream = &self.sources[source];
            if !stream.update().is_delete() {
                return Ok(());
            }
            self.passed_over.entries += 1;
            self.passed_over.tombstones += 1;
            self.passed_over.bytes += stream.key().map_or(0, <[u8]>::len) as u64;
            self.step()?;
        }
        Ok(())
    }
}

impl<S: SortedStream> SortedStream for Merge<S> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.order.first().and_then(|source| self.sources[*source].key())
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.sources[self.order[0]].update()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.step()?;
        self.skip_tombstones()
    }
}
