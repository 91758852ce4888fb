//! The process that is killed: it writes, and prints each acknowledged commit to its standard
//! output. One kind writes ascending numbers, so that a gap is noticed; the other overwrites a few
//! keys, some with large values that exist within one flush only. One commit in [`BATCHES`] is a
//! batch over the thread's keyspace and the shared ones, one per engine.

use crate::suite::support::{ENGINES, below, compression_of, engine_of, layout_of};
use chelonia::internals::{Rng, unreachable_blocks};
use chelonia::{Database, Durability, EngineOptions, Keyspace, KeyspaceOptions};
use clap::Args;
use rustix::io::ioctl_fionread;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Threads of the child, each with its own keyspace: one per engine.
pub const THREADS: usize = ENGINES;

/// One commit in this many is a batch.
const BATCHES: u64 = 7;

/// The number of keys that are overwritten.
const OVERWRITTEN_KEYS: u64 = 20;

/// The arguments of the process that is killed.
#[derive(Args, Debug)]
pub struct Child {
    /// The database
    path: PathBuf,
    /// Overwrite a few keys
    #[arg(long)]
    overwriting: bool,
}

impl Child {
    /// Writes until it is killed.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn run(&self) -> Result<(), String> {
        let failed = |error| format!("write in a child: {error}");
        let opened = &open(&self.path, self.overwriting).map_err(failed)?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&opened.own)
                .map(|(thread, own)| scope.spawn(move || self.write(opened, thread, own)))
                .collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result.map_err(failed),
                Err(_) => Err("a child panicked".to_owned()),
            })
        })
    }

    fn write(&self, opened: &Opened, thread: usize, own: &Keyspace) -> chelonia::Result<()> {
        let next = if self.overwriting { check_overwritten(own) } else { after_last(own)? };
        for number in next.. {
            let level = level_of(number);
            let (key, value) = if self.overwriting {
                (number % OVERWRITTEN_KEYS, overwriting_value(number))
            } else {
                (number, value(number))
            };
            let key = key.to_be_bytes();
            if number.is_multiple_of(BATCHES) {
                let mut batch = opened.database.batch();
                batch.insert(own, key, value);
                for shared in &opened.shared {
                    batch.insert(shared, [thread.to_le_bytes()[0]], number.to_be_bytes());
                }
                batch.commit_with(level)?;
            } else {
                own.insert_with(key, value, level)?;
            }
            // One write, so that lines of threads do not mix; the reader may be gone.
            let line = format!("{thread} {number}\n");
            if std::io::stdout().write_all(line.as_bytes()).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// The database and the keyspaces of the child.
struct Opened {
    database: Database,
    /// The keyspace of each thread.
    own: Vec<Keyspace>,
    /// One keyspace per engine with the number of each thread's last batch.
    shared: Vec<Keyspace>,
}

/// The log of a database whose keys are overwritten has the other layout.
fn open(path: &Path, overwriting: bool) -> chelonia::Result<Opened> {
    let layout = layout_of(overwriting.into());
    let database = Database::builder(path).memory(32 << 20).log_layout(layout).open()?;
    let keyspaces = |name: &str| -> chelonia::Result<Vec<Keyspace>> {
        let numbers = 0..THREADS as u64;
        let made = numbers.map(|number| {
            let engine = EngineOptions::tiny(engine_of(number), 16 << 10);
            let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(100_000);
            let options = options.compression(compression_of(engine_of(number), name.len() as u64));
            database.keyspace(&format!("{name} {number}"), options)
        });
        made.collect()
    };
    let (own, shared) = (keyspaces("thread")?, keyspaces("shared")?);
    Ok(Opened { database, own, shared })
}

/// The level of a commit: some survive a power cut.
fn level_of(number: u64) -> Durability {
    if number % 30 == 29 { Durability::Sync } else { Durability::Process }
}

fn value(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let length = if rng.one_in(500) { 40_000 } else { below(&mut rng, 400) };
    let mut value = vec![0; length];
    rng.fill(&mut value);
    value
}

fn overwriting_value(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(3) { 40_000 + number % 9_000 } else { number % 3_000 };
    let mut value = vec![number.to_le_bytes()[0]; usize::try_from(length).unwrap()];
    value.splice(..0, number.to_be_bytes());
    value
}

/// The number after the last one stored.
fn after_last(keyspace: &Keyspace) -> chelonia::Result<u64> {
    let last = keyspace.last_key_value()?.map(|(key, _)| key);
    Ok(last.map_or(0, |key| u64::from_be_bytes(key[..].try_into().unwrap()) + 1))
}

/// The number after the last one stored, after checking all of them.
fn check_prefix(keyspace: &Keyspace) -> u64 {
    let mut next = 0_u64;
    for entry in keyspace.iter() {
        let (key, found) = entry.unwrap();
        assert_eq!(key, next.to_be_bytes(), "the numbers have a gap");
        assert_eq!(found, value(next), "a value that was never written");
        next += 1;
    }
    next
}

/// The number after the last one written, after checking that the state is its result.
fn check_overwritten(keyspace: &Keyspace) -> u64 {
    let mut found = BTreeMap::new();
    for entry in keyspace.iter() {
        let (key, value) = entry.unwrap();
        let number = u64::from_be_bytes(value[..8].try_into().unwrap());
        assert_eq!(value, overwriting_value(number), "a value that was never written");
        found.insert(u64::from_be_bytes(key[..].try_into().unwrap()), number);
    }
    let Some(last) = found.values().max().copied() else { return 0 };
    let expected = (last.saturating_sub(OVERWRITTEN_KEYS - 1)..=last)
        .map(|number| (number % OVERWRITTEN_KEYS, number))
        .collect();
    assert_eq!(found, expected, "the state never existed");
    last + 1
}

const SIGKILL: i32 = 9;

/// The acknowledged commits of a child: for each thread the number after the last one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Acknowledged {
    /// At any level.
    pub all: [u64; THREADS],
    /// At level `Sync`.
    pub synced: [u64; THREADS],
    /// Lines read.
    pub lines: u64,
}

/// A running child.
pub struct Running {
    child: std::process::Child,
    lines: BufReader<ChildStdout>,
    acknowledged: Acknowledged,
}

impl Running {
    /// Starts a child on the database at `path`.
    pub fn start(path: &Path, overwriting: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("child").arg(path).args(overwriting.then_some("--overwriting"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, acknowledged: Acknowledged::default() }
    }

    /// Waits until this many commits are acknowledged, or the child has died.
    pub fn wait_for(&mut self, commits: u64) {
        while self.acknowledged.lines < commits && self.note() {}
    }

    /// The commits acknowledged so far.
    pub fn acknowledged_so_far(&mut self) -> Acknowledged {
        // The child writes complete lines, so no started line has to be waited for.
        while !self.lines.buffer().is_empty() || ioctl_fionread(self.lines.get_ref()).unwrap() > 0 {
            self.note();
        }
        self.acknowledged
    }

    /// Kills the child; returns the acknowledged commits, including those printed before it died.
    /// It must have lived until now, unless its file system may have failed before.
    pub fn kill(mut self, may_have_failed: bool) -> Acknowledged {
        self.child.kill().unwrap();
        while self.note() {}
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let is_killed = status.signal() == Some(SIGKILL);
        assert!(is_killed || may_have_failed, "the child ended by itself, {status}: {said}");
        self.acknowledged
    }

    /// Reads a line; false at the end, or if the line is incomplete.
    fn note(&mut self) -> bool {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        if read == 0 || !line.ends_with('\n') {
            return false;
        }
        let (thread, number) = line.trim_end().split_once(' ').unwrap();
        let (thread, number): (usize, u64) = (thread.parse().unwrap(), number.parse().unwrap());
        self.acknowledged.all[thread] = number + 1;
        if level_of(number) == Durability::Sync {
            self.acknowledged.synced[thread] = number + 1;
        }
        self.acknowledged.lines += 1;
        true
    }
}

/// Opens the database of a child, and checks that it is in the state after one of its commits, with
/// complete batches, not older than `promised` for each thread.
pub fn check(path: &Path, overwriting: bool, promised: [u64; THREADS]) -> Database {
    let opened = open(path, overwriting).unwrap();
    for ((thread, own), promised) in (0..).zip(&opened.own).zip(promised) {
        let next = if overwriting { check_overwritten(own) } else { check_prefix(own) };
        assert!(next >= promised, "{promised} promised, {next} found");
        let last = next.checked_sub(1).map(|last| last - last % BATCHES);
        for shared in &opened.shared {
            let found = shared.get([thread]).unwrap();
            let found = found.map(|found| u64::from_be_bytes(found[..].try_into().unwrap()));
            assert_eq!(found, last, "a batch is incomplete, or was never written");
        }
    }
    let report = opened.database.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    opened.database
}

/// Writes to the database of a child, and looks for leaked space.
pub fn go_on(database: &Database) {
    for name in database.keyspaces().iter().filter(|name| name.starts_with("shared")) {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        keyspace.insert_with("after", "the death", Durability::Sync).unwrap();
        assert_eq!(keyspace.get("after").unwrap().as_deref(), Some(&b"the death"[..]));
    }
    database.checkpoint().unwrap();
    assert_eq!(unreachable_blocks(database).unwrap(), 0, "space is leaked");
}
