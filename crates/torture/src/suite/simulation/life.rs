//! One life of a database in a simulation: from an open to its end, with failing calls.

use super::world::{Known, State, World, options, read};
use crate::suite::support::{KEYSPACES, below, one_of};
use crate::test::Tally;
use chelonia::internals::{Call, Failure, Fault, Rng, tick};
use chelonia::{Database, Durability, Error, ErrorKind, Result, Snapshot};
use std::time::Duration;

/// Commits choose among few keys, so that they overwrite each other.
const KEYS: u64 = 60;

/// The end of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A close, or all handles are dropped.
    Close,
    /// The death of the process.
    Death,
    /// A power cut.
    PowerCut,
}

/// An open database.
pub struct Life<'w> {
    world: &'w World,
    database: Database,
    known: Known,
    held: Option<(Snapshot, State)>,
    /// A write failed: no further ones may be accepted.
    stopped: bool,
    /// The outcome of the last commit is unknown: no further ones are tried.
    unsure: bool,
    rng: &'w mut Rng,
    tally: &'w mut Tally,
}

impl<'w> Life<'w> {
    /// Begins with a newly opened database in one of the known states.
    pub fn begin(
        world: &'w World,
        database: Database,
        known: Known,
        rng: &'w mut Rng,
        tally: &'w mut Tally,
    ) -> Self {
        Self { world, database, known, held: None, stopped: false, unsure: false, rng, tally }
    }

    /// Runs `steps` random operations; some fail.
    pub fn live(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Ends the life; returns the states that the next open may find.
    pub fn end(self, by_close: bool, power_cut: bool) -> Vec<State> {
        let Life { database, mut known, held, stopped, tally, .. } = self;
        drop(held);
        if by_close {
            match database.close() {
                Ok(()) if !stopped => known.all_is_durable(),
                Ok(()) => {}
                Err(error) => check_kind(&error, tally),
            }
        }
        known.after(power_cut).to_vec()
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0..18 => self.commit(1),
            18..22 => {
                let entries = 2 + below(self.rng, 10);
                self.commit(entries);
            }
            22..26 => self.get(),
            26..28 => self.scan(),
            28 => self.hold(),
            29 => self.look_at_held(),
            30 => self.make_durable(|database| database.sync()),
            31 => self.make_durable(|database| database.checkpoint()),
            32 => {
                self.world.clock.advance(Duration::from_millis(self.rng.below(3_000)));
                self.make_durable(tick);
            }
            33 => self.turn_dial(),
            34 => self.verify(),
            35 => self.world.plan.heal(),
            36 => self.limit_space(),
            _ => self.plan_a_fault(),
        }
    }

    fn failed(&mut self, error: &Error) {
        check_kind(error, self.tally);
    }

    fn commit(&mut self, entries: usize) {
        if self.unsure {
            return;
        }
        let level = one_of(
            self.rng,
            &[Durability::Memory, Durability::Process, Durability::Process, Durability::Sync],
        );
        let mut next = self.known.newest().clone();
        let mut batch = self.database.batch();
        for _ in 0..entries {
            let name = one_of(self.rng, &KEYSPACES);
            let key = self.rng.below(KEYS).to_string().into_bytes();
            let Ok(keyspace) = self.database.keyspace(name, options()) else { return };
            if self.rng.one_in(4) {
                batch.remove(&keyspace, &key);
                next.remove(&(name, key));
                continue;
            }
            let length = match self.rng.below(30) {
                0 => 33_000 + below(self.rng, 9_000),
                1 => below(self.rng, 9_000),
                2..4 => 500 + below(self.rng, 2_500),
                _ => below(self.rng, 200),
            };
            let mut value = vec![0; length];
            self.rng.fill(&mut value);
            batch.insert(&keyspace, &key, &value);
            next.insert((name, key), value);
        }
        self.tally.add("commits", 1);
        match batch.commit_with(level) {
            Ok(()) => {
                assert!(!self.stopped, "a commit was accepted after a failed write");
                self.known.commit(next, true);
                if level == Durability::Sync {
                    self.known.all_is_durable();
                }
            }
            Err(error) => {
                self.failed(&error);
                match error.kind() {
                    // Detected before anything is written, or by the flush that the committing
                    // thread had to do after its commit.
                    ErrorKind::NoSpace | ErrorKind::TooManyFiles => {
                        assert!(!self.stopped, "{error}");
                        self.find_out(next);
                    }
                    // The outcome of the failed commit is unknown; later ones did nothing.
                    _ if !self.stopped => {
                        self.known.commit(next, false);
                        self.stopped = true;
                    }
                    kind => assert_eq!(kind, ErrorKind::Stopped, "{error}"),
                }
            }
        }
    }

