//! Replacing merged branches by their merge, wherever they are by now.
//!
//! ```text
//!   plan       node N:  pivot "a" [5][4][3][ merged ]     inputs: 5, 4, 3
//!   install    pivot "a"          [7][6][5][4][3][ .. ]   -> [7][6][ output ][ .. ]
//!              pivot "c", split from "a": the same        -> its share of the output
//!              pivot "e", flushed on: no input            -> nothing: it is inactive
//! ```
//!
//! A pivot has all inputs of its range or none: a flush moves all parts of a pivot, and no other
//! job merges them. A pivot where some are missing is left as it is, which is always right.

use crate::base::error::Result;
use crate::buffer_tree::node::{Child, Node, Part, Pivot, ReadCost};
use crate::buffer_tree::span::KeySpan;
use crate::engines::splinter::claims::run_of;
use crate::engines::splinter::edit::{Draft, Edit, divide};
use crate::engines::splinter::parts::{numbered, share};
use crate::runtime::sync::Ordering;
use crate::structure::{KeyView, SharedKey};
use std::collections::{BTreeMap, BTreeSet};

/// The output of a merge of levels of a node.
pub(super) struct Replacement<'n> {
    /// The node, as it was at the plan.
    pub node: &'n Node,
    /// End of its range.
    pub upper: Option<KeyView<'n>>,
    /// Indexes of the merged pivots, ascending.
    pub pivots: &'n [usize],
    /// Levels below this number were merged.
    pub levels: usize,
    /// The new parts of each merged pivot, at level 0.
    pub outputs: &'n BTreeMap<usize, Vec<Part>>,
}

impl Replacement<'_> {
    fn span(&self) -> KeySpan<'_> {
        KeySpan { lower: self.node.pivots[0].key.view(), upper: self.upper }
    }

    /// Returns the parts of a pivot after the replacement: down to the output, and below it. `None`
    /// if there is nothing to replace.
    fn parts_of(&self, pivot: &Pivot, span: KeySpan<'_>) -> Result<Option<(Vec<Part>, Vec<Part>)>> {
        let index = self.node.pivot_of(&pivot.key.to_bytes());
        if !self.pivots.contains(&index) {
            return Ok(None);
        }
        // By pivot: a run may lie in a deeper level of another one, and not have been merged there.
        let merged = self.node.pivots[index].parts.iter();
        let merged = merged.filter(|part| usize::from(part.level) < self.levels);
        let inputs: BTreeSet<_> = merged.clone().map(run_of).collect();
        let is_input = |part: &&Part| inputs.contains(&run_of(part));
        let found = (pivot.parts.iter().find(is_input), pivot.parts.iter().rfind(is_input));
        let (Some(first), Some(last)) = found else { return Ok(None) };
        let range = self.node.span_of(index, self.upper);
        let is_same = range == span;
        let expected = |parts: &[Part]| -> Result<Vec<Part>> {
            if is_same { Ok(parts.to_vec()) } else { share(parts, span) }
        };
        let merged: Vec<Part> = merged.cloned().collect();
        let merged: BTreeSet<_> = expected(&merged)?.iter().map(run_of).collect();
        let levels = first.level..=last.level;
        let between = pivot.parts.iter().filter(|part| levels.contains(&part.level));
        let found: BTreeSet<_> = between.map(run_of).collect();
        if found != merged {
            return Ok(None);
        }
        let outputs = self.outputs.get(&index).map_or(&[][..], Vec::as_slice);
        let outputs = expected(outputs)?.into_iter().map(|part| part.at_level(first.level));
        let newer = pivot.parts.iter().filter(|part| part.level < first.level).cloned();
        let older = pivot.parts.iter().filter(|part| part.level > last.level).cloned();
        Ok(Some((newer.chain(outputs).collect(), older.collect())))
    }
}

impl Edit<'_> {
    /// Applies `new` at the node of `draft` and below it; false if nothing was replaced.
    pub fn replace(&self, draft: &mut Draft, new: &Replacement<'_>) -> Result<bool> {
        let mut is_changed = false;
        let upper = draft.upper.as_ref().map(SharedKey::view);
        let range = KeySpan { lower: draft.pivots[0].key.view(), upper };
        if draft.height == new.node.height && range != new.span() {
            // The node was split: the nodes that it became may share the runs of the output.
            let parts = new.outputs.values().flatten();
            parts.for_each(|part| part.segment.shared.store(true, Ordering::Relaxed));
        }
        // From the end, because a pivot may become several.
        for index in (0..draft.pivots.len()).rev() {
            let upper = draft.upper_of(index);
            let pivot = &draft.pivots[index];
            let span =
                KeySpan { lower: pivot.key.view(), upper: upper.as_ref().map(SharedKey::view) };
            if span.clip(new.span()).is_none() {
                continue;
            }
            if draft.height == new.node.height {
                let Some((newer, older)) = new.parts_of(pivot, span)? else { continue };
                // Runs that came while the merge ran move down now.
                self.put_on(draft, index, newer, older);
                draft.pivots[index].read_cost = ReadCost::default();
                is_changed = true;
            } else if matches!(pivot.child, Child::Node(..)) {
                is_changed |= self.replace_below(draft, index, new)?;
            }
        }
        Ok(is_changed)
    }

    /// Applies `new` below pivot `index`.
    fn replace_below(
        &self,
        draft: &mut Draft,
        index: usize,
        new: &Replacement<'_>,
    ) -> Result<bool> {
        let (entered, mut child) = self.child_of(draft, index)?;
        if !self.replace(&mut child, new)? {
            return Ok(false);
        }
        if let Some((slot, node)) = &entered {
            self.retire(slot, node);
        }
        self.put_back(draft, index, child)?;
        Ok(true)
    }

    /// Writes `child`, a changed copy of the child of pivot `index`, whose parts stay above it.
    pub fn put_back(&self, draft: &mut Draft, index: usize, child: Draft) -> Result<()> {
        let upper = child.upper.clone();
        let pivots = self.finish(child)?;
        let parts = std::mem::take(&mut draft.pivots[index].parts);
        let cost = draft.pivots[index].read_cost.clone();
        let mut below = Draft { height: draft.height, pivots, upper };
        let shares = divide(&parts, &below)?;
        for (pivot, parts) in below.pivots.iter_mut().zip(shares) {
            let (key, child) = (pivot.key.clone(), pivot.child.clone());
            *pivot = Pivot::new(key, child, numbered(parts), cost.clone());
        }
        draft.pivots.splice(index..=index, below.pivots);
        Ok(())
    }
}
