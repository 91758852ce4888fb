//! Writing a level of a buffer: the output of a merge, cut into runs.
//!
//! Runs are cut near their maximum size, where possible between pivots, so that few pivots have two
//! parts in one level.

use crate::base::error::{Error, Result};
use crate::base::keys::{head64, separator};
use crate::base::stream::SortedStream;
use crate::buffer_tree::node::{Part, Segment};
use crate::buffer_tree::output::RunWriter;
use crate::buffer_tree::source::Source;
use crate::merge::Merge;
use crate::run::{Totals, WasCached};
use crate::runtime::sync::{Arc, AtomicBool};
use crate::structure::{KeyView, SharedKey};

/// A pivot that takes part in a new level.
#[derive(Clone, Copy, Debug)]
pub struct LevelPivot<'n> {
    /// Index of the pivot in the node.
    pub index: usize,
    /// Start of its range.
    pub key: &'n SharedKey,
    /// End of its range.
    pub upper: Option<KeyView<'n>>,
    /// Approximate weight of its inputs of the merge.
    pub incoming: u64,
}

/// How the runs of a level are written.
pub struct LevelOutput<'o, 'c> {
    /// Writes the runs.
    pub writer: RunWriter<'o>,
    /// Maximum size of a run.
    pub run_max: u64,
    /// Keys that it marks as cached before stay in the cache.
    pub was_cached: Option<&'c WasCached<'c>>,
}

/// Writes the rest of `merge` as one level over `pivots`; returns the parts, each with the index of
/// its pivot. All of them have level 0. The merge may begin within the first pivot, at `begins`.
pub fn write_level(
    output: LevelOutput<'_, '_>,
    merge: &mut Merge<Source<'_>>,
    pivots: &[LevelPivot<'_>],
    begins: Option<SharedKey>,
) -> Result<Vec<(usize, Part)>> {
    let most = output.run_max;
    let mut shaper = LevelShaper {
        output,
        first: begins.unwrap_or(SharedKey::LEAST),
        cut: None,
        open: Vec::new(),
        parts: Vec::new(),
    };
    for pivot in pivots {
        let weight = shaper.output.writer.weight();
        if weight >= most / 2 && weight + pivot.incoming > most {
            shaper.close(None)?;
        }
        shaper.write_pivot(merge, pivot, most)?;
    }
    if !shaper.output.writer.is_empty() {
        shaper.close(None)?;
    }
    if merge.key().is_some() {
        return Err(outside_of_pivots());
    }
    shaper.output.writer.give_back();
    Ok(shaper.parts)
}

fn outside_of_pivots() -> Error {
    Error::corrupt(
        "runs have entries outside of the pivots that refer to them; run `chelonia verify`",
    )
}

struct LevelShaper<'o, 'c> {
    output: LevelOutput<'o, 'c>,
    /// Lower bound of the keys of the run under construction, if it begins within a pivot.
    first: SharedKey,
    /// The last key of the previous run, if it was cut within a pivot, and that pivot's key.
    cut: Option<(Box<[u8]>, SharedKey)>,
    /// The parts in the run under construction.
    open: Vec<(usize, Totals)>,
    parts: Vec<(usize, Part)>,
}

impl LevelShaper<'_, '_> {
    fn write_pivot(
        &mut self,
        merge: &mut Merge<Source<'_>>,
        pivot: &LevelPivot<'_>,
        most: u64,
    ) -> Result<()> {
        let upper = pivot.upper.map(KeyView::to_bytes);
        let upper_head = upper.as_ref().map_or(u64::MAX, |upper| head64(upper));
        // Keys ascend, so the first one decides for all that follow.
        if merge.key().is_some_and(|key| *pivot.key > *key) {
            return Err(outside_of_pivots());
        }
        let mut totals = Totals::default();
        while let Some(key) = merge.key() {
            let head = head64(key);
            // Numeric prefixes decide most comparisons.
            if head > upper_head
                || (head == upper_head && upper.as_deref().is_some_and(|u| key >= u))
            {
                break;
            }
            let update = merge.update();
            if self.output.writer.weight() >= most || self.output.writer.is_over(most, key, &update)
            {
                let cut_within = totals.entries > 0;
                if cut_within {
                    self.open.push((pivot.index, std::mem::take(&mut totals)));
                }
                self.close(cut_within.then_some(pivot.key))?;
            }
            totals.add_entry(key, &update);
            self.output.writer.add(key, update)?;
            merge.advance()?;
        }
        if totals.entries > 0 {
            self.open.push((pivot.index, totals));
        }
        Ok(())
    }

    /// Writes the run and creates its parts.
    fn close(&mut self, within: Option<&SharedKey>) -> Result<()> {
        let written = self.output.writer.finish(self.output.was_cached)?;
        debug_assert_eq!(
            Totals::sum(self.open.iter().map(|(_, totals)| *totals)),
            written.run.reference().totals(),
            "the parts of a run have all of its entries"
        );
        let before = self.cut.take();
        let first = std::mem::replace(&mut self.first, SharedKey::LEAST);
        let first = before.map_or(first, |(last, pivot)| {
            SharedKey::whole(&separator(&last, &written.first)).beside(&pivot)
        });
        debug_assert!(first <= *written.first, "a segment begins at or before its least key");
        self.cut = within.map(|pivot| (written.last, pivot.clone()));
        let shared = AtomicBool::new(false);
        let segment = Arc::new(Segment { run: written.run, first, shared });
        for (pivot, totals) in self.open.drain(..) {
            let part = Part::new(0, Arc::clone(&segment), totals);
            self.parts.push((pivot, part));
        }
        Ok(())
    }
}