    /// Determines whether the commit that leads to `next` is visible; it must be so completely or
    /// not at all.
    fn find_out(&mut self, next: State) {
        match read(&self.database) {
            Ok(found) if found == next => self.known.commit(next, true),
            Ok(found) => assert!(found == *self.known.newest(), "a commit is partly visible"),
            // It cannot be determined: the life continues without commits.
            Err(error) => {
                self.failed(&error);
                self.known.commit(next, false);
                self.stopped = true;
                self.unsure = true;
            }
        }
    }

    /// Syncs, or makes a checkpoint.
    fn make_durable(&mut self, how: impl FnOnce(&Database) -> Result<()>) {
        match how(&self.database) {
            // In a stopped database nothing becomes durable any more.
            Ok(()) if !self.stopped => self.known.all_is_durable(),
            Ok(()) => {}
            Err(error) => {
                self.failed(&error);
                if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::TooManyFiles) {
                    self.stopped = true;
                }
            }
        }
    }

    fn get(&mut self) {
        let name = one_of(self.rng, &KEYSPACES);
        let key = self.rng.below(KEYS).to_string().into_bytes();
        let found = self.database.keyspace(name, options()).and_then(|keyspace| keyspace.get(&key));
        self.tally.add("reads", 1);
        match found {
            Ok(found) => {
                let place = (name, key);
                let is = |state: &State| state.get(&place).map(Vec::as_slice) == found.as_deref();
                assert!(self.known.now().iter().any(is), "a wrong answer for {place:?}");
            }
            Err(error) => self.failed(&error),
        }
    }

    fn scan(&mut self) {
        self.tally.add("reads", 1);
        match read(&self.database) {
            Ok(found) => assert!(
                self.known.now().contains(&found),
                "a scan shows a state that never existed"
            ),
            Err(error) => self.failed(&error),
        }
    }

    fn hold(&mut self) {
        // After a commit of unknown outcome, the content of a snapshot is unknown.
        if !self.stopped {
            self.held = Some((self.database.snapshot(), self.known.newest().clone()));
        }
    }

    fn look_at_held(&mut self) {
        let Some((snapshot, state)) = self.held.take() else { return };
        let name = one_of(self.rng, &KEYSPACES);
        let shown = self.database.keyspace(name, options()).and_then(|keyspace| {
            let entries = snapshot
                .iter(&keyspace)
                .map(|entry| entry.map(|(key, value)| ((name, key.to_vec()), value.to_vec())));
            entries.collect::<Result<State>>()
        });
        self.tally.add("reads", 1);
        match shown {
            Ok(shown) => {
                let expected = state.iter().filter(|((of, _), _)| *of == name);
                assert!(expected.eq(shown.iter()), "a snapshot changed");
            }
            Err(error) => self.failed(&error),
        }
        if self.rng.one_in(2) {
            self.held = Some((snapshot, state));
        }
    }

    fn turn_dial(&mut self) {
        let name = one_of(self.rng, &KEYSPACES);
        let bytes = 1 + self.rng.below(20_000);
        let turned = self
            .database
            .keyspace(name, options())
            .and_then(|keyspace| keyspace.set_checkpoint_distance(bytes));
        if let Err(error) = turned {
            self.failed(&error);
        }
    }

    /// `verify` finds nothing: no blocks are damaged here.
    fn verify(&mut self) {
        match self.database.verify() {
            Ok(report) => {
                for finding in &report.findings {
                    assert_ne!(finding.kind(), ErrorKind::Corrupt, "{finding}");
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Fills the device, or frees space on it.
    fn limit_space(&mut self) {
        let room = self.rng.below(120_000);
        let limit = (!self.rng.one_in(3)).then(|| self.world.plan.taken_bytes() + room);
        self.world.plan.set_capacity(limit);
    }

    fn plan_a_fault(&mut self) {
        self.world.plan.fail(fault(self.rng));
        self.tally.add("faults planned", 1);
    }
}

/// Checks that a reported error is of a kind that such a device can cause.
fn check_kind(error: &Error, tally: &mut Tally) {
    tally.add("errors reported", 1);
    let kind = error.kind();
    let possible = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::TooManyFiles, ErrorKind::Stopped];
    assert!(possible.contains(&kind), "{kind:?}: {error}");
}

/// A fault soon to come.
pub fn fault(rng: &mut Rng) -> Fault {
    let call = one_of(rng, &Call::ALL);
    let most = if rng.one_in(2) { 4 } else { 40 };
    let after = rng.below(most);
    let fault = if rng.one_in(3) { Fault::sticky(call, after) } else { Fault::once(call, after) };
    fault.with(one_of(
        rng,
        &[
            Failure::Io,
            Failure::Io,
            Failure::NoSpace,
            Failure::TooManyFiles,
            Failure::IoHalfDone,
            Failure::IoAllDone,
            Failure::IoForgetting,
        ],
    ))
}
