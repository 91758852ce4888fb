//! Merges sorted streams; the newest entry of a key wins.
//!
//! [`Merge`] reads any number of [`SortedStream`]s of the same direction and returns each key once,
//! with the update of the newest source. The age of a source is its position in the list: the first
//! is the newest. A merge is a sorted stream itself, so merges can be stacked.
//!
//! ```text
//!   sources   0 (newest)  ... d  k
//!             1           ... b  k        order: 1 at b, 0 at d, 2 at m
//!             2 (oldest)  ... k  m        (2's k lost to 0's and was passed over)
//! ```
//!
//! The sources that stand on an entry are kept in key order, the least first, in two small parallel
//! arrays: the first eight key bytes as a number, and the source. A step moves one source to its
//! new place. The place is found by counting the smaller numbers, which needs no branches; complete
//! keys are compared only where numbers are equal.
//!
//! Invariants:
//! 1. The keys in the order are distinct and strictly in the merge's direction: a source that meets
//!    a key of a newer source is moved past it at once.
//! 2. `heads[i]` belongs to the key that `sources[order[i]]` stands on.
//! 3. Every entry of every source is either returned or counted in [`Merge::passed_over`].
//!
//! After an error the merge must not be used any further. A merge belongs to one thread.
//!
//! `updates` makes a stream of a memtable, and has an empty set of updates; `neighbours` chooses
//! sequences that are worth a merge.

use crate::base::error::Result;
use crate::base::keys::{Direction, head64};
use crate::base::stream::{SortedStream, Update};
use std::cmp::Ordering;

mod neighbours;
mod updates;

pub use neighbours::small_neighbours;
pub use updates::{NoUpdates, UpdatesStream};

#[cfg(test)]
mod tests;

/// Treatment of tombstones that win.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tombstones {
    /// Return them: older data may exist below.
    Keep,
    /// Drop them: no older data exists below.
    Drop,
}

/// Entries read by a merge but not returned.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PassedOver {
    /// Entries hidden by a newer one, and dropped tombstones.
    pub entries: u64,
    /// Dropped tombstones among them (those that won).
    pub tombstones: u64,
    /// Key and inline value bytes of the entries.
    pub bytes: u64,
}

/// Merges sorted streams into one; see the module documentation.
pub struct Merge<S> {
    /// Newest first.
    sources: Vec<S>,
    /// The first bytes of the keys that the ordered sources stand on, as [`Merge::head`] computes
    /// them.
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

    /// The entries read but not returned so far.
    #[must_use]
    pub fn passed_over(&self) -> PassedOver {
        self.passed_over
    }

    /// The sources, newest first.
    #[must_use]
    pub fn sources(&self) -> &[S] {
        &self.sources
    }

    /// Returns the sources.
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

    /// Inserts `source`, which is not in the order, at its place. Where keys are equal the newer
    /// source stays, and the older one advances and is placed anew.
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

    /// Moves `source` past an entry that is not returned.
    fn pass_over(&mut self, source: usize) -> Result<()> {
        let stream = &mut self.sources[source];
        let key_bytes = stream.key().map_or(0, <[u8]>::len);
        self.passed_over.entries += 1;
        self.passed_over.bytes += (key_bytes + stream.update().inline_bytes()) as u64;
        stream.advance()
    }

    /// Moves the first source of the order, whose entry was returned or is dropped, to its new
    /// place.
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
            // Equal heads: compare complete keys, on the slow path.
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
