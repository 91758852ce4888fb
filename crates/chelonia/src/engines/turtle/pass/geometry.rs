//! Sizes that a pass aims at, and how much it may write.

use crate::buffer_tree::codec::LEVEL_MAX;

/// Divisor: a short buffer run holds this part of a leaf.
const SHORT_RUN_DIVISOR: u64 = 8;

/// Minimum size of a short buffer run: its index, filter and last block take whole blocks.
pub(super) const SHORT_RUN_MIN: u64 = 64 << 10;

/// Maximum memory in bytes of the keys of a node that has more pivots than a small one.
pub(super) const NODE_KEY_BYTES: usize = 256 << 10;

/// Maximum number of buffer levels: a read checks one filter per level, at each node on its path.
pub(in crate::engines::turtle) const LEVELS_MAX: usize = 12;

/// Number of levels up to which they are merged where reads pay for it.
pub(in crate::engines::turtle) const LEVELS_READ: usize = 4;

/// Sizes of a tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::engines::turtle) struct Geometry {
    /// Maximum size of a leaf.
    pub leaf: u64,
    /// Maximum pivots of a node.
    pub pivots_max: usize,
    /// Maximum levels of a buffer.
    pub levels_max: usize,
    /// Levels of a buffer up to which reads pay for merging larger ones than the newer ones.
    pub levels_read: usize,
    /// Flush size of pivots above leaves, in percent of the leaf size.
    pub flush_percent: u64,
    /// Share of new keys among the updates, in percent.
    pub new_percent: u64,
    /// How much the pass may write.
    pub pace: Pace,
}

/// How much a pass may write.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::engines::turtle) enum Pace {
    /// Best for the long run.
    #[default]
    Usual,
    /// Minimal: hardly more than the incoming updates, for a full device; nothing is flushed.
    Incoming,
    /// Hardly more than a leaf: the first pivot with enough pending updates is flushed.
    OneLeaf,
}

/// Maximum levels of a buffer while the device is full and few levels are merged: as many as a node
/// can have.
const LEVELS_FULL_DEVICE: usize = LEVEL_MAX as usize + 1;

impl Geometry {
    /// Returns the flush size, in percent of the leaf size, of pivots of a node of this height.
    /// Above height 1 updates are not buffered for long: a flush there writes nothing that would
    /// not be written anyway, and updates buffered once at each height are written once for each.
    pub fn percent_at(&self, height: u8) -> u64 {
        if height == 1 { self.flush_percent } else { self.flush_percent.min(100) }
    }

    /// Returns true if enough updates have existing keys for buffered updates to hide much data.
    pub fn hides(&self) -> bool {
        self.flush_percent < 100
    }

    /// Returns the size to which the flush percentage applies, for a pivot with a child of this
    /// weight. Pending updates must not outgrow the leaf whose entries they hide, however small
    /// that is.
    pub fn flush_basis(&self, height: u8, child: u64) -> u64 {
        if height == 1 && self.hides() {
            child.clamp(self.leaf_small(), self.leaf)
        } else {
            self.leaf
        }
    }

    /// Returns the maximum number of levels that a pass leaves.
    pub fn levels_left(&self) -> usize {
        match self.pace {
            Pace::Usual => self.levels_max,
            Pace::Incoming | Pace::OneLeaf => LEVELS_FULL_DEVICE,
        }
    }

    /// Returns the maximum weight of a new level, including `incoming`, unless there are too many
    /// levels: on a full device at most twice the incoming updates.
    pub fn gathered_max(&self, incoming: u64) -> u64 {
        match self.pace {
            Pace::Usual => u64::MAX,
            Pace::Incoming | Pace::OneLeaf => incoming.saturating_mul(2),
        }
    }

    /// Returns the maximum size of a buffer run. A run stays until the last of its pivots is
    /// flushed, including entries flushed before: where flushes are frequent, it spans few pivots.
    pub fn buffer_run(&self) -> u64 {
        if self.hides() {
            (self.leaf / SHORT_RUN_DIVISOR).max(SHORT_RUN_MIN).min(self.leaf)
        } else {
            self.leaf
        }
    }

    /// Returns the size below which a leaf should be joined with a neighbour.
    pub fn leaf_small(&self) -> u64 {
        self.leaf / 4
    }

    /// Returns the size below which a leaf that is rewritten anyway should be joined with a
    /// neighbour that is, too.
    pub fn leaf_half(&self) -> u64 {
        self.leaf / 2
    }

    /// Returns the maximum size of joined leaves, chosen so that they do not split soon.
    pub fn leaf_joined(&self) -> u64 {
        self.leaf / 4 * 3
    }

    /// Returns the size to which several leaves are cut.
    pub fn leaf_filled(&self) -> u64 {
        self.leaf / 10 * 9
    }

    /// Returns the size to which leaves are cut when no entries will be inserted between.
    pub fn leaf_packed(&self) -> u64 {
        self.leaf / 20 * 19
    }

    /// Returns the size to which leaves of a piece are filled before there is one more. A piece
    /// aims at whole leaves (of [`Geometry::leaf_filled`]), but its weight is an estimate.
    pub fn leaf_brimful(&self) -> u64 {
        self.leaf / 50 * 49
    }

    /// Returns the number of pivots up to which a node should be joined with a neighbour.
    pub fn pivots_small(&self) -> usize {
        self.pivots_max / 4
    }

    /// Returns the maximum number of pivots of joined nodes.
    pub fn pivots_joined(&self) -> usize {
        self.pivots_max / 4 * 3
    }

    /// Returns the number of pivots of each of several nodes when no pivots will be inserted
    /// between.
    pub fn pivots_packed(&self) -> usize {
        (self.pivots_max / 16 * 15).max(self.pivots_max / 2).max(1)
    }
}
