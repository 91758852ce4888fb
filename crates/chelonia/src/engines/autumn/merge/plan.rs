//! Selection of the next step: pure decisions by sizes.
//!
//! | source | when | amount per unit (`choose.rs`) |
//! | --- | --- | --- |
//! | level 0 | 4 sequences are present: all begin to *sink* | a key span, from the left on |
//! | level i | its size exceeds its capacity | tables with the least overlap below |
//!
//! The level that exceeds its limit the most comes first: level 0 by its number of sequences, other
//! levels by size. Levels are added and removed as the last level grows and shrinks.

use crate::engines::autumn::merge::garnering::{Garnering, LEVELS_MAX, Sizing};
use crate::engines::autumn::table::Sequence;
use crate::engines::autumn::version::AutumnVersion;
use crate::runtime::sync::Arc;

/// Number of level-0 sequences that triggers their merge.
pub(in crate::engines::autumn) const LEVEL0_TRIGGER: usize = 4;

/// Divisor: tombstones are merged early if they are this part of the entries of the level below.
const TOMBSTONES_PART: u64 = 4;

/// Size of a level, in percent of its capacity, beyond which it counts as debt.
const SLACK_PERCENT: u64 = 150;

/// The next step.
#[derive(Clone, Copy)]
pub(in crate::engines::autumn) enum Step {
    /// Sequences of level 0 begin to sink, the oldest first.
    Sink,
    /// Inserts an empty level at this index (0 is level 1).
    AddLevel(usize),
    /// Removes the empty level at this index.
    RemoveLevel(usize),
    /// Merges or moves tables to the level below, from level 0 or the level with this number.
    Down(usize),
}

/// Sizes on which decisions are based.
pub(in crate::engines::autumn) struct Sizes {
    /// Sizes of the level-0 sequences in bytes, newest first.
    pub level0: Vec<u64>,
    /// Number of sinking sequences, the oldest ones.
    pub sinking: usize,
    /// Sizes of the levels in bytes.
    pub levels: Vec<u64>,
    /// Tombstones of level 0, then of each level.
    pub tombstones: Vec<u64>,
    /// Entries of each level.
    pub entries: Vec<u64>,
}

impl Sizes {
    /// Returns the sizes of a version.
    pub fn of(version: &AutumnVersion) -> Self {
        let weights = |sequences: &[Arc<Sequence>]| -> Vec<u64> {
            sequences.iter().map(|sequence| sequence.weight()).collect()
        };
        let tombstones = |sequence: &Arc<Sequence>| sequence.totals().tombstones;
        let level0 = version.level0.iter().map(tombstones).sum();
        Self {
            level0: weights(&version.level0),
            sinking: version.sinking,
            levels: weights(&version.levels),
            tombstones: [level0].into_iter().chain(version.levels.iter().map(tombstones)).collect(),
            entries: version.levels.iter().map(|level| level.totals().entries).collect(),
        }
    }

    /// Returns true if `level` (0: level 0) has enough tombstones to delete much of the
    /// next level: then they are merged early to free space.
    fn deletes_much(&self, level: usize) -> bool {
        let (tombstones, below) = (self.tombstones[level], self.entries.get(level));
        tombstones > 0 && below.is_some_and(|below| tombstones >= below.div_ceil(TOMBSTONES_PART))
    }

    /// Returns true if the last level, merged with the one above it, would still be half empty: the
    /// tree has one level too many.
    fn is_too_deep(&self, policy: &Garnering) -> bool {
        let [.., above, last] = self.levels[..] else { return false };
        let fewer = self.levels.len() - 1;
        above + last <= policy.capacity(fewer, fewer) / 2
    }

    /// Returns the next step, if any. `eager` includes steps that only benefit reads; levels in
    /// `stuck` cannot be compacted, and those in `blocked` not now (0: level 0).
    pub fn step(
        &self,
        policy: &Garnering,
        eager: bool,
        stuck: &[usize],
        blocked: &[usize],
    ) -> Option<Step> {
        if let Some(step) = self.shape(policy) {
            return Some(step);
        }
        let early = eager || (!self.levels.is_empty() && self.deletes_much(0));
        let trigger = if early { 1 } else { LEVEL0_TRIGGER };
        let is_stuck = stuck.contains(&0);
        // If the sinking sequences are stuck, others may still begin to sink.
        let may_sink = self.sinking == 0 || is_stuck;
        if may_sink && self.level0.len() - self.sinking >= trigger {
            let has_level = !self.levels.is_empty();
            return Some(if has_level { Step::Sink } else { Step::AddLevel(0) });
        }
        // In thousandths of the capacity; among equals the highest level wins.
        let mut most = (0, None);
        if self.sinking > 0 && !is_stuck && !blocked.contains(&0) {
            most = ((1000 * self.level0.len() / LEVEL0_TRIGGER).max(1000) as u64, Some(0));
        }
        for (place, excess) in self.permille(policy).into_iter().enumerate() {
            let level = place + 1;
            let is_open = !stuck.contains(&level) && !blocked.contains(&level);
            if excess > most.0.max(1000) && is_open {
                most = (excess, Some(level));
            }
        }
        most.1.map(Step::Down)
    }

