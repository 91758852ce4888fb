//! What is to be done next: pure decisions by sizes.
//!
//! | what goes down | when | how much at one time (`choose.rs`) |
//! | --- | --- | --- |
//! | level 0 | 4 sequences came: all there are *sink* | a stretch of keys, from the left on |
//! | level i | it holds more than its capacity | tables that meet least below |
//!
//! Whatever is most beyond its measure comes first: level 0 by the count of its sequences, other
//! levels by their size. Levels are added and taken away as the last one grows and shrinks.

use super::AutumnVersion;
use super::garnering::{Garnering, LEVELS_MAX, Sizing};
use super::table::Sequence;
use crate::runtime::sync::Arc;

/// Sequences of level 0 that go down together.
pub(super) const LEVEL0_TRIGGER: usize = 4;

/// Tombstones go down early if they are so many-th of the entries of the level below.
const TOMBSTONES_PART: u64 = 4;

/// A level may hold so much more than its capacity (in percent of it) before it counts as debt.
const SLACK_PERCENT: u64 = 150;

/// What is to be done next.
pub(super) enum Step {
    /// Sequences of level 0 begin to sink, the oldest first.
    Sink,
    /// An empty level is put in at this place (0 is level 1).
    AddLevel(usize),
    /// The empty level at this place is taken out.
    RemoveLevel(usize),
    /// Tables go down, from level 0 or from the level of this number.
    Down(usize),
}

/// The sizes that decisions go by.
pub(super) struct Sizes {
    /// The sequences of level 0, newest first, in bytes.
    pub level0: Vec<u64>,
    /// How many of them, the oldest, are sinking.
    pub sinking: usize,
    /// The levels, in bytes.
    pub levels: Vec<u64>,
    /// Tombstones of all level 0 and of each level, and the entries of each level.
    pub tombstones: Vec<u64>,
    /// See `tombstones`.
    pub entries: Vec<u64>,
}

impl Sizes {
    /// Those of a version.
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

    /// True if so many tombstones are in `level` (0: level 0) that much of the next one is deleted
    /// by them: then they go down, for the sake of the space.
    fn deletes_much(&self, level: usize) -> bool {
        let (tombstones, below) = (self.tombstones[level], self.entries.get(level));
        tombstones > 0 && below.is_some_and(|below| tombstones >= below.div_ceil(TOMBSTONES_PART))
    }

    /// True if the last level could be merged with the one above it and still be half empty: there
    /// is a level too many.
    fn is_too_deep(&self, policy: &Garnering) -> bool {
        let [.., above, last] = self.levels[..] else { return false };
        let fewer = self.levels.len() - 1;
        above + last <= policy.capacity(fewer, fewer) / 2
    }

    /// What is to be done next, if anything. `eager` asks for what only reads gain from; nothing
    /// goes down from levels that are `stuck` (0: level 0).
    pub fn step(&self, policy: &Garnering, eager: bool, stuck: &[usize]) -> Option<Step> {
        if let Some(step) = self.shape(policy) {
            return Some(step);
        }
        let early = eager || (!self.levels.is_empty() && self.deletes_much(0));
        let trigger = if early { 1 } else { LEVEL0_TRIGGER };
        let is_stuck = stuck.contains(&0);
        // If what sinks cannot go on, others may nevertheless, as far as they come.
        let may_sink = self.sinking == 0 || is_stuck;
        if may_sink && self.level0.len() - self.sinking >= trigger {
            let has_level = !self.levels.is_empty();
            return Some(if has_level { Step::Sink } else { Step::AddLevel(0) });
        }
        // A thousandth of what is allowed: the first of equals is the highest level.
        let mut most = (0, None);
        if self.sinking > 0 && !is_stuck {
            most = ((1000 * self.level0.len() / LEVEL0_TRIGGER).max(1000) as u64, Some(0));
        }
        for (place, excess) in self.permille(policy).into_iter().enumerate() {
            if excess > most.0.max(1000) && !stuck.contains(&(place + 1)) {
                most = (excess, Some(place + 1));
            }
        }
        most.1.map(Step::Down)
    }

    /// What frees space in the end: level 0 goes down, for newer updates hide what is below; then
    /// tombstones do.
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

    /// How full each level but the last is, in thousandths of its capacity.
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

    /// Whether a level is to be added or taken out.
    fn shape(&self, policy: &Garnering) -> Option<Step> {
        let count = self.levels.len();
        let &last = self.levels.last()?;
        if last > policy.capacity(count, count) && count < LEVELS_MAX {
            return Some(Step::AddLevel(match policy.sizing {
                // All capacities follow from the last level: it stays the last.
                Sizing::Relative => 0,
                // The last level has room again, and nothing moves [3.1].
                Sizing::Absolute if policy.grows() => count,
                // Capacities stay, and the full last level moves down.
                Sizing::Absolute => count - 1,
            }));
        }
        if !self.is_too_deep(policy) {
            return None;
        }
        // The one above the last goes down into it (`permille`) until it is empty.
        [count - 1, count - 2].into_iter().find(|at| self.levels[*at] == 0).map(Step::RemoveLevel)
    }

    /// Bytes to be rewritten until nothing is far beyond its measure, but for what is `stuck`:
    /// nobody can wait for that.
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
