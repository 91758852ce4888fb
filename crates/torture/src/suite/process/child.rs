//! The process that is killed: it writes, and says of each commit on its standard output that it
//! was acknowledged. One kind writes number after number, so that a gap shows; another writes few
//! keys over and over, with large values that come and go within a drain. Now and then a commit is
//! a batch over the thread's keyspace and those that all threads share, one of each engine.

use crate::suite::support::{ENGINES, below, engine_of};
use chelonia::internals::{Rng, unreachable_blocks};
use chelonia::{Database, Durability, EngineOptions, Keyspace, KeyspaceOptions};
use clap::Args;
use rustix::io::ioctl_fionread;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Threads of the child, each with a keyspace of its own: one of each engine.
pub const THREADS: usize = ENGINES;

/// One commit in this many is a batch.
const BATCHES: u64 = 7;

/// Few keys are written over and over.
const OVERWRITTEN_KEYS: u64 = 20;

/// The process that is killed.
#[derive(Args, Debug)]
pub struct Child {
    /// The database
    path: PathBuf,
    /// Write few keys over and over
    #[arg(long)]
    overwriting: bool,
}

impl Child {
    /// Writes until it is killed.
    ///
    /// # Errors
    /// What the store said.
    pub fn run(&self) -> Result<(), String> {
        let failed = |error| format!("write in a child: {error}");
        let opened = &open(&self.path).map_err(failed)?;
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
            // One write, so that lines of threads do not mix; whoever reads may be gone.
            let line = format!("{thread} {number}\n");
            if std::io::stdout().write_all(line.as_bytes()).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// The database with the keyspaces of the child.
struct Opened {
    database: Database,
    /// That of each thread.
    own: Vec<Keyspace>,
    /// One of each engine: the number of each thread's last batch.
    shared: Vec<Keyspace>,
}

fn open(path: &Path) -> chelonia::Result<Opened> {
    let database = Database::builder(path).memory(32 << 20).open()?;
    let keyspaces = |name: &str| -> chelonia::Result<Vec<Keyspace>> {
        let numbers = 0..THREADS as u64;
        let made = numbers.map(|number| {
            let engine = EngineOptions::tiny(engine_of(number), 16 << 10);
            let options = KeyspaceOptions::new().engine(engine).checkpoint_distance(100_000);
            database.keyspace(&format!("{name} {number}"), options)
        });
        made.collect()
    };
    let (own, shared) = (keyspaces("thread")?, keyspaces("shared")?);
    Ok(Opened { database, own, shared })
}

/// The level of a commit: now and then it survives a power cut.
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

/// The number after the last one that is there.
fn after_last(keyspace: &Keyspace) -> chelonia::Result<u64> {
    let last = keyspace.last_key_value()?.map(|(key, _)| key);
    Ok(last.map_or(0, |key| u64::from_be_bytes(key[..].try_into().unwrap()) + 1))
}

/// The next number of a thread: one more than what is there, after checking all that is there.
fn check_prefix(keyspace: &Keyspace) -> u64 {
    let mut next = 0_u64;
    for entry in keyspace.iter() {
        let (key, found) = entry.unwrap();
        assert_eq!(key, next.to_be_bytes(), "the numbers have a gap");
        assert_eq!(found, value(next), "a value that nobody wrote");
        next += 1;
    }
    next
}

/// The number after the last one written, after checking that the state is the one it left.
fn check_overwritten(keyspace: &Keyspace) -> u64 {
    let mut found = BTreeMap::new();
    for entry in keyspace.iter() {
        let (key, value) = entry.unwrap();
        let number = u64::from_be_bytes(value[..8].try_into().unwrap());
        assert_eq!(value, overwriting_value(number), "a value that nobody wrote");
        found.insert(u64::from_be_bytes(key[..].try_into().unwrap()), number);
    }
    let Some(last) = found.values().max().copied() else { return 0 };
    let expected = (last.saturating_sub(OVERWRITTEN_KEYS - 1)..=last)
        .map(|number| (number % OVERWRITTEN_KEYS, number))
        .collect();
    assert_eq!(found, expected, "the state is not one that there was");
    last + 1
}

const SIGKILL: i32 = 9;

/// What a child acknowledged: for each thread the number after the last one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Acknowledged {
    /// At whatever level.
    pub all: [u64; THREADS],
    /// At level `Sync`.
    pub synced: [u64; THREADS],
    /// Lines read.
    pub lines: u64,
}

/// A child that runs.
pub struct Running {
    child: std::process::Child,
    lines: BufReader<ChildStdout>,
    acknowledged: Acknowledged,
}

impl Running {
    /// Starts one on the database at `path`.
    pub fn start(path: &Path, overwriting: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("child").arg(path).args(overwriting.then_some("--overwriting"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, acknowledged: Acknowledged::default() }
    }

    /// Waits until it acknowledged this many commits, or died.
    pub fn wait_for(&mut self, commits: u64) {
        while self.acknowledged.lines < commits && self.note() {}
    }

    /// All that it has acknowledged until now.
    pub fn acknowledged_so_far(&mut self) -> Acknowledged {
        // It writes whole lines, so there is none to wait for that has begun.
        while !self.lines.buffer().is_empty() || ioctl_fionread(self.lines.get_ref()).unwrap() > 0 {
            self.note();
        }
        self.acknowledged
    }

    /// Kills it; gives all that it acknowledged. What it said before it died counts too. Unless its
    /// file system failed before it must have lived until now.
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

    /// Reads a line; false at the end, or where it was cut off.
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

/// Opens what a child left, and checks that it is what one of its commits left, batches whole, not
/// older than `promised` says for each thread.
pub fn check(path: &Path, overwriting: bool, promised: [u64; THREADS]) -> Database {
    let opened = open(path).unwrap();
    for ((thread, own), promised) in (0..).zip(&opened.own).zip(promised) {
        let next = if overwriting { check_overwritten(own) } else { check_prefix(own) };
        assert!(next >= promised, "{promised} promised, {next} found");
        let last = next.checked_sub(1).map(|last| last - last % BATCHES);
        for shared in &opened.shared {
            let found = shared.get([thread]).unwrap();
            let found = found.map(|found| u64::from_be_bytes(found[..].try_into().unwrap()));
            assert_eq!(found, last, "of a batch a part is missing, or there is too much");
        }
    }
    let report = opened.database.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    opened.database
}

/// Writes to what a child left, and looks for space that is lost.
pub fn go_on(database: &Database) {
    for name in database.keyspaces().iter().filter(|name| name.starts_with("shared")) {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        keyspace.insert_with("after", "the death", Durability::Sync).unwrap();
        assert_eq!(keyspace.get("after").unwrap().as_deref(), Some(&b"the death"[..]));
    }
    database.checkpoint().unwrap();
    assert_eq!(unreachable_blocks(database).unwrap(), 0, "space is lost");
}
