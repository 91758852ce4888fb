//! The seam: what an engine must do.
//!
//! An engine owns the durable structure of one keyspace and nothing else. It *absorbs* sorted
//! updates and gives *versions*; versions answer reads. Logs, memtables, snapshots, recovery and
//! background threads are not its business: `db` calls it, it calls the parts and storage below it.
//!
//! ```text
//!   db                                engine                          storage
//!   finalized memtable -- absorb ---> merges, writes new extents ---> write_at
//!                      <-- Absorbed { version, gained, lost } --
//!   checkpoint        -- root -----> describes its newest version
//!                      <-- root blob (goes into the catalog) --
//!   reads             -- Version::{look, read, multi_get, cursor} --> block cache
//! ```
//!
//! Rules of the contract:
//! 1. Absorbs, maintenance and root are called by one thread at a time per engine (a lock of db's);
//!    reads of versions come from any thread at any time.
//! 2. A version never changes, whatever the engine does later. It stays readable while anyone
//!    holds it: extents that it refers to are reused only after db found that neither a holder nor
//!    the durable root can reach them.
//! 3. Everything a version refers to has been written (not necessarily synced) when absorb returns.
//!    db syncs before it makes a root durable.
//! 4. After an error from absorb or maintain the newest version is the one before the call, and
//!    what the call allocated has been given back.

use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::error::{Error, Result};
use crate::base::ids::{Extent, Generation};
use crate::base::keys::{Direction, KeyRange};
pub use crate::base::stream::Found;
use crate::base::stream::{LargeRef, SortedStream, SortedUpdates, Update};
use crate::memory::epoch::Guard;
use crate::runtime::sync::Arc;
use crate::runtime::workers::Workers;
use crate::storage::Storage;
use crate::storage::cache::Presence;

mod kind;
mod options;

pub use kind::EngineKind;
pub(crate) use options::PIVOTS_MAX;
pub use options::{AutumnOptions, EngineOptions, LevelOptions, LiveOptions, TurtleOptions};

/// The durable structure of one keyspace.
pub trait Engine: Send + Sync {
    /// The newest version.
    fn version(&self) -> Arc<dyn Version>;

