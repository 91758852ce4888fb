//! How much of what comes in is in the tree already, and how long a flush may wait.
//!
//! New keys can wait in buffers for long: nothing of the tree becomes old by them, each flush of a
//! leaf writes the leaf anew, and so the fewer there are the less is written. Keys that are there
//! already make what they replace useless: the longer they wait the more space is taken by what
//! nobody can read. So the size at which a pivot is flushed follows from how much of the updates is
//! new, which a sample of them asks the filters of the tree.
//!
//! What waits long costs reads, and these pay for what they need (`read_cost.rs`).

use super::lookup;
use super::{Shared, TurtleVersion};
use crate::base::stream::SortedUpdates;

/// How many updates are asked for.
const SAMPLES: usize = 128;

/// The flush size in percent of the leaf size if all keys are new: a leaf is then written a
/// quarter more than what comes in, and becomes five.
pub(super) const FLUSH_PERCENT_NEW: u64 = 400;

/// The same if all keys are there already, in percent of the leaf that is there: on average a sixth
/// of the leaves is useless.
const FLUSH_PERCENT_KNOWN: u64 = 32;

/// The share of known keys in what came in lately: in about half as much as the tree holds, for
/// that is what waits at most, and what waits came with all of it. So a tree that was filled and is
/// now updated is not flushed everywhere at once.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Overlap {
    /// In thousandths; `None` before anything came in.
    known: Option<u64>,
}

/// The whole of [`Overlap`].
const WHOLE: u64 = 1000;

impl Overlap {
    /// After `updates` come into the tree of `version`.
    pub fn after(
        self,
        shared: &Shared,
        version: &TurtleVersion,
        updates: &dyn SortedUpdates,
    ) -> Self {
        let root = &version.root;
        if root.reference().is_none() {
            // What is new to an empty tree says nothing of what comes next.
            return self;
        }
        let step = (updates.len() / SAMPLES).max(1);
        let (mut asked, mut known) = (0, 0);
        for rank in (step / 2..updates.len()).step_by(step) {
            asked += 1;
            // What cannot be read is told to who needs it.
            known += u64::from(lookup::may_have(shared, root, updates.key(rank)).unwrap_or(true));
        }
        if asked == 0 {
            return self;
        }
        let incoming = updates.bytes_before(updates.len());
        let held = version.summary.leaf.bytes + version.summary.buffered.bytes;
        self.mixed(known * WHOLE / asked, incoming, held)
    }

    /// After `incoming` bytes, of which a share of `now` is known, came into a tree that holds
    /// `held` bytes.
    fn mixed(self, now: u64, incoming: u64, held: u64) -> Self {
        let Some(before) = self.known else { return Self { known: Some(now) } };
        let part = (2 * WHOLE * incoming / held.max(1)).clamp(WHOLE / 50, WHOLE / 2);
        Self { known: Some((before * (WHOLE - part) + now * part) / WHOLE) }
    }

    /// How many bytes are hidden in the tree, if `buffered` wait there: as many as wait for keys
    /// that are there already. None before anything came in, for then nothing is known of it.
    pub fn hidden(self, buffered: u64) -> u64 {
        buffered / WHOLE * self.known.unwrap_or(0)
    }

    /// The size at which a pivot is flushed, in percent of the leaf size.
    pub fn flush_percent(self) -> u64 {
        let known = self.known.unwrap_or(WHOLE);
        (FLUSH_PERCENT_NEW * (WHOLE - known) + FLUSH_PERCENT_KNOWN * known) / WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_may_wait_and_known_ones_may_not() {
        let flush = |known| Overlap { known }.flush_percent();
        assert_eq!(flush(None), FLUSH_PERCENT_KNOWN);
        assert_eq!(flush(Some(WHOLE)), FLUSH_PERCENT_KNOWN);
        assert_eq!(flush(Some(0)), FLUSH_PERCENT_NEW);
        assert_eq!(flush(Some(WHOLE / 2)), (FLUSH_PERCENT_NEW + FLUSH_PERCENT_KNOWN) / 2);
    }

    #[test]
    fn what_waits_for_known_keys_hides_as_much() {
        let hidden = |known| Overlap { known }.hidden(10 * WHOLE);
        assert_eq!([None, Some(0), Some(300), Some(WHOLE)].map(hidden), [0, 0, 3000, 10_000]);
    }

    #[test]
    fn the_share_moves_by_as_much_as_comes_in() {
        let filled = Overlap { known: Some(0) };
        let known = |after: Overlap| after.known.unwrap();
        assert_eq!(known(Overlap::default().mixed(300, 1, 1000)), 300);
        assert_eq!(known(filled.mixed(WHOLE, 50, 1000)), WHOLE / 10);
        assert_eq!(known(filled.mixed(WHOLE, 0, 1000)), WHOLE / 50);
        assert_eq!(known(filled.mixed(WHOLE, 5000, 1000)), WHOLE / 2);
        // All of it overwritten once, in parts.
        let overwritten = (0..20).fold(filled, |overlap, _| overlap.mixed(WHOLE, 50, 1000));
        assert!((800..950).contains(&known(overwritten)));
    }
}
