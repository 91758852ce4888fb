//! Forecasting inserts: new pages have space where inserts are expected [3.3, 4.6].
//!
//! ```text
//!   cells     | 40 of 9,000 | 700 of 8,800 | 0 of 9,100 | ...     inserts in a round, of entries
//!   fill            85 %          79 %           85 %             of new pages in the round after
//! ```
//!
//! A round of sweeps passes all keys in order, and meets for each group the inserts since the round
//! before. So a round is an epoch of the paper, and gives the histogram that the paper gathers from
//! a sample of inserts. Two are kept: the one of the last complete round, which new pages follow,
//! and the one under construction. They are lost when the tree is closed.
//!
//! Inserts behind the last key of a group are not counted: what follows them is behind them, too,
//! and does not need space in pages that were written before.

use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::Arc;

/// Maximum number of cells. Beyond, neighboring cells are joined.
const CELLS_MAX: usize = 4096;

/// Bytes kept of the first key of a cell.
const KEY_BYTES: usize = 48;

/// A new page has at least this much, in percent; less than any `fill_percent`.
const FILL_PERCENT_MIN: usize = 30;

/// Neighboring groups.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// The beginning of the first key.
    first: Box<[u8]>,
    entries: u64,
    inserts: u64,
    groups: usize,
}

/// Inserts of a round of sweeps, by key.
#[derive(Debug)]
pub(super) struct Histogram {
    /// In key order.
    cells: Vec<Cell>,
    /// Groups of a complete cell.
    groups: usize,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { cells: Vec::new(), groups: 1 }
    }
}

/// The inserts that a sweep met in a group.
#[derive(Clone, Debug)]
pub(super) struct Met {
    /// The first key of the group.
    pub first: Vec<u8>,
    /// Number of entries that it had.
    pub entries: u64,
    /// Number of new ones below its last key.
    pub inserts: u64,
}

impl Histogram {
    /// Adds a group behind those before.
    pub fn add(&mut self, met: &Met) {
        if self.cells.last().is_none_or(|last| last.groups >= self.groups) {
            let first = met.first[..met.first.len().min(KEY_BYTES)].into();
            self.cells.push(Cell { first, ..Cell::default() });
        }
        if let Some(last) = self.cells.last_mut() {
            last.entries += met.entries;
            last.inserts += met.inserts;
            last.groups += 1;
        }
        if self.cells.len() > CELLS_MAX {
            let mut joined: Vec<Cell> = Vec::with_capacity(CELLS_MAX);
            for (index, cell) in self.cells.drain(..).enumerate() {
                match joined.last_mut() {
                    Some(last) if index % 2 == 1 => {
                        last.entries += cell.entries;
                        last.inserts += cell.inserts;
                        last.groups += cell.groups;
                    }
                    _ => joined.push(cell),
                }
            }
            (self.cells, self.groups) = (joined, 2 * self.groups);
        }
    }

    /// The entries around `key`, and the inserts among them in a round.
    fn around(&self, key: &[u8]) -> (u64, u64) {
        let begun = self.cells.partition_point(|cell| *cell.first <= *key);
        let cell = self.cells.get(begun.saturating_sub(1));
        cell.map_or((1, 0), |cell| (cell.entries.max(1), cell.inserts))
    }

    /// The filled part of a new page that begins at `key`, in percent, so that the inserts of
    /// `rounds` rounds fit in it later; `usual` if none are expected.
    pub fn fill_percent(&self, key: &[u8], rounds: u32, usual: usize) -> usize {
        if rounds == 0 || self.cells.is_empty() {
            return usual;
        }
        let (entries, inserts) = self.around(key);
        let expected = entries.saturating_add(inserts.saturating_mul(rounds.into()));
        let percent = u128::from(entries) * usual as u128 / u128::from(expected);
        usize::try_from(percent).unwrap_or(usual).clamp(FILL_PERCENT_MIN, usual)
    }

    fn heap_bytes(&self) -> u64 {
        let keys: usize = self.cells.iter().map(|cell| cell.first.len()).sum();
        (keys + self.cells.capacity() * size_of::<Cell>()) as u64
    }
}

/// The histograms of a tree.
pub(super) struct Forecast {
    complete: Arc<Histogram>,
    next: Histogram,
    charge: Charge,
}

impl Forecast {
    /// Creates a forecast that knows nothing, charged to `budget`.
    pub fn new(budget: &Arc<Budget>) -> Self {
        let charge = budget.charge(Use::Metadata, 0);
        Self { complete: Arc::default(), next: Histogram::default(), charge }
    }

    /// The histogram of the last complete round.
    pub fn complete(&self) -> Arc<Histogram> {
        Arc::clone(&self.complete)
    }

    /// Adds what a job met; the round is complete if `is_last`.
    pub fn add(&mut self, met: &[Met], is_last: bool) {
        met.iter().for_each(|met| self.next.add(met));
        if is_last {
            self.complete = Arc::new(std::mem::take(&mut self.next));
        }
        self.charge.resize(self.complete.heap_bytes() + self.next.heap_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(group: u32, inserts: u64) -> Met {
        Met { first: group.to_be_bytes().into(), entries: 100, inserts }
    }

    #[test]
    fn pages_have_space_where_inserts_were() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.fill_percent(b"any", 1, 85), 85);
        for group in 0..10 {
            histogram.add(&met(group, if group == 3 { 25 } else { 0 }));
        }
        let fill = |group: u32, rounds| {
            histogram.fill_percent(&[&group.to_be_bytes()[..], &[1]].concat(), rounds, 85)
        };
        assert_eq!([0, 2, 4, 9, 77].map(|group| fill(group, 1)), [85; 5]);
        assert_eq!([0, 1, 2, 4, 100].map(|rounds| fill(3, rounds)), [85, 68, 56, 42, 30]);
    }

    #[test]
    fn many_groups_share_cells() {
        let mut histogram = Histogram::default();
        let count = 3 * u32::try_from(CELLS_MAX).unwrap();
        for group in 0..count {
            histogram.add(&met(group, u64::from(group * 100 / count)));
        }
        assert!((CELLS_MAX / 2..=CELLS_MAX).contains(&histogram.cells.len()));
        let groups: usize = histogram.cells.iter().map(|cell| cell.groups).sum();
        assert_eq!(groups, count as usize);
        for group in (0..count).step_by(99) {
            let expected = f64::from(group * 100 / count) / 100.0;
            let (entries, inserts) = histogram.around(&group.to_be_bytes());
            let growth = inserts as f64 / entries as f64;
            assert!((growth - expected).abs() < 0.02, "{growth} for {expected}");
        }
    }

    #[test]
    fn a_round_is_followed_when_it_is_complete() {
        let (storage, _directory) = crate::storage::Storage::testing(16 << 20);
        let mut forecast = Forecast::new(storage.budget());
        forecast.add(&[met(0, 50)], false);
        assert_eq!(forecast.complete().fill_percent(b"", 1, 90), 90);
        forecast.add(&[met(1, 0)], true);
        assert_eq!(forecast.complete().fill_percent(b"", 1, 90), 60);
        forecast.add(&[met(0, 0)], true);
        assert_eq!(forecast.complete().fill_percent(b"", 1, 90), 90);
    }
}
