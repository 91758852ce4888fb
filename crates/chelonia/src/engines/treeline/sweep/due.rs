//! When a sweep is worth its reads and writes.
//!
//! A sweep reads and writes each page that has an update, and reads the staged runs. It begins when
//!
//! - there is a staged update for each page, and [`SWEEP_TRIGGER`] memtables are staged, or updates
//!   have paused; or
//! - [`STAGED_MOST`] memtables are staged, whose filters every lookup asks; or
//! - scans have read as many blocks of staged runs as the sweep would read and write.
//!
//! A few staged updates stay staged otherwise: they cost lookups a filter in memory, and a sweep
//! of them would write a page for each.

use crate::engines::treeline::version::Parts;
use crate::runtime::sync::{AtomicBool, AtomicU64, Ordering};

/// Number of staged memtables from which on they are swept, if they have enough updates.
pub(in crate::engines::treeline) const SWEEP_TRIGGER: usize = 4;

/// Number of staged memtables from which on they are swept in any case.
const STAGED_MOST: usize = 12;

/// The state that decides whether a sweep is due. Thread-safe.
pub(in crate::engines::treeline) struct Due {
    /// Updates are expected soon.
    busy: AtomicBool,
    /// A sweep met an unreadable block: none is begun any more.
    stuck: AtomicBool,
    /// Blocks of staged runs that scans have read since the last sweep began.
    scanned: AtomicU64,
    /// The value of `scanned` at which a sweep is due; `u64::MAX` if nothing is staged.
    price: AtomicU64,
    /// Whether a sweep is due for another reason.
    wants: AtomicBool,
    debt: AtomicU64,
}

impl Default for Due {
    fn default() -> Self {
        Self {
            busy: AtomicBool::new(true),
            stuck: AtomicBool::new(false),
            scanned: AtomicU64::new(0),
            price: AtomicU64::new(u64::MAX),
            wants: AtomicBool::new(false),
            debt: AtomicU64::new(0),
        }
    }
}

impl Due {
    /// Records that a scan reads at least one block of each of `runs` staged runs.
    pub fn note_scan(&self, runs: usize) {
        if runs > 0 {
            self.scanned.fetch_add(runs as u64, Ordering::Relaxed);
        }
    }

    /// Records that a sweep begins.
    pub fn note_sweep(&self) {
        self.scanned.store(0, Ordering::Relaxed);
    }

    /// Records that a sweep met an unreadable block.
    pub fn set_stuck(&self) {
        self.stuck.store(true, Ordering::SeqCst);
    }

    /// Whether sweeps have ended for that reason.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::SeqCst)
    }

    /// Sets whether updates are expected soon; true if that was not known.
    pub fn set_busy(&self, busy: bool) -> bool {
        self.busy.swap(busy, Ordering::SeqCst) != busy
    }

    /// Whether a sweep may be due. Cheap.
    pub fn is_possible(&self) -> bool {
        let is_priced = self.scanned.load(Ordering::Relaxed) >= self.price.load(Ordering::Relaxed);
        (self.wants.load(Ordering::SeqCst) || is_priced) && !self.is_stuck()
    }

    /// Bytes of staged updates beyond those that usually wait.
    pub fn debt_bytes(&self) -> u64 {
        if self.is_stuck() { 0 } else { self.debt.load(Ordering::Relaxed) }
    }

    /// Whether to begin or continue a sweep of `parts`.
    pub fn is_due(&self, parts: &Parts) -> bool {
        let is_priced = self.scanned.load(Ordering::Relaxed) >= price_of(parts);
        (self.is_wanted(parts) || is_priced) && !self.is_stuck()
    }

    fn is_wanted(&self, parts: &Parts) -> bool {
        let trigger = if self.busy.load(Ordering::SeqCst) { SWEEP_TRIGGER } else { 1 };
        let staged = parts.staged.len();
        parts.sinking > 0
            || staged >= trigger && parts.staged_entries() >= parts.pages
            || staged >= STAGED_MOST
    }

    /// Stores what is due, for callers without the newest version.
    pub fn note(&self, parts: &Parts) {
        self.wants.store(self.is_wanted(parts), Ordering::SeqCst);
        self.price.store(price_of(parts), Ordering::Relaxed);
        let over = parts.staged.len().saturating_sub(STAGED_MOST + STAGED_MOST / 2);
        let debt: u64 = parts.staged.iter().take(over).map(|staged| staged.weight()).sum();
        self.debt.store(debt, Ordering::Relaxed);
    }
}

/// About as many blocks as a sweep of all staged memtables would read and write.
fn price_of(parts: &Parts) -> u64 {
    if parts.staged.is_empty() {
        return u64::MAX;
    }
    let tables = parts.staged.iter().flat_map(|staged| &staged.tables);
    let blocks: u64 = tables.map(|table| u64::from(table.run.reference().extent.blocks)).sum();
    2 * parts.staged_entries().min(parts.pages) + blocks
}