    /// Takes in `updates` and makes the next version: newer than everything the engine has.
    fn absorb(&self, updates: &dyn SortedUpdates, work: &Work<'_>) -> Result<Absorbed>;

    /// The same on a device that is nearly full: writes hardly more than the updates.
    fn absorb_minimal(&self, updates: &dyn SortedUpdates, work: &Work<'_>) -> Result<Absorbed>;

    /// Does a little work that frees more space than it takes, when the next checkpoint has been
    /// made: on a device that is nearly full, whether it is worth that otherwise or not. `None` if
    /// there is nothing to gain.
    fn reclaim(&self, work: &Work<'_>) -> Result<Option<Absorbed>>;

    /// The bytes that [`Engine::reclaim`] takes before it frees some, about. Commits ask: it
    /// waits for nothing that takes long.
    fn reclaim_needs_bytes(&self) -> u64;

    /// Describes the newest version so that `crate::engines::open` finds it again. What the blob
    /// refers to has been written when this returns.
    fn root(&self) -> Result<Vec<u8>>;

    /// Does one bounded unit of background work on the newest version, or none if there is none.
    fn maintain(&self, work: &Work<'_>) -> Result<Option<Absorbed>>;

    /// True if [`Engine::maintain`] may have something to do. Asked often, by any thread.
    fn wants_maintenance(&self) -> bool;

    /// Says whether updates are expected soon, as they are at first; told at every tick. While they
    /// are not, what [`Engine::maintain`] does for reads need not be done again soon, and is worth
    /// more.
    fn expect_updates(&self, expected: bool);

    /// Background work that waits, in bytes to be rewritten: db slows writers as it grows.
    fn debt_bytes(&self) -> u64;

    /// The checkpoint distance changed (bytes of updates that come with one absorb).
    fn set_checkpoint_distance(&self, bytes: u64);

    /// Options changed that may change while the keyspace is open. Only those of this engine come.
    fn set_live_options(&self, options: LiveOptions);

    /// Figures by cause.
    fn stats(&self) -> EngineStats;
}

/// An immutable state of one engine.
pub trait Version: Send + Sync {
    /// The value of `key`, as far as that is known without reading from the device.
    fn look(&self, key: &[u8], hash: KeyHash, guard: &Guard) -> Result<Looked>;

    /// The value of `key`, if it has one: goes on where [`Version::look`] met what is not in
    /// memory. The caller holds no guard, for a read may take long.
    fn read(&self, key: &[u8], hash: KeyHash, from: Progress) -> Result<Answer>;

    /// The value of `key`, if it has one. The caller holds no guard.
    fn get(&self, key: &[u8], hash: KeyHash) -> Result<Answer> {
        self.read(key, hash, Progress::default())
    }

    /// The values of `keys`, in the order asked. What is not in memory is read together. The caller
    /// holds no guard.
    fn multi_get(&self, keys: &[(&[u8], KeyHash)]) -> Result<Vec<Answer>> {
        keys.iter().map(|(key, hash)| self.get(key, *hash)).collect()
    }

    /// The entries within `range`, in `direction`; holds the version while it lives. The stream has
    /// no tombstones.
    fn cursor(
        self: Arc<Self>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn SortedStream + Send>>;

    /// Visits every extent that the version refers to, each once. Reads metadata, never data. Where
    /// that cannot be read it goes on behind it, and fails in the end.
    fn extents(&self, visit: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()>;

    /// Writes the version's structure as text for people: where everything is and how full.
    fn describe(&self, out: &mut dyn std::fmt::Write) -> Result<()>;

    /// Reads everything and checks every checksum and every invariant; findings that do not stop
    /// the walk go to `report`.
    fn verify(&self, report: &mut dyn CheckReport) -> Result<()>;

    /// Hands everything that can be read to `found`, whatever is damaged: what is said of a key in
    /// the order in which it was said, the oldest first. Fails only as `found` does.
    fn salvage(&self, found: &mut dyn Salvaged) -> Result<()>;
}

/// What a lookup in memory gave.
pub enum Looked {
    /// What [`Version::get`] would give.
    Answer(Answer),
    /// Something has to be read first.
    OnDevice(Progress),
}

/// How far a lookup came in memory, as its engine counts that: what was passed has not the key, and
/// was paid for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress(pub usize);

/// What a lookup in a version gave.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answer {
    /// What was found, if anything.
    pub found: Option<Found>,
    /// Where the blocks of entries were in which it was found.
    pub presence: Presence,
}

/// Keys that [`look_many`] looks for under one guard.
const LOOKS_UNDER_GUARD: usize = 128;

/// Looks for a key in memory: [`Version::look`].
pub type Look<'l> = dyn FnMut(&[u8], KeyHash, &Guard) -> Result<Looked> + 'l;

/// Finds what is left of many keys, given how far each came in memory.
pub type ReadRest<'r> =
    dyn FnMut(&[(&[u8], KeyHash)], &[Progress], &mut dyn FnMut(usize, Answer)) -> Result<()> + 'r;

/// The values of many keys: looks for all of them in memory first, and reads the rest together when
/// no guard is held.
pub fn look_many(
    storage: &Storage,
    keys: &[(&[u8], KeyHash)],
    look: &mut Look<'_>,
    read: &mut ReadRest<'_>,
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = vec![Answer::default(); keys.len()];
    let (mut rest, mut passed, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut guard = storage.epochs().pin();
    for (place, (key, hash)) in keys.iter().enumerate() {
        if place % LOOKS_UNDER_GUARD == LOOKS_UNDER_GUARD - 1 {
            drop(guard);
            guard = storage.epochs().pin();
        }
        match look(key, *hash, &guard)? {
            Looked::Answer(answer) => answers[place] = answer,
            Looked::OnDevice(from) => {
                rest.push((*key, *hash));
                passed.push(from);
                places.push(place);
            }
        }
    }
    drop(guard);
    if !rest.is_empty() {
        read(&rest, &passed, &mut |index, answer| answers[places[index]] = answer)?;
    }
    Ok(answers)
}

/// An extent that a version refers to. Its generation tells db which versions can know it: those
/// made after it was allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OwnedExtent {
    /// The blocks.
    pub extent: Extent,
    /// The generation its blocks were sealed with.
    pub generation: Generation,
    /// True for a large value's.
    pub large_value: bool,
}

impl From<&LargeRef> for OwnedExtent {
    fn from(large: &LargeRef) -> Self {
        Self { extent: large.extent, generation: large.generation, large_value: true }
    }
}

/// What an absorb did.
pub struct Absorbed {
    /// The next version.
    pub version: Arc<dyn Version>,
    /// Extents that the next version refers to and the one before did not. Large values that came
    /// with the updates count as gained.
    pub gained: Vec<OwnedExtent>,
    /// Extents that the version before referred to and the next one does not.
    pub lost: Vec<OwnedExtent>,
}

/// What an engine may use while it works.
pub struct Work<'a> {
    /// Threads to spread independent parts over.
    pub workers: &'a Workers,
    /// Called with the ranks of updates absorbed since the last call; for progress and pacing.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Where `salvage` puts what it found.
pub trait Salvaged {
    /// This is said of `key`, later than all that was said of it before.
    fn update(&mut self, key: &[u8], update: Update<'_>) -> Result<()>;
    /// What was said of these keys at this point cannot be read: what was said of them before may
    /// be out of date.
    fn lost(&mut self, keys: KeyRange, cause: Error) -> Result<()>;
}

/// Figures of one engine, by cause. Byte counts are totals since open.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct EngineStats {
    /// Height of the structure (0 when empty).
    pub height: u32,
    /// Tree nodes or comparable units of structure.
    pub nodes: u64,
    /// Runs or pages that hold entries at rest (leaves).
    pub leaves: u64,
    /// Runs or pages that hold entries on their way (buffers).
    pub buffered_runs: u64,
    /// Key and inline value bytes in leaves.
    pub leaf_bytes: u64,
    /// Key and inline value bytes in buffers.
    pub buffered_bytes: u64,
    /// Blocks' bytes that the newest version occupies.
    pub disk_bytes: u64,
    /// Bytes written for runs that hold entries.
    pub run_bytes_written: u64,
    /// Bytes written for the structure above them.
    pub node_bytes_written: u64,
    /// Bytes read by merges.
    pub merge_bytes_read: u64,
    /// Things that happened, by name, in a fixed order: splits, joins, flushes ...
    pub events: Vec<(&'static str, u64)>,
}

#[cfg(test)]
pub mod tests;
