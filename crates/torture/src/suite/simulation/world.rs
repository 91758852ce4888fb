//! The environment of a simulation: a device whose calls may fail and whose power may be cut, the
//! clock, and the possible states of the database.
//!
//! ```text
//!   states     s0 ---- s1 ---- s2 ---- s3 ---- s4        after each commit of this life
//!                      |               |       |
//!                   durable         returned   begun
//!   after a power cut: one of s1..s4; after the death of the process: s3 or s4; now: s3 or s4
//! ```
//!
//! At most one commit, the last, has begun and not returned: it failed, its outcome is unknown
//! until the next open, and no further ones are accepted.

use crate::suite::support::{ENGINES, KEYSPACES, compression_of, engine_of, layout_of};
use chelonia::internals::{
    Clock, CrashDirectory, Directory, FaultDirectory, FaultPlan, Rng, Survivors,
};
use chelonia::{Database, EngineOptions, Key, KeyspaceOptions, Result, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The content of a database, by keyspace and key.
pub type State = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

/// The possible states of the database.
pub struct Known {
    states: Vec<State>,
    durable: usize,
    returned: usize,
}

impl Known {
    /// Only this state, durably.
    pub fn exactly(state: State) -> Self {
        Self { states: vec![state], durable: 0, returned: 0 }
    }

    /// The state after the last commit that returned.
    pub fn newest(&self) -> &State {
        &self.states[self.returned]
    }

    /// Adds the state after a commit that returned, or whose outcome is unknown.
    pub fn commit(&mut self, state: State, returned: bool) {
        self.states.truncate(self.returned + 1);
        self.states.push(state);
        if returned {
            self.returned += 1;
        }
    }

    /// Everything that returned is durable.
    pub fn all_is_durable(&mut self) {
        self.durable = self.returned;
    }

    /// The states that reads may show now.
    pub fn now(&self) -> &[State] {
        &self.states[self.returned..]
    }

    /// The states that the next open may find.
    pub fn after(&self, power_cut: bool) -> &[State] {
        &self.states[if power_cut { self.durable } else { self.returned }..]
    }
}

/// A device, its planned faults, and a clock.
pub struct World {
    /// The device.
    pub directory: CrashDirectory,
    /// The planned faults.
    pub plan: FaultPlan,
    /// The simulated clock.
    pub clock: Clock,
    salt: u64,
    write_share: Option<u64>,
    /// The checkpoint distances of the keyspaces.
    distances: [u64; ENGINES],
    /// A close makes no checkpoint.
    leave_log: bool,
}

impl World {
    /// An empty device, and a geometry.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            directory: CrashDirectory::new(),
            plan: FaultPlan::new(),
            clock: Clock::manual(),
            salt: rng.next_u64(),
            write_share: rng.one_in(3).then_some(16 << 10),
            distances: std::array::from_fn(|number| match number % 2 {
                0 => 1 + rng.below(4_000),
                _ => 500 + rng.below(20_000),
            }),
            leave_log: rng.one_in(2),
        }
    }

    /// Opens the database, and creates its keyspaces if necessary.
    pub fn open(&self) -> Result<Database> {
        let inner: Arc<dyn Directory> = Arc::new(self.directory.clone());
        let directory = FaultDirectory::new(inner, self.plan.clone())?;
        let builder = Database::builder("simulation").memory(48 << 20);
        let builder = builder.log_layout(layout_of(self.salt / 5)).internals(|internals| {
            internals.directory = Some(Arc::new(directory));
            internals.stepped = true;
            internals.clock = self.clock.clone();
            internals.salt = Some(self.salt);
            internals.write_share = self.write_share;
            internals.log_segment_bytes = Some(16 << 10);
            internals.leave_log = self.leave_log;
        });
        let database = builder.open()?;
        // One of each engine, beginning with one that follows from the seed.
        let first = self.salt % ENGINES as u64;
        for (number, (name, distance)) in (first..).zip(KEYSPACES.into_iter().zip(self.distances)) {
            let engine = EngineOptions::tiny(engine_of(number), 4 << 10);
            let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(distance);
            let options = options.compression(compression_of(engine_of(number), self.salt / 5));
            database.keyspace(name, options)?;
        }
        Ok(database)
    }

    /// The process dies; with `power_cut` the power is cut as well. The remaining files are on a
    /// new device, on which nothing fails.
    pub fn die(&mut self, power_cut: bool, rng: &mut Rng) {
        self.plan = FaultPlan::new();
        if !power_cut {
            self.directory = self.directory.after_process_death();
            return;
        }
        let boundary = self.directory.boundary();
        let journal = self.directory.journal();
        let pending = journal.pending(boundary);
        let one = usize::try_from(rng.below(pending.max(1) as u64)).unwrap();
        let survivors = match rng.below(7) {
            0 => Survivors::None,
            1 => Survivors::All,
            2 => Survivors::AllBut(one),
            3 => Survivors::Only(one),
            4 => Survivors::Prefix(one),
            _ => Survivors::Subset(rng.next_u64()),
        };
        self.directory = CrashDirectory::from_files(&journal.image(boundary, survivors));
    }
}

/// The options of an existing keyspace: as stored.
pub fn options() -> KeyspaceOptions {
    KeyspaceOptions::new()
}

/// Reads the content of a database.
pub fn read(database: &Database) -> Result<State> {
    let mut state = State::new();
    for name in KEYSPACES {
        for entry in database.keyspace(name, options())?.iter() {
            let (key, value): (Key, Value) = entry?;
            state.insert((name, key.to_vec()), value.to_vec());
        }
    }
    Ok(state)
}
