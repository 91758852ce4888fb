//! The script during which calls fail: all operations that touch files.

use crate::suite::support::LAYOUTS;
use chelonia::internals::{
    Call, Directory, FaultDirectory, FaultPlan, MemoryDirectory, backup_into, unreachable_blocks,
};
use chelonia::{
    Batch, Database, DatabaseBuilder, Durability, EngineKind, EngineOptions, Error, ErrorKind,
    Keyspace, KeyspaceOptions, LogLayout, Result, Salvage,
};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Commits of a round, in which all operations are run on one keyspace.
const ROUND: u64 = 26;

/// Commits of a run: a round for each engine.
const COMMITS: u64 = ROUND * EngineKind::ALL.len() as u64;

/// The length of a value that is deleted, and leaves a hole in the data file.
const HUGE_BYTES: usize = 700_000;

fn failing(memory: &MemoryDirectory, plan: &FaultPlan) -> Result<Arc<FaultDirectory>> {
    Ok(Arc::new(FaultDirectory::new(Arc::new(memory.clone()), plan.clone())?))
}

fn builder(memory: &MemoryDirectory, plan: &FaultPlan) -> Result<DatabaseBuilder> {
    let directory = failing(memory, plan)?;
    Ok(Database::builder("faults").memory(48 << 20).internals(|internals| {
        internals.directory = Some(directory);
        internals.stepped = true;
        internals.salt = Some(5);
        internals.log_segment_bytes = Some(16 << 10);
    }))
}

/// Opens the database in `memory`, with the faults of `plan`; `layout` is for a new one.
pub fn open(layout: LogLayout, memory: &MemoryDirectory, plan: &FaultPlan) -> Result<Database> {
    builder(memory, plan)?.log_layout(layout).open()
}

/// The files of an unfinished creation: an empty data file, and unused logs.
fn unfinished(layout: LogLayout) -> BTreeMap<String, Vec<u8>> {
    static FILES: [OnceLock<BTreeMap<String, Vec<u8>>>; LAYOUTS.len()] =
        [const { OnceLock::new() }; LAYOUTS.len()];
    let number = LAYOUTS.iter().position(|one| *one == layout).unwrap();
    let make = || {
        let memory = MemoryDirectory::new();
        open(layout, &memory, &FaultPlan::new()).and_then(Database::close).unwrap();
        let mut files = memory.to_files();
        files.insert("data".to_owned(), Vec::new());
        for (_, segment) in files.iter_mut().filter(|(name, _)| name.starts_with("log-")) {
            segment[4096..].fill(0);
        }
        files
    };
    FILES[number].get_or_init(make).clone()
}

/// One keyspace per engine; all have the same content.
fn keyspaces(database: &Database) -> Result<Vec<Keyspace>> {
    let keyspace = |engine: EngineKind| {
        let options = KeyspaceOptions::new().engine(EngineOptions::tiny(engine, 4 << 10));
        database.keyspace(engine.name(), options.checkpoint_distance(2_000))
    };
    EngineKind::ALL.into_iter().map(keyspace).collect()
}

/// Changes all keyspaces in one batch.
fn commit(database: &Database, change: impl Fn(&mut Batch, &Keyspace)) -> Result<()> {
    let mut batch = database.batch();
    for keyspace in keyspaces(database)? {
        change(&mut batch, &keyspace);
    }
    batch.commit_with(Durability::Sync)
}

fn value(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; if number % 50 == 9 { 40_000 } else { 90 }]
}

/// The progress of a run.
#[derive(Default)]
pub struct Progress {
    /// Commits that were acknowledged at level `Sync`.
    pub acknowledged: u64,
    /// The error that ended it.
    pub error: Option<Error>,
    /// It reached the close: nothing can be read any more.
    pub closed: bool,
}

/// Writes at most this many commits, from `progress.acknowledged` on, and runs all other operations
/// that touch files.
pub fn write(database: &Database, commits: u64, progress: &mut Progress) {
    progress.error = attempt(database, commits, &mut progress.acknowledged).err();
}

