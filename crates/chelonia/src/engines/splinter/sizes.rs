//! Options of a tree, and the sizes that follow from them.

use crate::buffer_tree::overlap::Overlap;
use crate::engine::{FANOUT_DEFAULT, SPACE_PERCENT_DEFAULT, SplinterOptions};
use crate::run::RunOptions;

/// Range of the branch size if it follows from what is stored. The upper end is the paper's.
const BRANCH_AUTO_MIN: u64 = 1 << 20;
const BRANCH_AUTO_MAX: u64 = 24 << 20;

/// Number of branches that a tree has before they reach their maximum size.
const BRANCHES_AUTO: u64 = 64;

/// Number of runs of a branch, if memory allows runs of that size.
const RUNS_OF_BRANCH: u64 = 4;

/// From this `hidden_percent` on a leaf may hold `m` bytes of updates however small its merged
/// branch is; below it, proportionally less.
const HIDDEN_OF_SMALL: u64 = 60;

/// Minimum size of a run.
const RUN_MIN: u64 = 4 << 10;

/// Options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct SplinterConfig {
    /// Maximum number of children of a trunk node.
    pub fanout: usize,
    /// Size of a branch, `m` of the paper, in bytes; 0 derives it from what is stored.
    pub branch_bytes: u64,
    /// Space above which a leaf is merged, in percent of its merged branch, if all updates are of
    /// existing keys.
    pub space_percent: u64,
    /// Options for new runs.
    pub run: RunOptions,
}

impl SplinterConfig {
    /// Derives the options of a tree from the options of a keyspace.
    #[must_use]
    pub fn new(options: SplinterOptions, run: RunOptions) -> Self {
        Self {
            fanout: options.fanout.unwrap_or(FANOUT_DEFAULT) as usize,
            branch_bytes: options.branch_bytes.unwrap_or(0).into(),
            space_percent: options.space_percent.unwrap_or(SPACE_PERCENT_DEFAULT).into(),
            run,
        }
    }

    /// Returns the sizes of a tree of weight `stored` whose runs weigh at most `run_max`.
    pub(super) fn sizes(&self, stored: u64, run_max: u64, overlap: Overlap) -> Sizes {
        let branch = match self.branch_bytes {
            0 => (stored / BRANCHES_AUTO).clamp(BRANCH_AUTO_MIN, BRANCH_AUTO_MAX),
            bytes => bytes,
        };
        Sizes {
            fanout: self.fanout.clamp(2, 16),
            branch,
            run: (branch / RUNS_OF_BRANCH).max(RUN_MIN).min(run_max),
            new_percent: overlap.new_percent(),
            hidden_percent: self.space_percent.saturating_sub(100),
        }
    }
}

/// Sizes of a tree: when it flushes, merges and splits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Maximum number of pivots of a node, `F`.
    pub fanout: usize,
    /// Size of a branch, `m`.
    pub branch: u64,
    /// Maximum size of a run.
    pub run: u64,
    /// Share of new keys among the updates, in percent.
    pub new_percent: u64,
    /// Updates of existing keys that a leaf may hold, in percent of its merged branch: they take
    /// space twice.
    pub hidden_percent: u64,
}

impl Sizes {
    /// Active bytes above which a node flushes, `F * m`; and the size of a leaf [2.4].
    pub fn node_max(&self) -> u64 {
        self.branch.saturating_mul(self.fanout as u64)
    }

    /// Number of levels above which a node flushes, or a leaf is merged: a node refers to at most
    /// `3 F` branches [theorem 1].
    pub fn levels_max(&self) -> usize {
        3 * self.fanout
    }

    /// Number of levels above which the newest ones of a node are merged.
    pub fn levels_gather(&self) -> usize {
        2 * self.fanout
    }

    /// Size to which a merged leaf is split.
    pub fn leaf_split(&self) -> u64 {
        self.node_max() / 2
    }

    /// Size below which a leaf is joined with a neighbour.
    pub fn leaf_small(&self) -> u64 {
        self.node_max() / 16
    }

    /// Pending bytes of a leaf, beside its merged branch of `merged` bytes, above which all of it
    /// is merged. New keys may wait for long, because each merge rewrites the leaf; updates of
    /// existing keys take space until then.
    pub fn pending_max(&self, merged: u64) -> u64 {
        // A small leaf is not worth a merge before it holds a branch.
        let least = self.branch * self.hidden_percent.min(HIDDEN_OF_SMALL) / HIDDEN_OF_SMALL;
        let hidden = (merged / 100 * self.hidden_percent).clamp(least, self.node_max());
        let new = self.new_percent.min(100);
        (self.node_max() / 100 * new + hidden / 100 * (100 - new)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(new_percent: u64) -> Sizes {
        Sizes { fanout: 8, branch: 1 << 20, run: 1 << 18, new_percent, hidden_percent: 60 }
    }

    #[test]
    fn updates_of_existing_keys_wait_for_less_than_new_ones() {
        let merged = 4 << 20;
        let [old, half, new] = [0, 50, 100].map(|share| sizes(share).pending_max(merged));
        assert!(old < half && half < new);
        assert!(new <= sizes(100).node_max() && new > sizes(100).node_max() / 100 * 99);
        assert!(old <= merged / 100 * 60 && old > merged / 2);
        assert!(sizes(0).pending_max(0) <= sizes(0).branch);
    }

    #[test]
    fn a_leaf_of_any_size_holds_its_share() {
        for (hidden_percent, merged) in [(10, 4 << 20), (30, 1 << 20), (200, 8 << 20)] {
            let sizes = Sizes { hidden_percent, ..sizes(0) };
            let most = (merged / 100 * hidden_percent).min(sizes.node_max());
            let pending = sizes.pending_max(merged);
            assert!(pending <= most.max(sizes.branch / 2) && pending >= most / 100 * 99);
        }
    }

    #[test]
    fn branches_grow_with_what_is_stored() {
        let config = SplinterConfig::new(SplinterOptions::new(), RunOptions::default());
        let branch = |stored| config.sizes(stored, 8 << 20, Overlap::default()).branch;
        let all = [0, 1 << 27, 1 << 30, 1 << 40].map(branch);
        assert_eq!(all, [1 << 20, 2 << 20, 16 << 20, 24 << 20]);
    }
}
