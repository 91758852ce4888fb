//! Maintenance: what engines do on their own, a unit at a time, when nothing waits to be drained.
//!
//! The drain thread does it, unit after unit. Some is for reads: an engine wants what they have
//! paid for, and they pay until it is done. Some is what writes left to be merged: an engine owes
//! it (`debt_bytes`), writers are slowed down as that grows, and all workers take part. What waits
//! to be drained comes first.
//!
//! What cannot be done for want of room, or because something cannot be read, is left: everything
//! can be read and written without it, and who needs what cannot be read is told. A unit that fails
//! may have written much in vain. So it is *refused* for a while, which doubles each time, and on a
//! full device until there is room; or until the engine absorbed something.
//! Before that small units are tried that gain room, each with the checkpoint that brings it.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::SeqNo;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::engine::{Absorbed, Engine, Work};
use crate::flush::background::{RETRY_INTERVAL, RETRY_INTERVAL_MAX};
use crate::memtable::SortedBatch;
use crate::runtime::sync::Ordering;
use crate::runtime::workers::Workers;
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use std::time::Duration;

/// It makes a checkpoint when so much waits for one to come free, or one of so many parts of the
/// data file: after every unit it would take a good part of the time. (Drains, which are made in a
/// row, let more of it come together.)
const UNDURABLE_BYTES_MAX: u64 = 64 << 20;
const UNDURABLE_DIVISOR: u64 = 32;

/// So many units in a row gain room on a device that is nearly full, each with a checkpoint.
const GAINS_MAX: usize = 8;

/// A full device has room again for a unit if it has so much, or as much as is owed.
const ROOM_BYTES_MIN: u64 = 1 << 20;
const ROOM_BYTES_MAX: u64 = 64 << 20;

/// A unit of maintenance that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Everything up to this had been absorbed.
    absorbed: SeqNo,
    /// The free blocks of the data file then, if there was no room.
    full: Option<u64>,
    /// How long it is to be left alone.
    wait: Duration,
    /// Until this time.
    until: Duration,
}

/// What it is like when somebody asks for what was refused.
struct Now<'a> {
    absorbed: SeqNo,
    free_blocks: u64,
    /// `None` where no time passes: in a stepped database, whose runs can be replayed. There only
    /// what was absorbed counts: when blocks come free depends on who looks at them.
    time: Option<Duration>,
    /// Whether the device has room, which it takes a call to find out.
    has_room: &'a dyn Fn() -> bool,
}

impl Refused {
    /// After a failure, for want of room or not, behind one `before` it.
    fn new(before: Option<Self>, is_full: bool, now: &Now<'_>) -> Self {
        let wait = before.map_or(RETRY_INTERVAL, |before| 2 * before.wait).min(RETRY_INTERVAL_MAX);
        let full = is_full.then_some(now.free_blocks);
        let until = now.time.unwrap_or_default() + wait;
        Self { absorbed: now.absorbed, full, wait, until }
    }

    /// True if it is still to be left alone.
    fn lasts(&mut self, now: &Now<'_>) -> bool {
        if self.absorbed != now.absorbed {
            return false;
        }
        let Some(time) = now.time else { return true };
        if time < self.until {
            return true;
        }
        let has_more = self.full.is_some_and(|free_blocks| now.free_blocks > free_blocks);
        if self.full.is_some() && !has_more && !(now.has_room)() {
            self.until = time + self.wait;
            return true;
        }
        // Whoever asks next is told the same.
        self.full = None;
        false
    }
}

impl Core {
    /// True if there may be maintenance to do in `keyspace` that can be done now.
    pub fn wants_maintenance(&self, keyspace: &KeyspaceCore) -> bool {
        keyspace.engine.wants_maintenance() && !self.is_refused(keyspace)
    }

    fn is_refused(&self, keyspace: &KeyspaceCore) -> bool {
        let Some(before) = *keyspace.refused.lock() else { return false };
        let mut refused = before;
        let lasts = self.with_now(keyspace, |now| refused.lasts(now));
        // Somebody else may know better meanwhile.
        let mut current = keyspace.refused.lock();
        if *current == Some(before) {
            *current = Some(refused);
        }
        lasts
    }

