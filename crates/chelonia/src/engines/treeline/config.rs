//! Options of a treeline tree, and the sizes that follow from them.

use super::node::NODE_GROUPS_MAX;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{
    EPSILON_PERCENT_DEFAULT, FILL_PERCENT_DEFAULT, FORECAST_ROUNDS_DEFAULT, GROUP_PAGES_DEFAULT,
    TreelineOptions,
};
use crate::pages::SLOTS_MAX;
use crate::run::RunOptions;
use crate::storage::block::BLOCK_PAYLOAD_BYTES;

/// Blocks of the pages of a group: what one work slab holds.
const GROUP_BLOCKS_MAX: usize = 64;

/// A group has one spare slot for this many pages, at least one. More of them let more pages of a
/// group be updated between two checkpoints without rewriting all, and take space.
const PAGES_PER_SPARE: usize = 4;

/// See [`TreelineConfig::run_bytes`].
const RUN_BYTES: u64 = 4 << 20;

/// See [`TreelineConfig::sweep_bytes`].
const SWEEP_BYTES: u64 = 32 << 20;

/// Least number of groups of a full node; see [`TreelineConfig::groups_of_node`].
const NODE_GROUPS_MIN: usize = 4;

/// A run under construction takes at most this part of the budget, several times its size.
const MEMORY_PER_RUN: u64 = 64;

/// A sweep holds the nodes that it writes until it is installed.
const MEMORY_PER_SWEEP: u64 = 8;

/// Options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreelineConfig {
    /// Maximum number of pages of a new group.
    pub group_pages: usize,
    /// Maximum number of groups of a new node, with distances from about a mebibyte on.
    pub node_groups: usize,
    /// Part of a new page that is filled, in percent.
    pub fill_percent: usize,
    /// Error of linear models, in percent of a page; 0 for bounds as keys.
    pub epsilon_percent: usize,
    /// Rounds of sweeps for which new pages have space.
    pub forecast_rounds: u32,
    /// Approximate bytes of updates in one absorb.
    pub checkpoint_distance: u64,
    /// Size of a staged run, if memory allows runs of that size.
    pub run_bytes: u64,
    /// Bytes of staged updates that one job sweeps into pages, if memory allows and the distance is
    /// not less.
    pub sweep_bytes: u64,
    /// Options of staged runs.
    pub run: RunOptions,
}

impl TreelineConfig {
    /// Derives the options of a tree from the options of a keyspace.
    #[must_use]
    pub fn new(options: TreelineOptions, run: RunOptions, checkpoint_distance: u64) -> Self {
        Self {
            group_pages: options.group_pages.unwrap_or(GROUP_PAGES_DEFAULT) as usize,
            node_groups: NODE_GROUPS_MAX,
            fill_percent: options.fill_percent.unwrap_or(FILL_PERCENT_DEFAULT) as usize,
            epsilon_percent: options.epsilon_percent.unwrap_or(EPSILON_PERCENT_DEFAULT) as usize,
            forecast_rounds: options.forecast_rounds.unwrap_or(FORECAST_ROUNDS_DEFAULT),
            checkpoint_distance,
            run_bytes: RUN_BYTES,
            sweep_bytes: SWEEP_BYTES,
            run,
        }
    }

    /// Maximum number of pages of this many blocks in a new group.
    pub(super) fn pages_of(&self, page_blocks: usize) -> usize {
        self.group_pages.min(GROUP_BLOCKS_MAX / page_blocks.max(1)).max(1)
    }

    /// Number of slots of a new group of `pages` pages.
    pub(super) fn slots_of(pages: usize) -> usize {
        (pages + pages.div_ceil(PAGES_PER_SPARE)).min(SLOTS_MAX)
    }

    /// Bytes of entries in a new page of this many blocks.
    pub(super) fn fill_bytes(&self, page_blocks: usize) -> usize {
        page_blocks * BLOCK_PAYLOAD_BYTES * self.fill_percent / 100
    }

    /// Bytes of staged updates that one job sweeps: a job takes no longer than the flushes beside
    /// it.
    pub(super) fn job_bytes(&self) -> u64 {
        self.sweep_bytes.min(self.checkpoint_distance)
    }

    /// Maximum number of groups of a new node: a job sweeps whole nodes, so that small jobs need
    /// small ones.
    pub(super) fn groups_of_node(&self) -> usize {
        let groups = 4 * self.job_bytes() / self.group_bytes_max();
        usize::try_from(groups)
            .map_or(self.node_groups, |groups| groups.max(NODE_GROUPS_MIN).min(self.node_groups))
    }

    fn group_bytes_max(&self) -> u64 {
        Self::slots_of(self.group_pages) as u64 * BLOCK_BYTES_U64
    }

    /// About the most bytes of the groups of a node.
    pub(super) fn node_bytes_max(&self) -> u64 {
        self.node_groups as u64 * self.group_bytes_max()
    }

    /// The options with sizes that fit `memory` bytes of budget.
    pub(super) fn within(self, memory: u64) -> Self {
        let run_bytes = self.run_bytes.min(memory / MEMORY_PER_RUN);
        let sweep_bytes = self.sweep_bytes.min(memory / MEMORY_PER_SWEEP);
        Self { run_bytes, sweep_bytes, ..self }
    }
}
