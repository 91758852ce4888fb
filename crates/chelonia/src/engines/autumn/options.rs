//! The measures of a tree.

use super::choose::Measure;
use super::garnering::{Garnering, Sizing};
use super::plan::LEVEL0_TRIGGER;
use crate::engine::{AutumnOptions, LevelOptions};
use crate::run::RunOptions;
use crate::runtime::workers::Workers;

/// Tables that follow the checkpoint distance are at least and at most this large.
pub(super) const TABLE_AUTO_MIN: u64 = 256 << 10;
pub(super) const TABLE_AUTO_MAX: u64 = 2 << 20;

/// So many tables come with one absorb, if they follow the checkpoint distance.
const TABLES_PER_ABSORB: u64 = 32;

/// A job of a unit merges about so many tables, and no more bytes than this.
const JOB_TABLES: u64 = 16;
const JOB_BYTES_MAX: u64 = 32 << 20;

/// The same while there is hardly any room for what is written.
const JOB_TABLES_LEAST: u64 = 4;

/// The measures of a tree.
#[derive(Clone, Copy, Debug)]
pub struct AutumnConfig {
    /// About the most bytes of a table; 0 lets it follow the checkpoint distance.
    pub table_bytes: u64,
    /// Bytes of updates that come with one absorb, about.
    pub checkpoint_distance: u64,
    /// The shape of the levels.
    pub levels: LevelOptions,
    /// How new runs are made; the bits per key are those of all filters together.
    pub run: RunOptions,
}

impl AutumnConfig {
    /// The measures for the options of a keyspace.
    #[must_use]
    pub fn new(options: AutumnOptions, run: RunOptions, checkpoint_distance: u64) -> Self {
        Self {
            table_bytes: options.table_bytes.unwrap_or(0).into(),
            checkpoint_distance,
            levels: options.levels.unwrap_or_default(),
            run,
        }
    }

    /// The policy that follows from them.
    pub(super) fn policy(&self) -> Garnering {
        let incoming = self.checkpoint_distance.saturating_mul(LEVEL0_TRIGGER as u64);
        // However little comes in at one time: levels of less than a table would be many.
        let base = incoming.max(self.table_bytes());
        let sizing = if self.levels.dynamic_sizes { Sizing::Relative } else { Sizing::Absolute };
        Garnering::new(self.levels.size_ratio, self.levels.scaling_percent, base, sizing)
    }

    /// The size of most tables, in bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        let power = |bytes: u64| 1_u64 << bytes.max(1).ilog2();
        match self.table_bytes {
            0 => power(self.checkpoint_distance / TABLES_PER_ABSORB)
                .clamp(TABLE_AUTO_MIN, TABLE_AUTO_MAX),
            bytes => bytes,
        }
    }

    /// How much `workers` merge in one unit.
    pub(super) fn measure(&self, workers: Workers) -> Measure {
        let jobs = workers.threads();
        let job = JOB_BYTES_MAX.min(JOB_TABLES * self.table_bytes());
        Measure { unit_bytes: job * jobs as u64, jobs, is_least: false }
    }

    /// The same while there is hardly any room.
    pub(super) fn measure_least(&self) -> Measure {
        Measure { unit_bytes: JOB_TABLES_LEAST * self.table_bytes(), jobs: 1, is_least: true }
    }

    /// The size of the tables of level `level` (0: level 0) of `levels`: a table there meets about
    /// as many below as the ratio of the two levels says, and they must fit a job.
    pub(super) fn table_bytes_of(&self, level: usize, levels: usize) -> u64 {
        let usual = self.table_bytes();
        if level == 0 || level >= levels {
            return usual;
        }
        let policy = self.policy();
        let ratio = policy.capacity(level + 1, levels) / policy.capacity(level, levels).max(1);
        usual.min((JOB_BYTES_MAX / (1 + ratio)).max(TABLE_AUTO_MIN))
    }
}