    fn with_now<T>(&self, keyspace: &KeyspaceCore, ask: impl FnOnce(&Now<'_>) -> T) -> T {
        let bytes = keyspace.engine.debt_bytes().clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX);
        let absorbed = keyspace.latest.lock().absorbed;
        ask(&Now {
            absorbed,
            free_blocks: self.storage.stats().space.free_blocks,
            time: (!self.stepped).then(|| self.clock.now()),
            has_room: &|| self.may_have_room(bytes),
        })
    }

    /// Lets every engine do the maintenance that waits, as long as nothing waits to be drained.
    /// What it did is durable then, if it came to the end.
    pub fn maintain_all(&self) -> Result<()> {
        let mut waiting = self.all_keyspaces();
        while !waiting.is_empty() {
            for place in (0..waiting.len()).rev() {
                if self.has_finalized() || self.signals.is_stopping() {
                    // The drain makes a checkpoint; after a close what was done is done again.
                    return Ok(());
                }
                if !self.maintain_unit(&waiting[place])? {
                    waiting.swap_remove(place);
                }
            }
        }
        self.checkpoint_if_undurable(1)
    }

    /// True if memtables wait to be drained.
    pub fn has_finalized(&self) -> bool {
        self.counters.finalized_bytes.load(Ordering::Relaxed) > 0
    }

