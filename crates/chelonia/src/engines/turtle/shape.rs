//! Cutting of merged entries into leaves of similar size.
//!
//! A leaf must not exceed the leaf size, and leaves should be about nine tenths full. Only an upper
//! bound of a merge's output (its input) is known, since newer entries hide older ones. So cuts are
//! decided during the merge:
//!
//! ```text
//!   far more than two leaves are left      cut at the even share of the expected rest
//!   about one or two leaves are left      fill half a leaf, stage the following entries:
//!        the end comes within one leaf        -> one leaf
//!        it does not                          -> cut the known entries evenly
//!   all entries come from one source      the output equals the input: cut evenly
//!   everything is appended                cut at 95%; the rest is where appending continues
//!   a piece of a larger merge             it should fill whole leaves: some more may enter them
//! ```
//!
//! The stage holds entries of at most one leaf, copied once.

use crate::base::error::Result;
use crate::base::stream::{Compressed, Dictionary, LargeRef, SortedStream, Update};
use crate::buffer_tree::output::{Output, RunWriter, WrittenRun};
use crate::buffer_tree::source::Source;
use crate::engines::turtle::pass::geometry::Geometry;
use crate::memory::budget::Charge;
use crate::merge::Merge;
use crate::run::{Totals, WasCached, weight};
use std::collections::VecDeque;

/// Expectations about the leaves to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafPlan {
    /// Approximate weight of all inputs of the merge.
    pub incoming: u64,
    /// Nothing will be hidden and the weight is exact.
    pub exact: bool,
    /// More entries will be appended later, none inserted between.
    pub packed: bool,
    /// The merge is a piece that aims at whole leaves.
    pub piece: bool,
}

/// Writes the output of `merge` as leaves.
pub(super) fn write_leaves(
    output: &Output<'_>,
    merge: &mut Merge<Source<'_>>,
    plan: LeafPlan,
    geometry: &Geometry,
    was_cached: &WasCached<'_>,
) -> Result<Vec<WrittenRun>> {
    let mut shaper = LeafShaper {
        merge,
        writer: output.leaf_writer(),
        stage: Stage::new(output.work_charge()),
        plan,
        leaf: geometry.leaf,
        filled: if plan.piece { geometry.leaf_brimful() } else { geometry.leaf_filled() }.max(1),
        packed: geometry.leaf_packed().max(1),
        given: Totals::default(),
    };
    let mut leaves = Vec::new();
    while !shaper.stage.is_empty() || shaper.merge.key().is_some() {
        let size = shaper.next_size()?;
        shaper.fill(size)?;
        leaves.push(shaper.writer.finish(Some(was_cached))?);
    }
    debug_assert_eq!(
        Totals::sum(leaves.iter().map(|leaf| leaf.run.reference().totals())),
        shaper.given,
        "the leaves have what the merge returned"
    );
    shaper.writer.give_back();
    Ok(leaves)
}

struct LeafShaper<'a, 'u, 'o> {
    merge: &'a mut Merge<Source<'u>>,
    writer: RunWriter<'o>,
    stage: Stage,
    plan: LeafPlan,
    leaf: u64,
    filled: u64,
    packed: u64,
    /// Totals of the entries returned by the merge so far.
    given: Totals,
}