fn attempt(database: &Database, commits: u64, acknowledged: &mut u64) -> Result<()> {
    let keyspaces = keyspaces(database)?;
    for number in *acknowledged..*acknowledged + commits {
        commit(database, |batch, keyspace| {
            batch.insert(keyspace, number.to_be_bytes(), value(number));
        })?;
        let round = usize::try_from(number / ROUND).unwrap_or(0);
        let keyspace = &keyspaces[round % keyspaces.len()];
        *acknowledged = number + 1;
        match number % ROUND {
            3 => keyspace.insert_with("huge", vec![3; HUGE_BYTES], Durability::Sync)?,
            23 => keyspace.remove("huge")?,
            // A record longer than a segment.
            24 => keyspace.insert_with("wide", vec![1; 30_000], Durability::Sync)?,
            9 => {
                let snapshot = database.snapshot();
                for entry in snapshot.iter(keyspace).take(30) {
                    entry?;
                }
            }
            13 => {
                keyspace.multi_get((0..number).step_by(7).map(u64::to_be_bytes))?;
            }
            11 => {
                keyspace.get((number / 2).to_be_bytes())?;
            }
            15 => database.checkpoint()?,
            17 => {
                let other = database.keyspace("other", KeyspaceOptions::new())?;
                other.insert("key", "value")?;
                database.drop_keyspace("other")?;
            }
            20 => {
                let mut report = database.verify()?;
                if let Some(finding) = report.findings.pop() {
                    return Err(finding);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A complete run: a first life that ends with the death of the process, a recovery, a second life
/// that ends with a close.
pub fn run(
    layout: LogLayout,
    plan: &FaultPlan,
    check: &mut dyn FnMut(&MemoryDirectory, Option<&Database>, &Progress),
) {
    let first = MemoryDirectory::from_files(unfinished(layout));
    let mut progress = Progress::default();
    let second = match open(layout, &first, plan) {
        Ok(database) => {
            write(&database, COMMITS, &mut progress);
            // The second life begins with the files of this death. The close changes nothing in
            // them; it is here to meet its own failures.
            let left = MemoryDirectory::from_files(first.to_files());
            if progress.error.is_none() {
                progress.closed = true;
                progress.error = database.clone().close().err();
            }
            if progress.error.is_some() {
                return check(&left, Some(&database), &progress);
            }
            // A file whose creation a death interrupted.
            let mut files = left.to_files();
            files.insert("log-0042".to_owned(), Vec::new());
            MemoryDirectory::from_files(files)
        }
        Err(error) => {
            progress.error = Some(error);
            return check(&first, None, &progress);
        }
    };
    progress.closed = false;
    match open(layout, &second, plan) {
        Ok(database) => {
            write(&database, COMMITS / 4, &mut progress);
            let left = MemoryDirectory::from_files(second.to_files());
            if progress.error.is_some() {
                return check(&left, Some(&database), &progress);
            }
            progress.error = database.close().err();
            let closed = MemoryDirectory::from_files(second.to_files());
            if progress.error.is_none() {
                progress.error = look(&left, plan).err();
            }
            check(&closed, None, &progress);
        }
        Err(error) => {
            progress.error = Some(error);
            check(&second, None, &progress);
        }
    }
}

/// Opens the files of a dead process read-only and reads everything, then salvages them, and makes
/// a backup on a device that fails.
fn look(left: &MemoryDirectory, plan: &FaultPlan) -> Result<()> {
    let files = left.to_files();
    let reader = builder(left, plan)?.read_only(true).open()?;
    for keyspace in keyspaces(&reader)? {
        for entry in keyspace.iter() {
            entry?;
        }
    }
    let log_bytes = reader.stats().disk.log_file_bytes;
    assert!(plan.failures() > 0 || log_bytes > 0, "the log is empty");
    reader.close()?;
    assert!(left.to_files() == files, "a read-only open wrote something");
    let salvage = Salvage::new("faults", "saved").memory(48 << 20);
    let report =
        salvage.directories(failing(left, plan)?, Arc::new(MemoryDirectory::new())).run()?;
    let losses = report.keyspaces.iter().flat_map(|one| &one.losses).map(|loss| &loss.cause);
    for error in report.log_damage.iter().chain(losses) {
        assert_ne!(error.kind(), ErrorKind::Corrupt, "no block is damaged here: {error}");
    }
    let source = builder(left, &FaultPlan::new())?.open()?;
    let target = MemoryDirectory::new();
    let failing: Arc<dyn Directory> = failing(&target, plan)?;
    let made = backup_into(&source, &failing, |_| {});
    let copy = builder(&target, &FaultPlan::new())?.create(false).open();
    // One that failed is not there, unless it was complete and its files could not be removed.
    assert!(made.is_err() || copy.is_ok(), "a backup cannot be opened");
    if let Ok(copy) = copy {
        for (copied, keyspace) in keyspaces(&copy)?.iter().zip(keyspaces(&source)?) {
            let all = |keyspace: &Keyspace| keyspace.iter().collect::<Result<Vec<_>>>();
            assert!(all(copied)? == all(&keyspace)?, "a backup differs");
        }
    }
    commit(&source, |batch, keyspace| {
        batch.insert(keyspace, "again", "x");
    })?;
    made.map(|_| ())
}

/// A run in which nothing fails.
pub fn run_healthy(layout: LogLayout, plan: &FaultPlan) {
    run(layout, plan, &mut |_, _, progress| {
        assert!(progress.error.is_none(), "{:?}", progress.error);
    });
}

/// The assertions after a failure of `failed`, if that call was reached: the error has the right
/// type, reads succeed, no write is accepted after a failed one, and acknowledged commits are found
/// after a reopen of `left`.
pub fn check(
    plan: &FaultPlan,
    left: &MemoryDirectory,
    (database, failed): (Option<&Database>, Option<Call>),
    progress: &Progress,
    what: &str,
) {
    if let Some(error) = &progress.error {
        let kind = error.kind();
        let known =
            [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::TooManyFiles, ErrorKind::Stopped];
        assert!(known.contains(&kind), "{what}: {kind:?}: {error}");
    }
    plan.heal();
    if let Some(database) = database {
        check_alive(database, failed, progress, what);
    }
    let opened = builder(left, &FaultPlan::new()).and_then(DatabaseBuilder::open);
    let database = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut after = Progress { acknowledged: progress.acknowledged, ..Progress::default() };
    write(&database, 20, &mut after);
    assert!(after.error.is_none(), "{what}: after a reopen: {:?}", after.error);
    for keyspace in keyspaces(&database).unwrap() {
        for number in 0..after.acknowledged {
            let found = keyspace.get(number.to_be_bytes()).unwrap();
            assert!(
                found.is_some_and(|found| found == value(number)),
                "{what}: {number} is missing"
            );
        }
    }
    assert!(database.verify().unwrap().is_clean(), "{what}");
    database.checkpoint().unwrap();
    assert_eq!(unreachable_blocks(&database).unwrap(), 0, "{what}: space is leaked");
}

/// Calls that leave a file in an unknown state if they fail.
const WRITES: [Call; 5] =
    [Call::Write, Call::RegionWrite, Call::Sync, Call::SetSize, Call::Allocate];

/// The assertions on the database that met the failure, now that nothing fails any more.
fn check_alive(database: &Database, failed: Option<Call>, progress: &Progress, what: &str) {
    let keyspaces = match keyspaces(database) {
        Ok(keyspaces) => keyspaces,
        Err(error) => {
            // Closed, or a keyspace could not be created.
            let is_stopped = error.kind() == ErrorKind::Stopped;
            let is_excused = progress.closed || progress.acknowledged == 0;
            assert!(is_stopped && is_excused, "{what}: {error}");
            return;
        }
    };
    for keyspace in &keyspaces {
        for number in 0..progress.acknowledged {
            match keyspace.get(number.to_be_bytes()) {
                Ok(found) => {
                    let is = found.is_some_and(|found| found == value(number));
                    assert!(is, "{what}: {number} is missing before the reopen");
                }
                Err(error) => {
                    let is_closed = progress.closed && error.kind() == ErrorKind::Stopped;
                    assert!(is_closed, "{what}: reads fail: {error}");
                }
            }
        }
    }
    let keyspace = &keyspaces[0];
    let again =
        keyspace.insert_with("again", "x", Durability::Sync).map(|()| keyspace.remove("again"));
    match progress.error.as_ref().map(Error::kind) {
        Some(ErrorKind::NoSpace | ErrorKind::TooManyFiles) => {
            assert!(
                again.is_ok(),
                "{what}: a write was refused although there is space: {again:?}"
            );
            database.checkpoint().unwrap();
            assert_eq!(unreachable_blocks(database).unwrap(), 0, "{what}: space is leaked");
        }
        kind => {
            let is_write = failed.is_some_and(|call| WRITES.contains(&call));
            if kind == Some(ErrorKind::Io) && is_write {
                assert!(again.is_err(), "{what}: a write after a failed one");
            }
            if let Err(error) = again {
                assert_eq!(error.kind(), ErrorKind::Stopped, "{what}: {error}");
            }
        }
    }
}