    /// Lets the engine of `keyspace` do one unit of maintenance; false if there is none that can be
    /// done.
    fn maintain_unit(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        if self.is_refused(keyspace) {
            return Ok(false);
        }
        let unit = |engine: &dyn Engine, work: &Work<'_>| {
            let _limited = self.keep_for_flush(self.kept_bytes());
            engine.maintain(work)
        };
        match self.maintain(keyspace, unit) {
            Ok(true) => {
                *keyspace.refused.lock() = None;
                self.checkpoint_if_undurable(self.maintenance_undurable_max())?;
                Ok(true)
            }
            Ok(false) => {
                if !keyspace.engine.wants_maintenance() {
                    // What was refused was done by a pass that gained space.
                    *keyspace.refused.lock() = None;
                }
                Ok(false)
            }
            Err(error) if error.is_passing() && self.gain_room_in(keyspace)? => Ok(true),
            Err(error) if self.is_harmless_to_maintenance(&error) => {
                let before = *keyspace.refused.lock();
                let refuse = |now: &Now<'_>| Refused::new(before, error.is_passing(), now);
                *keyspace.refused.lock() = Some(self.with_now(keyspace, refuse));
                Ok(false)
            }
            Err(error) => Err(self.health.stop(error)),
        }
    }

    /// True if nothing was changed: there was no room, or something could not be read.
    pub fn is_harmless_to_maintenance(&self, error: &Error) -> bool {
        let is_read = error.kind() == ErrorKind::Io && !self.storage.has_failed_write();
        error.is_passing() || error.kind() == ErrorKind::Corrupt || is_read
    }

    /// How much of the data file may wait for the checkpoint after maintenance.
    fn maintenance_undurable_max(&self) -> u64 {
        let in_use = self.storage.stats().space.used_blocks * BLOCK_BYTES_U64;
        (in_use / UNDURABLE_DIVISOR).min(UNDURABLE_BYTES_MAX)
    }

    /// Lets the engine of `keyspace` free some space on a device that is nearly full, and makes
    /// that durable; false if there is nothing to gain, or not even room for that. It leaves
    /// enough to flush memtables: a snapshot may keep what it replaces.
    pub fn gain_room_in(&self, keyspace: &KeyspaceCore) -> Result<bool> {
        let unit = |engine: &dyn Engine, work: &Work<'_>| {
            let _limited = self.keep_for_flush(0);
            engine.make_room(work)
        };
        let gained = (0..GAINS_MAX).try_fold(false, |before, _| {
            match self.maintain(keyspace, unit) {
                Ok(false) => Err(Ok(before)),
                Err(error) if self.is_harmless_to_maintenance(&error) => Err(Ok(before)),
                Err(error) => Err(Err(self.health.stop(error))),
                Ok(true) => match self.checkpoint_now() {
                    Err(error) if error.is_passing() => Err(Ok(before)),
                    Err(error) => Err(Err(error)),
                    Ok(()) => {
                        // What it freed comes free when no reader is on the way through it.
                        self.storage.epochs().settle();
                        Ok(true)
                    }
                },
            }
        });
        gained.or_else(|ended| ended)
    }

    /// Lets the engine of `keyspace` do `unit`; false if there is none.
    fn maintain(
        &self,
        keyspace: &KeyspaceCore,
        unit: impl FnOnce(&dyn Engine, &Work<'_>) -> Result<Option<Absorbed>>,
    ) -> Result<bool> {
        let partial = keyspace.drain.lock();
        if !partial.versions.is_empty() || keyspace.check_exists().is_err() {
            // A drain stopped half way, and its part of the memtable is not published yet; or the
            // keyspace was dropped, and what it has is given back.
            return Ok(false);
        }
        // Writers wait for what is owed. Else nobody waits, and readers want the processors.
        let owes = keyspace.engine.debt_bytes() > 0;
        let workers = if owes { self.workers } else { Workers::inline() };
        let work = Work { workers: &workers, progress: &|_| {} };
        let maintained = unit(&*keyspace.engine, &work);
        if owes {
            self.refresh_backlog();
            self.pacer.wake();
        }
        let Some(absorbed) = maintained? else { return Ok(false) };
        let lost = absorbed.lost.iter().map(|owned| owned.extent.bytes()).sum::<u64>();
        let version = keyspace.lifetimes.hold(absorbed.version, absorbed.lost);
        self.records.refresh::<SortedBatch>(&keyspace.fresh, version.number(), &[]);
        keyspace.republish(version)?;
        // What it no longer needs is free after the next checkpoint.
        self.counters.undurable_bytes.fetch_add(lost.max(1), Ordering::Relaxed);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time at which everything is as it was.
    fn at(millis: u64) -> Now<'static> {
        let time = Some(Duration::from_millis(millis));
        Now { absorbed: SeqNo(7), free_blocks: 10, time, has_room: &|| false }
    }

    #[test]
    fn what_found_no_room_waits_for_some_and_longer_each_time() {
        let mut refused = Refused::new(None, true, &at(1000));
        let with_room = |millis| Now { has_room: &|| true, ..at(millis) };
        assert!(refused.lasts(&with_room(1199)), "it is not even asked");
        assert!(refused.lasts(&at(1200)));
        assert!(refused.lasts(&with_room(1399)), "it was asked");
        let mut other = refused;
        assert!(!other.lasts(&Now { free_blocks: 11, ..at(1400) }));
        assert!(!refused.lasts(&with_room(1400)));
        assert!(!refused.lasts(&at(1401)), "who does it is told what who woke him was");
        let mut again = refused;
        for wait in [400, 800, 1600, 3200, 6400, 12_000, 12_000] {
            again = Refused::new(Some(again), true, &at(0));
            assert_eq!((again.wait, again.until), (Duration::from_millis(wait), again.wait));
        }
        assert!(again.lasts(&at(11_999)));
        assert!(!again.lasts(&Now { absorbed: SeqNo(8), ..at(1) }), "an absorb begins anew");
    }

    #[test]
    fn what_could_not_be_read_is_only_a_matter_of_time() {
        let mut refused = Refused::new(None, false, &at(0));
        assert!(refused.lasts(&Now { free_blocks: 99, ..at(199) }));
        assert!(!refused.lasts(&at(200)));
        // No time passes: only what was absorbed counts.
        let mut full = Refused::new(None, true, &at(0));
        for refused in [&mut refused, &mut full] {
            assert!(refused.lasts(&Now { time: None, free_blocks: 99, ..at(0) }));
            assert!(!refused.lasts(&Now { time: None, absorbed: SeqNo(8), ..at(0) }));
        }
    }
}
