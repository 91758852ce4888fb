//! Verification of a tree: checks every block, count and order that the other modules guarantee.
//!
//! Nodes are read from the data file again, so that the check covers the disk and not memory. The
//! walk continues after a finding unless it hides the structure below. Each damaged block is
//! reported once: the description of a run in a pivot is compared with the run only if the run is
//! complete.
//!
//! Memory is bounded (limits: `counts.rs`). Remembered are runs marked as shared, to be read once,
//! and large values; forgetting some of these is harmless and only reads them twice. A run of
//! several nodes that is not marked as shared is detected where these are neighbours.

use crate::base::check::{CheckReport, Relay};
use crate::base::error::{Error, Result};
use crate::base::ids::BlockNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::SortedStream;
use crate::buffer_tree::counts::{BlockSet, large_of};
use crate::buffer_tree::node::{Child, Node, NodeSlot, Part, Pivot, Summary};
use crate::buffer_tree::span::KeySpan;
use crate::buffer_tree::version::TreeVersion;
use crate::run::{Run, RunCursor, RunStream, Totals};
use crate::runtime::sync::{Arc, Ordering};
use crate::storage::block::DATA_FILE;
use crate::structure::KeyView;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum chunks of a [`BlockSet`] for remembered large values: half a mebibyte.
const LARGE_CHUNKS_MAX: usize = 1024;

/// Verifies `version`.
pub fn verify(version: &TreeVersion, report: &mut dyn CheckReport) -> Result<()> {
    let mut check = Check {
        version,
        report,
        shared: BTreeMap::new(),
        neighbours: BTreeMap::new(),
        large: BlockSet::default(),
        large_reported: BTreeSet::new(),
        offset: 0,
    };
    let seen = check.node(&version.root, KeyView::LEAST, None)?;
    if let Some(seen) = seen
        && seen != version.summary
    {
        check.finding("the totals in the root blob differ from the tree");
    }
    Ok(())
}

struct Check<'a> {
    version: &'a TreeVersion,
    report: &'a mut dyn CheckReport,
    /// Shared runs seen, by first block, and whether they are complete.
    shared: BTreeMap<BlockNo, bool>,
    /// By height, the segments of the node checked last, and whether it marks them as shared.
    neighbours: BTreeMap<u8, BTreeMap<BlockNo, bool>>,
    /// Large values seen recently.
    large: BlockSet,
    /// Damaged large values already reported.
    large_reported: BTreeSet<BlockNo>,
    /// Offset of the node that is being checked.
    offset: u64,
}

