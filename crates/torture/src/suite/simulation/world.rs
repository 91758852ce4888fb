//! The world of a simulation: a device whose power may be cut and whose calls may fail, the states
//! that the database may be in, and the clock.
//!
//! ```text
//!   states     s0 ---- s1 ---- s2 ---- s3 ---- s4        after so many commits of this life
//!                      |               |       |
//!                   durable         returned   begun
//!   after a power cut: one of s1..s4; after the death of the process: s3 or s4; now: s3 or s4
//! ```
//!
//! Only the last commit may have begun and not returned: a commit that failed, whose outcome is not
//! known until the next open, and after which none is accepted.

use crate::suite::support::engine_of;
use chelonia::internals::{
    Clock, CrashDirectory, Directory, FaultDirectory, FaultPlan, Rng, Survivors,
};
use chelonia::{Database, EngineOptions, Key, KeyspaceOptions, Result, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a database holds: keyspace and key.
pub type State = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

/// The keyspaces.
pub const KEYSPACES: [&str; 2] = ["left", "right"];

/// What the database may hold.
pub struct Known {
    states: Vec<State>,
    durable: usize,
    returned: usize,
}

impl Known {
    /// It holds this for good.
    pub fn exactly(state: State) -> Self {
        Self { states: vec![state], durable: 0, returned: 0 }
    }

    /// The state after the last commit that returned.
    pub fn newest(&self) -> &State {
        &self.states[self.returned]
    }

    /// A commit that makes this of it returned, or its outcome is unknown.
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

    /// What reads may show now.
    pub fn now(&self) -> &[State] {
        &self.states[self.returned..]
    }

    /// What the next open may find.
    pub fn after(&self, power_cut: bool) -> &[State] {
        &self.states[if power_cut { self.durable } else { self.returned }..]
    }
}

/// A device with a plan of what fails.
pub struct World {
    /// The device.
    pub directory: CrashDirectory,
    /// What fails.
    pub plan: FaultPlan,
    /// Time.
    pub clock: Clock,
    salt: u64,
    write_share: Option<u64>,
    distances: [u64; 2],
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
            distances: [1 + rng.below(4_000), 500 + rng.below(20_000)],
            leave_log: rng.one_in(2),
        }
    }

    /// Opens the database, and makes its keyspaces if need be.
    pub fn open(&self) -> Result<Database> {
        let inner: Arc<dyn Directory> = Arc::new(self.directory.clone());
        let directory = FaultDirectory::new(inner, self.plan.clone())?;
        let builder = Database::builder("simulation").memory(48 << 20).internals(|internals| {
            internals.directory = Some(Arc::new(directory));
            internals.stepped = true;
            internals.clock = self.clock.clone();
            internals.salt = Some(self.salt);
            internals.write_share = self.write_share;
            internals.log_segment_bytes = Some(16 << 10);
            internals.leave_log = self.leave_log;
        });
        let database = builder.open()?;
        for (number, (name, distance)) in (0..).zip(KEYSPACES.into_iter().zip(self.distances)) {
            let engine = EngineOptions::tiny(engine_of(number), 4 << 10);
            let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(distance);
            database.keyspace(name, options)?;
        }
        Ok(database)
    }

    /// The process dies, and with `power_cut` so does the power: what is left is a device of its
    /// own, on which nothing fails.
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

/// The options of a keyspace that is there: as stored.
pub fn options() -> KeyspaceOptions {
    KeyspaceOptions::new()
}

/// Everything that a database holds.
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
