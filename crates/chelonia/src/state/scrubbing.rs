//! How far scrubbing has come, and what it found.

use crate::base::error::Error;
use crate::base::ids::KeyspaceId;
use crate::base::limits::SCRUB_FINDINGS_MAX;
use crate::engine::OwnedExtent;
use crate::memory::budget::Charge;
use crate::runtime::sync::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;

/// The most locations that are remembered, so that each is reported once per pass.
const REPORTED_MAX: usize = 4096;

/// Statistics and findings of scrubbing since the open.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubStats {
    /// Completed passes over all data.
    pub passes: u64,
    /// Blocks read and checked.
    pub blocks: u64,
    /// Blocks that are damaged or unreadable, each counted once per pass.
    pub damaged_blocks: u64,
    /// Findings with file and offset: the first few of the last pass that had any.
    pub findings: Vec<Error>,
}

/// The progress of scrubbing.
#[derive(Default)]
pub struct Scrub {
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    /// The time of the last tick.
    pub looked: Duration,
    /// The credit of blocks to read, times the nanoseconds of an interval.
    pub paid: u128,
    /// Extents of this leg that are not read yet, the next one last.
    pub waiting: Vec<OwnedExtent>,
    /// The charge of that list.
    pub charge: Option<Charge>,
    /// Blocks read of the next one.
    pub within: u32,
    /// The start of the next leg; at 0 the roots are read first.
    pub next: u64,
    /// After the last leg of a pass: the least number of the keyspaces whose pages are not all
    /// checked, and the key to go on at.
    pub pages: Option<(u64, Vec<u8>)>,
    /// Blocks read beyond the credit.
    pub owed: u64,
    /// The locations that this pass reported.
    pub reported: BTreeSet<Reported>,
    pub stats: ScrubStats,
}

/// A location that is reported once per pass: the walk of every leg meets a block, and the read of
/// the block itself.
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
        let place = match (error.offset(), of) {
            (Some(offset), _) => Reported::Offset(offset),
            (None, Some(keyspace)) => Reported::Structure(keyspace),
            (None, None) => Reported::Unplaced,
        };
        if self.reported.contains(&place) {
            return;
        }
        if self.reported.is_empty() {
            self.stats.findings.clear();
        }
        if self.reported.len() < REPORTED_MAX {
            self.reported.insert(place);
        }
        self.stats.damaged_blocks += 1;
        if self.stats.findings.len() < SCRUB_FINDINGS_MAX {
            self.stats.findings.push(error);
        }
    }
}

impl Scrub {
    /// Statistics and findings.
    pub fn stats(&self) -> ScrubStats {
        self.state.lock().stats.clone()
    }
}