impl Check<'_> {
    fn finding(&mut self, what: &str) {
        self.report.finding(Error::corrupt(what).at(DATA_FILE, self.offset));
    }

    /// Checks a node and everything below; returns its totals unless it could not be read.
    fn node(
        &mut self,
        slot: &Arc<NodeSlot>,
        lower: KeyView<'_>,
        upper: Option<KeyView<'_>>,
    ) -> Result<Option<Summary>> {
        let node_cache = &self.version.shared.node_cache;
        let node = match slot.reference() {
            None => Node::empty(),
            Some(place) => match node_cache.read(place, slot.about()) {
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
        if node.pivots[0].key.view() != lower {
            self.finding("the first key of a node differs from its parent");
        }
        if upper.is_some_and(|upper| node.pivots.iter().any(|pivot| pivot.key.view() >= upper)) {
            self.finding("a node has a pivot outside of its range");
        }
        let whole = self.segments(&node)?;
        let offset = self.offset;
        for (index, pivot) in node.pivots.iter().enumerate() {
            let span = KeySpan { lower: pivot.key.view(), upper: node.upper_of(index, upper) };
            self.parts(pivot, span, &whole);
            match &pivot.child {
                Child::None => {}
                Child::Leaf(run) => self.leaf(run, span)?,
                Child::Node(child, summary) => {
                    let seen = self.node(child, span.lower, span.upper)?;
                    self.offset = offset;
                    if seen.is_some_and(|seen| seen != *summary) {
                        self.finding("the totals of a child differ from its parent");
                    }
                }
            }
        }
        Ok(Some(node.summary()))
    }

    /// Checks the runs of a node's buffer; returns those that are complete.
    fn segments(&mut self, node: &Node) -> Result<BTreeSet<BlockNo>> {
        let (mut whole, mut marks) = (BTreeSet::new(), BTreeMap::new());
        let before = self.neighbours.remove(&node.height).unwrap_or_default();
        for segment in node.segments() {
            let start = segment.run.reference().extent.start;
            let shared = segment.shared.load(Ordering::Relaxed);
            let is_complete = match self.shared.get(&start) {
                Some(is_complete) if shared => *is_complete,
                _ => self.run(&segment.run)?,
            };
            if shared {
                self.shared.insert(start, is_complete);
            }
            marks.insert(start, shared);
            if is_complete {
                whole.insert(start);
            }
            if before.get(&start).is_some_and(|marked| !(*marked && shared)) {
                self.finding("several nodes refer to a run that is not marked as shared");
            }
        }
        self.neighbours.insert(node.height, marks);
        Ok(whole)
    }

    /// Checks a run and the large values that it refers to; returns true if the run is complete.
    fn run(&mut self, run: &Arc<Run>) -> Result<bool> {
        let mut relay = Relay::to(&mut *self.report);
        run.verify(&mut relay)?;
        let (large, listed) = large_of(run);
        // An unreadable block has already been reported.
        if let Err(error) = listed
            && relay.is_complete()
        {
            relay.finding(error);
        }
        let is_complete = relay.is_complete();
        for large in large {
            let start = large.extent.start;
            if !self.large.insert_bounded(start, LARGE_CHUNKS_MAX)
                || self.large_reported.contains(&start)
            {
                continue;
            }
            match self.version.shared.node_cache.storage().verify_large(&large) {
                Ok(blocks) => self.report.blocks(blocks),
                Err(error) => {
                    self.large_reported.insert(start);
                    self.report.finding(error);
                }
            }
        }
        Ok(is_complete)
    }

    fn leaf(&mut self, run: &Arc<Run>, span: KeySpan<'_>) -> Result<()> {
        let is_complete = self.run(run)?;
        if run.reference().tombstones > 0 {
            self.finding("a leaf holds tombstones");
        }
        for direction in [Direction::Ascending, Direction::Descending] {
            let edge = match RunCursor::new(run, KeyRange::all(), direction) {
                Ok(edge) => edge,
                Err(_) if !is_complete => return Ok(()),
                Err(error) => {
                    self.report.finding(error);
                    return Ok(());
                }
            };
            let range = span.to_range();
            let inside = |key: &[u8]| range.contains(key);
            if !edge.key().is_some_and(inside) {
                self.finding("a leaf is empty or has keys outside of its pivot's range");
            }
        }
        Ok(())
    }

    /// Compares the pending updates of a pivot with their recorded totals.
    fn parts(&mut self, pivot: &Pivot, span: KeySpan<'_>, whole: &BTreeSet<BlockNo>) {
        let mut before: Option<(u8, Vec<u8>)> = None;
        for part in &pivot.parts {
            let is_complete = whole.contains(&part.segment.run.reference().extent.start);
            let edges = match live(part, span) {
                Ok((totals, edges)) if part.estimated || totals == part.totals => edges,
                Ok(_) => {
                    self.finding("the totals of a pivot's pending updates differ from its runs");
                    continue;
                }
                Err(_) if !is_complete => continue,
                Err(error) => {
                    self.report.finding(error);
                    continue;
                }
            };
            let Some((first, last)) = edges else { continue };
            if part.segment.first > *first {
                self.finding("a segment has keys below its recorded first key");
            }
            let overlaps = before.is_some_and(|(level, end)| level == part.level && end >= first);
            if overlaps {
                self.finding("segments of one level overlap");
            }
            before = Some((part.level, last));
        }
    }
}

/// A first and a last key.
type Edges = (Vec<u8>, Vec<u8>);

/// Returns the totals of a part in its pivot's range, and the first and last key.
fn live(part: &Part, span: KeySpan<'_>) -> Result<(Totals, Option<Edges>)> {
    let mut stream = RunStream::of_device(&part.segment.run, span.to_range())?;
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
