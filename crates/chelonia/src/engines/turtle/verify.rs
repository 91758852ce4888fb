//! The check of a whole tree: every block, every count, every order that the other files promise.
//!
//! Nodes are read from the data file anew, so that what is on disk is checked and not what is in
//! memory. A finding that does not hide what lies below does not stop the walk.

use super::TurtleVersion;
use super::counts::{BlockSet, large_of};
use super::node::{Child, Node, Part, Pivot, Summary, Totals};
use super::residence::NodeSlot;
use super::source::Stretch;
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::base::sync::{Arc, Ordering};
use crate::engine::VerifyReport;
use crate::run::{Run, RunCursor, RunReport, RunStream};
use crate::storage::block::DATA_FILE;
use std::collections::BTreeMap;

/// Verifies `version`.
pub(super) fn verify(version: &TurtleVersion, report: &mut dyn VerifyReport) -> Result<()> {
    let mut check =
        Check { version, report, runs: BTreeMap::new(), large: BlockSet::default(), offset: 0 };
    let seen = check.node(&version.root, &[], None)?;
    if let Some(seen) = seen
        && seen != version.summary
    {
        check.finding("the root blob does not count what is in the tree");
    }
    let unmarked = check.runs.values().filter(|(count, shared)| *count > 1 && !shared).count();
    if unmarked > 0 {
        check.finding("a run is referred to by several nodes and not marked as shared");
    }
    Ok(())
}

struct Check<'a> {
    version: &'a TurtleVersion,
    report: &'a mut dyn VerifyReport,
    /// Runs seen, by first block: how many nodes refer to them, and if all mark them as shared.
    runs: BTreeMap<BlockNo, (u32, bool)>,
    large: BlockSet,
    /// Of the node that is being checked.
    offset: u64,
}

impl Check<'_> {
    fn finding(&mut self, what: &str) {
        self.report.finding(Error::corrupt(what).at(DATA_FILE, self.offset));
    }

    /// Checks a node and everything below; gives what it found there unless it could not be read.
    fn node(
        &mut self,
        slot: &Arc<NodeSlot>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<Summary>> {
        let residence = &self.version.shared.residence;
        let node = match slot.reference() {
            None => Node::empty(),
            Some(place) => match residence.read(place, slot.height()) {
                Ok(node) => {
                    self.report.blocks(u64::from(place.extent.blocks));
                    self.offset = place.extent.offset();
                    node
                }
                Err(error) => {
                    self.report.finding(error);
                    return Ok(None);
                }
            },
        };
        if *node.pivots[0].key != *lower {
            self.finding("a node does not begin where its parent says");
        }
        if upper.is_some_and(|upper| node.pivots.iter().any(|pivot| *pivot.key >= *upper)) {
            self.finding("a node has a pivot beyond its range");
        }
        self.segments(&node)?;
        let offset = self.offset;
        for (index, pivot) in node.pivots.iter().enumerate() {
            let stretch = Stretch { lower: &pivot.key, upper: node.upper_of(index, upper) };
            self.parts(pivot, stretch)?;
            match &pivot.child {
                Child::None => {}
                Child::Leaf(run) => self.leaf(run, stretch)?,
                Child::Node(child, summary) => {
                    let seen = self.node(child, stretch.lower, stretch.upper)?;
                    self.offset = offset;
                    if seen.is_some_and(|seen| seen != *summary) {
                        self.finding("a node does not count what is in its child");
                    }
                }
            }
        }
        Ok(Some(node.summary()))
    }

    /// Checks the runs of a node's buffer.
    fn segments(&mut self, node: &Node) -> Result<()> {
        for segment in node.segments() {
            let shared = segment.shared.load(Ordering::Relaxed);
            self.run(&segment.run, shared)?;
        }
        Ok(())
    }

    /// Checks a run the first time it is met.
    fn run(&mut self, run: &Arc<Run>, shared: bool) -> Result<()> {
        let start = run.reference().extent.start;
        let (count, all_shared) = self.runs.entry(start).or_insert((0, true));
        *count += 1;
        *all_shared &= shared;
        if *count > 1 {
            return Ok(());
        }
        run.verify(&mut Relay(self.report))?;
        let listed = match large_of(run) {
            Ok(listed) => listed,
            Err(error) => {
                self.report.finding(error);
                return Ok(());
            }
        };
        for large in listed.iter().filter(|large| self.large.insert(large.extent.start)) {
            match self.version.shared.residence.storage().verify_large(large) {
                Ok(blocks) => self.report.blocks(blocks),
                Err(error) => self.report.finding(error),
            }
        }
        Ok(())
    }

    fn leaf(&mut self, run: &Arc<Run>, stretch: Stretch<'_>) -> Result<()> {
        self.run(run, false)?;
        if run.reference().tombstones > 0 {
            self.finding("a leaf holds tombstones");
        }
        for direction in [Direction::Ascending, Direction::Descending] {
            let edge = match RunCursor::new(run, KeyRange::all(), direction) {
                Ok(edge) => edge,
                Err(error) => {
                    self.report.finding(error);
                    return Ok(());
                }
            };
            let inside =
                |key: &[u8]| key >= stretch.lower && stretch.upper.is_none_or(|upper| key < upper);
            if !edge.key().is_some_and(inside) {
                self.finding("a leaf is empty or has keys beyond its pivot's range");
            }
        }
        Ok(())
    }

    /// Checks what waits for a pivot against what it says of it.
    fn parts(&mut self, pivot: &Pivot, stretch: Stretch<'_>) -> Result<()> {
        let mut before: Option<(u8, Vec<u8>)> = None;
        for part in &pivot.parts {
            let edges = match live(part, stretch) {
                Ok((totals, edges)) if totals == part.totals => edges,
                Ok(_) => {
                    self.finding("a pivot does not count what waits for it");
                    continue;
                }
                Err(error) => {
                    self.report.finding(error);
                    continue;
                }
            };
            let Some((first, last)) = edges else { continue };
            if *part.segment.first > *first {
                self.finding("a segment has keys before its first one");
            }
            let overlaps = before.is_some_and(|(level, end)| level == part.level && end >= first);
            if overlaps {
                self.finding("segments of one level overlap");
            }
            before = Some((part.level, last));
        }
        Ok(())
    }
}

/// A first and a last key.
type Edges = (Vec<u8>, Vec<u8>);

/// What a part has in its pivot's range: how much, and the first and last key.
fn live(part: &Part, stretch: Stretch<'_>) -> Result<(Totals, Option<Edges>)> {
    let mut stream = RunStream::new(&part.segment.run, stretch.to_range())?;
    let mut totals = Totals::default();
    let mut first: Option<Vec<u8>> = None;
    let mut last = Vec::new();
    while let Some(key) = stream.key() {
        totals.add_entry(key, &stream.update());
        if first.is_none() {
            first = Some(key.to_vec());
        }
        last.clear();
        last.extend_from_slice(key);
        stream.advance()?;
    }
    Ok((totals, first.map(|first| (first, last))))
}

/// Hands what a run reports on to the engine's report.
struct Relay<'a>(&'a mut dyn VerifyReport);

impl RunReport for Relay<'_> {
    fn blocks(&mut self, count: u64) {
        self.0.blocks(count);
    }

    fn entries(&mut self, count: u64) {
        self.0.entries(count);
    }

    fn finding(&mut self, error: Error) {
        self.0.finding(error);
    }
}
