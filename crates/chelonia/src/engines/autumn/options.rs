//! Options of a tree, and the sizes derived from them.

use crate::engine::{AutumnOptions, LevelOptions};
use crate::engines::autumn::merge::choose::Measure;
use crate::engines::autumn::merge::garnering::{Garnering, Sizing};
use crate::engines::autumn::merge::plan::LEVEL0_TRIGGER;
use crate::run::RunOptions;
use crate::runtime::workers::Workers;

/// Minimum and maximum size of tables sized by the checkpoint distance.
pub(super) const TABLE_AUTO_MIN: u64 = 256 << 10;
pub(super) const TABLE_AUTO_MAX: u64 = 2 << 20;

/// Number of tables per absorb, if their size follows the checkpoint distance.
const TABLES_PER_ABSORB: u64 = 32;

/// Approximate number of tables, and maximum bytes, merged by one piece of a unit.
const PIECE_TABLES: u64 = 16;
const PIECE_BYTES_MAX: u64 = 32 << 20;

/// Maximum number of jobs of a unit, and of tables that are written at the same time. A unit grows
/// with its jobs, and so do the memory for its sources, and the time that other work of the
/// keyspace waits for it: more processors than this make it no larger.
pub(super) const JOBS_MAX: usize = 4;

/// Number of tables merged by one unit on a nearly full device.
const PIECE_TABLES_LEAST: u64 = 4;

/// Options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct AutumnConfig {
    /// Approximate maximum bytes of a table; 0 derives it from the checkpoint distance.
    pub table_bytes: u64,
    /// Approximate bytes of updates in one absorb.
    pub checkpoint_distance: u64,
    /// The shape of the levels.
    pub levels: LevelOptions,
    /// Options for new runs; the bits per key are the average over all filters.
    pub run: RunOptions,
}

impl AutumnConfig {
    /// Derives the options of a tree from the options of a keyspace.
    #[must_use]
    pub fn new(options: AutumnOptions, run: RunOptions, checkpoint_distance: u64) -> Self {
        Self {
            table_bytes: options.table_bytes.unwrap_or(0).into(),
            checkpoint_distance,
            levels: options.levels.unwrap_or_default(),
            run,
        }
    }

    /// The level policy derived from these options.
    pub(super) fn policy(&self) -> Garnering {
        let incoming = self.checkpoint_distance.saturating_mul(LEVEL0_TRIGGER as u64);
        // The base is at least one table: otherwise small absorbs would make many levels.
        let base = incoming.max(self.table_bytes());
        let sizing = if self.levels.dynamic_sizes { Sizing::Relative } else { Sizing::Absolute };
        Garnering::new(self.levels.size_ratio, self.levels.scaling_percent, base, sizing)
    }

    /// Size of most tables, in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        let power = |bytes: u64| 1_u64 << bytes.max(1).ilog2();
        match self.table_bytes {
            0 => power(self.checkpoint_distance / TABLES_PER_ABSORB)
                .clamp(TABLE_AUTO_MIN, TABLE_AUTO_MAX),
            bytes => bytes,
        }
    }

    /// Size of one merge unit for `workers`.
    pub(super) fn measure(&self, workers: Workers) -> Measure {
        let pieces = workers.threads();
        let piece = PIECE_BYTES_MAX.min(PIECE_TABLES * self.table_bytes());
        Measure { unit_bytes: piece * pieces as u64, pieces, is_least: false }
    }

    /// Size of one merge unit on a nearly full device.
    pub(super) fn measure_least(&self) -> Measure {
        Measure { unit_bytes: PIECE_TABLES_LEAST * self.table_bytes(), pieces: 1, is_least: true }
    }

    /// Size of tables in level `level` (0: level 0) of `levels`: a table overlaps about as many
    /// tables below as the size ratio of the two levels, and these must fit one piece.
    pub(super) fn table_bytes_of(&self, level: usize, levels: usize) -> u64 {
        let usual = self.table_bytes();
        if level == 0 || level >= levels {
            return usual;
        }
        let policy = self.policy();
        let ratio = policy.capacity(level + 1, levels) / policy.capacity(level, levels).max(1);
        usual.min((PIECE_BYTES_MAX / (1 + ratio)).max(TABLE_AUTO_MIN))
    }
}
