//! How far scrubbing has come, and what it found.

use crate::base::error::Error;
use crate::base::ids::KeyspaceId;
use crate::base::limits::SCRUB_FINDINGS_MAX;
use crate::engine::OwnedExtent;
use crate::memory::budget::Charge;
use crate::runtime::sync::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;

/// So many places are remembered, to be told once a tour.
const REPORTED_MAX: usize = 4096;

/// What scrubbing has read and found since the database was opened.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubStats {
    /// Times that everything was read.
    pub passes: u64,
    /// Blocks read and checked.
    pub blocks: u64,
    /// Blocks that are damaged or could not be read, each counted once a tour.
    pub damaged_blocks: u64,
    /// What was found, each with file and offset: the first few of the last tour that found any.
    pub findings: Vec<Error>,
}

/// How far scrubbing has come.
#[derive(Default)]
pub struct Scrub {
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    /// The clock at the last look.
    pub looked: Duration,
    /// Blocks that time has paid for, times the nanoseconds of an interval.
    pub paid: u128,
    /// Extents of this leg that are still to be read, the next one last.
    pub waiting: Vec<OwnedExtent>,
    /// Counts that list.
    pub charge: Option<Charge>,
    /// Blocks read of the next one.
    pub within: u32,
    /// Where the next leg begins; the roots come first if that is 0.
    pub next: u64,
    /// What this tour has found.
    pub reported: BTreeSet<Reported>,
    pub stats: ScrubStats,
}

/// What is told once a tour: a block is come to by the walk of every leg, and by its own turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reported {
    /// Something at this offset of the data file.
    Offset(u64),
    /// Something in the structure of a keyspace, without a place.
    Structure(KeyspaceId),
    /// Something else without a place.
    Unplaced,
}

impl State {
    /// Notes a finding in the structure of a keyspace, or in blocks.
    pub fn find(&mut self, of: Option<KeyspaceId>, error: Error) {
        let told = match (error.offset(), of) {
            (Some(offset), _) => Reported::Offset(offset),
            (None, Some(keyspace)) => Reported::Structure(keyspace),
            (None, None) => Reported::Unplaced,
        };
        if self.reported.contains(&told) {
            return;
        }
        if self.reported.is_empty() {
            self.stats.findings.clear();
        }
        if self.reported.len() < REPORTED_MAX {
            self.reported.insert(told);
        }
        self.stats.damaged_blocks += 1;
        if self.stats.findings.len() < SCRUB_FINDINGS_MAX {
            self.stats.findings.push(error);
        }
    }
}

impl Scrub {
    /// What was read and found.
    pub fn stats(&self) -> ScrubStats {
        self.state.lock().stats.clone()
    }
}
