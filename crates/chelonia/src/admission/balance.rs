//! The division of memory between memtables and caches, by the marginal value of either.
//!
//! Longer checkpoint distances save work of the background; larger caches save waits of readers.
//! Both are time of a thread, so they compare without a constant. At each tick the balance
//! estimates, from the work of the last seconds, how much time a second *one step* of memory would
//! save on either side:
//!
//! ```text
//!   memtables   bytes written * cost of a byte * log2((share + step) / share) / doublings
//!               + reads that found a record flushed only lately * time of a read
//!   caches      reads that found something evicted only lately  * time of a read
//!
//!   cost        processor time of flushes and maintenance, for each byte of a memtable
//!   doublings   log2(stored bytes / distance): the cost is proportional to it [TurtleKV 3.3]
//! ```
//!
//! Flushed and evicted names are remembered for some time, as ghosts (`memory/split.rs`). A step is
//! made only towards a side that is clearly worth more.
//!
//! Thread-safety: owned by the log thread.

use crate::memory::split::{FLUSHED_WINDOW_PART, Saved, WINDOW_PART};
use std::time::Duration;

/// A side must be worth this much more than the other one.
const CLEARLY: f64 = 1.25;

/// The part of the recent work that each tick forgets: it lasts about two seconds.
const FORGOTTEN: f64 = 1.0 / 16.0;

/// Cost of a byte, in nanoseconds, before anything was flushed, and the bytes that it counts for.
const FIRST_COST: f64 = 10.0;
const FIRST_BYTES: f64 = (1 << 20) as f64;

/// The cost is that of the last flushes: of about this many write shares.
const COST_SHARES: f64 = 2.0;

/// Steps of a budget ([`crate::admission::governor`]).
pub const STEPS: u64 = 16;

/// Totals of work since the open.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    /// Bytes of keys and values that commits wrote.
    pub written_bytes: u64,
    /// Bytes of memtables that were flushed.
    pub flushed_bytes: u64,
    /// Processor time of flushes and maintenance.
    pub background: Duration,
    /// Reads that more memory would have saved.
    pub saved: Saved,
    /// Blocks of entries that readers waited for.
    pub misses: u64,
    /// How long they waited.
    pub waited: Duration,
}

/// The division at a tick, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Memory that all memtables may take.
    pub write_share: u64,
    /// One step of it.
    pub step: u64,
    /// Bytes in the data file.
    pub stored: u64,
}

/// The better direction of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Towards memtables.
    Memtables,
    /// Towards caches.
    Caches,
    /// Neither is clearly better.
    Stay,
}

/// Work of the last seconds.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    written_bytes: f64,
    blocks: f64,
    records: f64,
    memtables: f64,
}

/// Recent work, and estimates of its costs.
#[derive(Debug)]
pub struct Balance {
    before: Totals,
    recent: Recent,
    /// Processor time in nanoseconds, and the bytes that were flushed with it.
    cost: (f64, f64),
    /// Waiting time in nanoseconds, and the number of blocks.
    waits: (f64, f64),
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            before: Totals::default(),
            recent: Recent::default(),
            cost: (FIRST_COST * FIRST_BYTES, FIRST_BYTES),
            waits: (0.0, 0.0),
        }
    }
}

impl Balance {
    /// Returns the bytes written up to the last tick.
    pub fn written_bytes(&self) -> u64 {
        self.before.written_bytes
    }

    /// Accounts for the work of a tick; returns the better step.
    pub fn tick(&mut self, totals: Totals, division: Division) -> Step {
        self.count(totals, division);
        let (memtables, caches) = self.values(division);
        // A step less is worth more than a step more.
        let given_up = |share: u64| doublings(share, share.saturating_sub(division.step));
        let added = doublings(division.write_share + division.step, division.write_share);
        let memtables_lost = memtables.0 * given_up(division.write_share) + memtables.1;
        let memtables_gained = memtables.0 * added + memtables.1;
        if memtables_gained > CLEARLY * caches {
            Step::Memtables
        } else if caches > CLEARLY * memtables_lost {
            Step::Caches
        } else {
            Step::Stay
        }
    }

    fn count(&mut self, totals: Totals, division: Division) {
        let before = std::mem::replace(&mut self.before, totals);
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let time = |now: Duration, before: Duration| now.saturating_sub(before).as_nanos() as f64;
        let Totals { saved, .. } = totals;
        for (recent, new) in [
            (&mut self.recent.written_bytes, since(totals.written_bytes, before.written_bytes)),
            (&mut self.recent.blocks, since(saved.blocks, before.saved.blocks)),
            (&mut self.recent.records, since(saved.records, before.saved.records)),
            (&mut self.recent.memtables, since(saved.memtables, before.saved.memtables)),
            (&mut self.waits.0, time(totals.waited, before.waited)),
            (&mut self.waits.1, since(totals.misses, before.misses)),
        ] {
            *recent += new - *recent * FORGOTTEN;
        }
        self.cost.0 += time(totals.background, before.background);
        self.cost.1 += since(totals.flushed_bytes, before.flushed_bytes);
        let most = (COST_SHARES * division.write_share as f64).max(FIRST_BYTES);
        if self.cost.1 > most {
            let part = most / self.cost.1;
            self.cost = (self.cost.0 * part, self.cost.1 * part);
        }
    }

