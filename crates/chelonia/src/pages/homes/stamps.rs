//! Stamps: which images of a page a version believes, and which of them are still needed.
//!
//! A *stamp* is a generation. Each absorb takes a new one, and everything that it writes to places
//! of pages carries it; the version that it makes has it too. A version believes an image if its
//! stamp is at most that of the version, unless the stamp is *dead*: taken by an absorb that
//! failed, or that a crash cut off, before the version was made.
//!
//! ```text
//!   stamps     10     12      15  17      21      30        open count and number, in order
//!   absorbs    made   made    failed      made    made
//!   versions   10     12                  21      30
//!   dead       -      -                   13..=20 13..=20
//! ```
//!
//! To believe all stamps up to that of the root would be wrong: what a failed absorb left becomes
//! older than the root with the next one.

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::Generation;
use crate::runtime::sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of ranges of dead stamps in a directory.
const RANGES_MAX: usize = 1 << 20;

/// Ranges of dead stamps: first and last of each, ascending.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeadStamps(Vec<(u64, u64)>);

impl DeadStamps {
    /// True if `stamp` is dead.
    #[must_use]
    pub fn contains(&self, stamp: Generation) -> bool {
        let begun = self.0.partition_point(|(first, _)| *first <= stamp.0);
        begun.checked_sub(1).is_some_and(|range| stamp.0 <= self.0[range].1)
    }

    /// Number of ranges.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.0.len()
    }

    /// Adds all stamps between `after` and `before`, which are newer than those that it has.
    pub fn add_between(&mut self, after: Generation, before: Generation) {
        let (first, last) = (after.0.saturating_add(1), before.0.saturating_sub(1));
        if first <= last && self.0.last().is_none_or(|(_, end)| *end < first) {
            self.0.push((first, last));
        }
    }

    /// Drops the ranges that begin before `stamp`: what had those stamps was overwritten.
    pub fn drop_before(&mut self, stamp: Generation) {
        self.0.retain(|(first, _)| *first > stamp.0);
    }

    /// Appends the ranges: a varint with their number, and two for each.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for (first, last) in &self.0 {
            put_varint(out, *first);
            put_varint(out, last - first);
        }
    }

    /// Decodes the output of [`DeadStamps::encode`].
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        // Each range takes at least two bytes.
        let count = decoder.length(RANGES_MAX.min(decoder.remaining() / 2 + 1))?;
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(count);
        for _ in 0..count {
            let (first, length) = (decoder.varint()?, decoder.varint()?);
            let last = first.checked_add(length);
            let last = last.ok_or_else(|| decoder.damaged("a range of stamps overflows"))?;
            if ranges.last().is_some_and(|(_, end)| *end >= first) {
                return Err(decoder.damaged("the dead stamps are out of order"));
            }
            ranges.push((first, last));
        }
        Ok(Self(ranges))
    }
}

/// The point of view of a version: which stamps it believes.
#[derive(Clone, Default)]
pub struct View {
    /// The stamp of the version.
    pub stamp: Generation,
    /// The dead stamps before it.
    pub dead: Arc<DeadStamps>,
}

impl View {
    /// True if an image with this stamp is part of the version, or of one before it.
    #[inline]
    #[must_use]
    pub fn believes(&self, stamp: Generation) -> bool {
        stamp.0 != 0 && stamp <= self.stamp && !self.dead.contains(stamp)
    }
}

/// The stamps of all versions of a tree that exist: the newest one, older ones that somebody
/// reads, and the durable root.
#[derive(Clone, Default)]
pub struct HeldStamps(Arc<Mutex<BTreeMap<Generation, usize>>>);

impl HeldStamps {
    /// Notes a version, until what is returned is dropped.
    #[must_use]
    pub fn hold(&self, stamp: Generation) -> HeldStamp {
        *self.0.lock().entry(stamp).or_insert(0) += 1;
        HeldStamp { all: self.clone(), stamp }
    }

    /// True if there is a version with a stamp in `range`.
    #[must_use]
    pub fn any_in(&self, range: Range<Generation>) -> bool {
        range.start < range.end && self.0.lock().range(range).next().is_some()
    }
}

/// A version that exists.
pub struct HeldStamp {
    all: HeldStamps,
    stamp: Generation,
}

impl Drop for HeldStamp {
    fn drop(&mut self) {
        let mut held = self.all.0.lock();
        if let Some(count) = held.get_mut(&self.stamp) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.stamp);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_between_two_versions_are_dead_for_the_later_one() {
        let mut dead = DeadStamps::default();
        dead.add_between(Generation(12), Generation(21));
        dead.add_between(Generation(21), Generation(22));
        dead.add_between(Generation(30), Generation(32));
        assert_eq!(dead.ranges(), 2);
        let view = View { stamp: Generation(40), dead: Arc::new(dead.clone()) };
        let believed: Vec<u64> =
            (0..50).filter(|stamp| view.believes(Generation(*stamp))).collect();
        let expected: Vec<u64> = (1..=12).chain(21..=30).chain(32..=40).collect();
        assert_eq!(believed, expected);
        let mut bytes = Vec::new();
        dead.encode(&mut bytes);
        let mut decoder = Decoder::new(&bytes, "stamps");
        assert_eq!(DeadStamps::decode(&mut decoder).unwrap(), dead);
        assert!(DeadStamps::decode(&mut Decoder::new(&[2, 5, 1, 6, 0], "stamps")).is_err());
        assert!(DeadStamps::decode(&mut Decoder::new(&[200, 1, 0], "stamps")).is_err());
    }

    #[test]
    fn a_stamp_is_held_while_a_version_has_it() {
        let held = HeldStamps::default();
        let any = |from, to| held.any_in(Generation(from)..Generation(to));
        let (first, second) = (held.hold(Generation(5)), held.hold(Generation(5)));
        assert!(any(5, 6) && !any(6, 100) && !any(0, 5) && !any(9, 3));
        drop(first);
        assert!(any(0, 100));
        drop(second);
        assert!(!any(0, 100));
    }
}
