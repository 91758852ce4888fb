//! Share of updates to existing keys, and the flush size derived from it.
//!
//! Updates of new keys can be buffered for long: they make no data obsolete, and each flush of a
//! leaf rewrites the leaf, so fewer flushes mean fewer writes. Updates of existing keys make older
//! entries obsolete: the longer they are buffered, the more space these take. So the flush size of
//! a pivot derives from the share of new keys among the updates, which is estimated by checking a
//! sample of them against the filters of the tree.
//!
//! Long buffering makes reads slower; read-triggered flushes limit that (`read_cost.rs`).

use crate::base::stream::SortedUpdates;
use crate::buffer_tree::Shared;
use crate::buffer_tree::read::lookup;
use crate::buffer_tree::version::TreeVersion;

/// Flush size in percent of the leaf size if all keys are new: each flush then writes a quarter
/// more than its updates, and the leaf becomes five.
pub const FLUSH_PERCENT_MAX: u64 = 400;

/// Flush size in percent of the existing leaf if all keys exist: on average a sixth of the leaf
/// data is obsolete.
pub const FLUSH_PERCENT_MIN: u64 = 32;

/// Number of updates sampled.
const SAMPLES: usize = 128;

/// Moving share of existing keys among recent updates, over about half as many bytes as the tree
/// holds: at most that much is buffered, and buffered updates come from that whole period. So a
/// tree that was filled and is now updated is not flushed everywhere at once.
#[derive(Clone, Copy, Default, Debug)]
pub struct Overlap {
    /// In thousandths; `None` before the first updates.
    known: Option<u64>,
}

/// The value of [`Overlap`] for a share of 100 percent.
const WHOLE: u64 = 1000;

impl Overlap {
    /// Returns the share after `updates` are absorbed into the tree of `version`.
    pub fn after(
        self,
        shared: &Shared,
        version: &TreeVersion,
        updates: &dyn SortedUpdates,
    ) -> Self {
        let root = &version.root;
        if root.reference().is_none() {
            // In an empty tree all keys are new, which predicts nothing.
            return self;
        }
        let step = (updates.len() / SAMPLES).max(1);
        let (mut asked, mut known) = (0, 0);
        for rank in (step / 2..updates.len()).step_by(step) {
            asked += 1;
            // An unreadable filter counts as "maybe"; the error is reported to reads that need it.
            known += u64::from(lookup::may_have(shared, root, updates.key(rank)).unwrap_or(true));
        }
        if asked == 0 {
            return self;
        }
        // By entries: short updates may replace long values.
        let incoming = updates.len() as u64;
        let held = version.summary.leaf.entries + version.summary.buffered.entries;
        self.mixed(known * WHOLE / asked, incoming, held)
    }

    /// Returns the share after `incoming` updates, of which a share of `now` has existing keys,
    /// were absorbed into a tree of `held` entries.
    fn mixed(self, now: u64, incoming: u64, held: u64) -> Self {
        let Some(before) = self.known else { return Self { known: Some(now) } };
        assert!(before.max(now) <= WHOLE, "a share exceeds the whole");
        let part = (2 * WHOLE * incoming / held.max(1)).clamp(WHOLE / 50, WHOLE / 2);
        Self { known: Some((before * (WHOLE - part) + now * part) / WHOLE) }
    }

    /// Estimates the hidden bytes of a tree with `buffered` bytes of updates: as many as are
    /// buffered for existing keys. Zero before the first updates, when the share is unknown.
    pub fn hidden(self, buffered: u64) -> u64 {
        buffered / WHOLE * self.known.unwrap_or(0)
    }

    /// Returns the share of updates with new keys, in percent.
    pub fn new_percent(self) -> u64 {
        (WHOLE - self.known.unwrap_or(0)) * 100 / WHOLE
    }

    /// Returns the flush size of a pivot, in percent of the leaf size.
    pub fn flush_percent(self) -> u64 {
        let known = self.known.unwrap_or(WHOLE);
        (FLUSH_PERCENT_MAX * (WHOLE - known) + FLUSH_PERCENT_MIN * known) / WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_may_wait_and_known_ones_may_not() {
        let flush = |known| Overlap { known }.flush_percent();
        assert_eq!(flush(None), FLUSH_PERCENT_MIN);
        assert_eq!(flush(Some(WHOLE)), FLUSH_PERCENT_MIN);
        assert_eq!(flush(Some(0)), FLUSH_PERCENT_MAX);
        assert_eq!(flush(Some(WHOLE / 2)), (FLUSH_PERCENT_MAX + FLUSH_PERCENT_MIN) / 2);
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
        // All of it is overwritten once, in parts.
        let overwritten = (0..20).fold(filled, |overlap, _| overlap.mixed(WHOLE, 50, 1000));
        assert!((800..950).contains(&known(overwritten)));
    }
}