impl LeafShaper<'_, '_, '_> {
    /// Returns the size of the next leaf. May fill a part of it.
    fn next_size(&mut self) -> Result<u64> {
        if self.plan.packed {
            return Ok(self.packed);
        }
        let expected = self.stage.weight + self.expected_rest();
        if self.plan.exact && expected <= self.leaf {
            return Ok(self.leaf);
        }
        // Before the first entry, newer entries may hide most of the older ones.
        let far = if self.given.entries == 0 { 4 } else { 2 };
        if self.plan.exact || expected >= far * self.leaf {
            return Ok(expected / expected.div_ceil(self.filled));
        }
        self.look_ahead()
    }

    /// Estimates the remaining output of the merge: the remaining input, reduced by the share
    /// hidden so far.
    fn expected_rest(&self) -> u64 {
        let passed = self.merge.passed_over();
        let given = self.given.weight();
        let read = given + weight(passed.entries, passed.bytes);
        let rest = self.plan.incoming.saturating_sub(read);
        if read == 0 {
            return rest;
        }
        let expected = u128::from(rest) * u128::from(given) / u128::from(read);
        u64::try_from(expected).unwrap_or(u64::MAX)
    }

    /// Stages entries until it is known whether the rest fits one leaf, and returns the size of the
    /// next.
    fn look_ahead(&mut self) -> Result<u64> {
        self.fill(self.leaf / 2)?;
        while self.writer.weight() + self.stage.weight <= self.leaf {
            let Some(key) = self.merge.key() else { return Ok(self.leaf) };
            let update = self.merge.update();
            self.given.add_entry(key, &update);
            self.stage.push(key, update);
            self.merge.advance()?;
        }
        let known = self.writer.weight() + self.stage.weight;
        let expected = known + self.expected_rest();
        Ok(expected / expected.div_ceil(self.filled).max(2))
    }

    /// Adds entries until the leaf has `size` or none are left.
    fn fill(&mut self, size: u64) -> Result<()> {
        while self.writer.weight() < size {
            if let Some((key, update)) = self.stage.front() {
                if self.writer.is_over(self.leaf, key, &update) {
                    return Ok(());
                }
                self.writer.add(key, update)?;
                self.stage.pop();
                continue;
            }
            let Some(key) = self.merge.key() else { return Ok(()) };
            let update = self.merge.update();
            if self.writer.is_over(self.leaf, key, &update) {
                return Ok(());
            }
            self.given.add_entry(key, &update);
            self.writer.add(key, update)?;
            self.merge.advance()?;
        }
        Ok(())
    }
}

/// Entries staged until the cut is decided.
struct Stage {
    bytes: Vec<u8>,
    entries: VecDeque<Staged>,
    weight: u64,
    charge: Charge,
}

struct Staged {
    /// Offset of the key in the bytes; an inline value follows it.
    start: usize,
    key_bytes: usize,
    value: StagedValue,
}

enum StagedValue {
    Inline(usize),
    Compressed(usize, Dictionary),
    Large(LargeRef),
    Tombstone,
}

impl Stage {
    fn new(charge: Charge) -> Self {
        Self { bytes: Vec::new(), entries: VecDeque::new(), weight: 0, charge }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn push(&mut self, key: &[u8], update: Update<'_>) {
        if self.entries.is_empty() {
            self.bytes.clear();
        }
        let start = self.bytes.len();
        self.weight += weight(1, (key.len() + update.inline_bytes()) as u64);
        self.bytes.extend_from_slice(key);
        let value = match update {
            Update::Put(value) => {
                self.bytes.extend_from_slice(value);
                StagedValue::Inline(value.len())
            }
            Update::PutCompressed(value) => {
                self.bytes.extend_from_slice(value.payload());
                StagedValue::Compressed(value.payload().len(), value.dictionary().clone())
            }
            Update::PutLarge(large) => StagedValue::Large(large),
            Update::Delete => StagedValue::Tombstone,
        };
        self.entries.push_back(Staged { start, key_bytes: key.len(), value });
        let held = self.bytes.capacity() + self.entries.capacity() * size_of::<Staged>();
        if held as u64 != self.charge.bytes() {
            self.charge.resize(held as u64);
        }
    }

    fn front(&self) -> Option<(&[u8], Update<'_>)> {
        let staged = self.entries.front()?;
        let key_end = staged.start + staged.key_bytes;
        let update = match &staged.value {
            StagedValue::Inline(length) => Update::Put(&self.bytes[key_end..key_end + length]),
            // Checked when it was read: it is never taken for a tombstone.
            StagedValue::Compressed(length, dictionary) => {
                Compressed::new(&self.bytes[key_end..key_end + length], dictionary)
                    .map_or(Update::Delete, Update::PutCompressed)
            }
            StagedValue::Large(large) => Update::PutLarge(*large),
            StagedValue::Tombstone => Update::Delete,
        };
        Some((&self.bytes[staged.start..key_end], update))
    }

    fn pop(&mut self) {
        if let Some((key, update)) = self.front() {
            self.weight -= weight(1, (key.len() + update.inline_bytes()) as u64);
            self.entries.pop_front();
        }
    }
}