    /// Returns the nanoseconds that a step saves: of the background for a doubling of the write
    /// share, of readers with larger memtables, and of readers with larger caches.
    fn values(&self, division: Division) -> ((f64, f64), f64) {
        let Recent { written_bytes, blocks, records, memtables } = self.recent;
        let wait = self.waits.0 / self.waits.1.max(1.0);
        let all = doublings(division.stored, division.write_share / 2).max(1.0);
        let background = written_bytes * self.cost.0 / self.cost.1 / all;
        // A ghost stands for this many steps: a flush is later by half of what the share gains.
        let steps_of_caches = STEPS as f64 / WINDOW_PART as f64;
        let steps_of_memtables = 2.0 * STEPS as f64 / FLUSHED_WINDOW_PART as f64;
        let caches = blocks.max(records) / steps_of_caches * wait;
        ((background, memtables / steps_of_memtables * wait), caches)
    }
}

/// Returns how often `one` is twice as large as `other`.
fn doublings(one: u64, other: u64) -> f64 {
    (one.max(1) as f64 / other.max(1) as f64).log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIVISION: Division = Division { write_share: 9 << 20, step: 1 << 20, stored: 1 << 30 };

    /// Ten seconds of work, `change` of which happens in each tick; returns the last step.
    fn after(balance: &mut Balance, change: impl Fn(&mut Totals)) -> Step {
        let mut totals = balance.before;
        let ticks = (0..100).map(|_| {
            change(&mut totals);
            balance.tick(totals, DIVISION)
        });
        ticks.last().unwrap()
    }

    fn write(totals: &mut Totals) {
        totals.written_bytes += 1 << 20;
        totals.flushed_bytes += 1 << 20;
        totals.background += Duration::from_millis(10);
    }

    fn read(totals: &mut Totals, misses: u64) {
        totals.misses += misses;
        totals.waited += Duration::from_micros(100) * u32::try_from(misses).unwrap();
    }

    #[test]
    fn the_side_that_saves_more_time_gets_a_step() {
        let mut balance = Balance::default();
        assert_eq!(after(&mut balance, |_| {}), Step::Stay);
        assert_eq!(after(&mut balance, write), Step::Memtables);
        // Ten milliseconds are about 7.8 doublings; one step more is 0.15 of one: 195 us a tick.
        // The ghosts stand for two steps.
        let reads = |saved| {
            move |totals: &mut Totals| {
                write(totals);
                read(totals, 100);
                totals.saved.blocks += saved;
            }
        };
        assert_eq!(after(&mut balance, reads(2)), Step::Memtables);
        assert_eq!(after(&mut balance, reads(4)), Step::Stay);
        assert_eq!(after(&mut balance, reads(8)), Step::Caches);
        // Reads without writes, and reads that nothing would have saved.
        assert_eq!(
            after(&mut balance, |totals| {
                read(totals, 100);
                totals.saved.records += 1;
            }),
            Step::Caches
        );
        let only_misses = |totals: &mut Totals| {
            write(totals);
            read(totals, 1000);
        };
        assert_eq!(after(&mut balance, only_misses), Step::Memtables);
    }

    #[test]
    fn records_that_were_flushed_too_early_count_for_memtables() {
        let mut balance = Balance::default();
        let work = |memtables: u64| {
            move |totals: &mut Totals| {
                write(totals);
                read(totals, 100);
                totals.saved.blocks += 40;
                totals.saved.memtables += memtables;
            }
        };
        assert_eq!(after(&mut balance, work(0)), Step::Caches);
        assert_eq!(after(&mut balance, work(20)), Step::Stay);
        assert_eq!(after(&mut balance, work(40)), Step::Memtables);
    }

    #[test]
    fn a_change_of_the_work_is_followed_within_seconds() {
        let mut balance = Balance::default();
        after(&mut balance, write);
        let mut totals = balance.before;
        let ticks = (1..100).find(|_| {
            read(&mut totals, 100);
            totals.saved.blocks += 20;
            balance.tick(totals, DIVISION) == Step::Caches
        });
        assert!(ticks.is_some_and(|ticks| ticks <= 30), "{ticks:?}");
    }
}