    /// Returns the next step that leads to free space: level 0 is merged, since its newer updates
    /// hide data below; then tombstones.
    pub fn reclaim_step(&self, stuck: &[usize]) -> Option<Step> {
        let is_stuck = |level: usize| stuck.contains(&level);
        if self.levels.is_empty() {
            return (!self.level0.is_empty()).then_some(Step::AddLevel(0));
        }
        if self.sinking > 0 && !is_stuck(0) {
            return Some(Step::Down(0));
        }
        if self.level0.len() > self.sinking {
            return Some(Step::Sink);
        }
        let levels = 1..self.levels.len();
        let downward = levels.filter(|level| self.tombstones[*level] > 0 && !is_stuck(*level));
        downward.max_by_key(|level| self.tombstones[*level]).map(Step::Down)
    }

    /// Returns the size of each level but the last, in thousandths of its capacity.
    fn permille(&self, policy: &Garnering) -> Vec<u64> {
        let last = self.levels.len().saturating_sub(1);
        let mut full: Vec<u64> = self.levels[..last]
            .iter()
            .zip(policy.capacities(&self.levels))
            .map(|(size, capacity)| size.saturating_mul(1000) / capacity.max(1))
            .collect();
        for (place, full) in full.iter_mut().enumerate() {
            if self.levels[place] > 0 && self.deletes_much(place + 1) {
                *full = (*full).max(1001);
            }
        }
        if let Some(above) = full.last_mut()
            && self.is_too_deep(policy)
            && self.levels[last - 1] > 0
        {
            *above = 2000;
        }
        full
    }

    /// Returns the step that adds or removes a level, if one is needed.
    fn shape(&self, policy: &Garnering) -> Option<Step> {
        let count = self.levels.len();
        let &last = self.levels.last()?;
        if last > policy.capacity(count, count) && count < LEVELS_MAX {
            return Some(Step::AddLevel(match policy.sizing {
                // All capacities derive from the last level: it stays the last.
                Sizing::Relative => 0,
                // The last level is below its new capacity, and nothing moves [3.1].
                Sizing::Absolute if policy.grows() => count,
                // Capacities stay the same, and the full last level moves down.
                Sizing::Absolute => count - 1,
            }));
        }
        if !self.is_too_deep(policy) {
            return None;
        }
        // The level above the last is merged into it (`permille`) until it is empty.
        [count - 1, count - 2].into_iter().find(|at| self.levels[*at] == 0).map(Step::RemoveLevel)
    }

    /// Bytes to rewrite until no level far exceeds its limit. Excludes `stuck` levels: waiting for
    /// them would never end.
    pub fn debt(&self, policy: &Garnering, stuck: &[usize]) -> u64 {
        let below = |at: usize| self.levels.get(at).copied().unwrap_or(0);
        let count = match stuck.contains(&0) {
            true => self.level0.len() - self.sinking,
            false => self.level0.len(),
        };
        let level0: u64 = self.level0[..count].iter().sum();
        let most = LEVEL0_TRIGGER + LEVEL0_TRIGGER / 2;
        let mut debt = 0;
        if count > most {
            let each = level0 / count as u64;
            let over = (count - most) as u64;
            let rewritten = below(0) * over / LEVEL0_TRIGGER as u64;
            debt += each * over + rewritten.min(each * over * 8);
        }
        for (at, capacity) in policy.capacities(&self.levels).into_iter().enumerate() {
            let allowed = capacity / 100 * SLACK_PERCENT;
            let goes_down = at + 1 < self.levels.len() && !stuck.contains(&(at + 1));
            if goes_down && self.levels[at] > allowed {
                let over = self.levels[at] - allowed;
                debt += over + scaled(over, below(at + 1), self.levels[at]);
            }
        }
        debt
    }
}

/// `number * part / whole`.
fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
