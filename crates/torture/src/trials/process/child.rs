//! The process that is killed: it writes, and says of each commit on its standard output that it
//! was acknowledged. One kind writes number after number, so that a gap shows; another writes few
//! keys over and over, with large values that come and go within a drain.

use crate::trials::support::{below, engine_of};
use chelonia::internals::Rng;
use chelonia::{Database, Durability, Keyspace, KeyspaceOptions};
use clap::Args;
use rustix::io::ioctl_fionread;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

/// Threads of the child, each with a keyspace of its own.
pub const THREADS: usize = 2;

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
        let (_database, keyspaces) = open(&self.path).map_err(failed)?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&keyspaces)
                .map(|(thread, keyspace)| scope.spawn(move || self.write(thread, keyspace)))
                .collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result.map_err(failed),
                Err(_) => Err("a child panicked".to_owned()),
            })
        })
    }

    fn write(&self, thread: usize, keyspace: &Keyspace) -> chelonia::Result<()> {
        let next =
            if self.overwriting { check_overwritten(keyspace) } else { after_last(keyspace)? };
        for number in next.. {
            let level = level_of(number);
            if self.overwriting {
                let key = (number % OVERWRITTEN_KEYS).to_be_bytes();
                keyspace.insert_with(key, overwriting_value(number), level)?;
            } else {
                keyspace.insert_with(number.to_be_bytes(), value(number), level)?;
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

/// Opens the database with the keyspaces of the child.
pub fn open(path: &Path) -> chelonia::Result<(Database, Vec<Keyspace>)> {
    let database = Database::builder(path).memory(32 << 20).open()?;
    let mut keyspaces = Vec::new();
    for thread in 0..THREADS {
        let options = KeyspaceOptions::new().leaf_bytes(16 << 10).checkpoint_distance(100_000);
        let options = options.engine(engine_of(thread as u64));
        keyspaces.push(database.keyspace(&format!("thread {thread}"), options)?);
    }
    Ok((database, keyspaces))
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
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, acknowledged: Acknowledged::default() }
    }

    /// Waits until it acknowledged so many commits, or died.
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

    /// Kills it; gives all that it acknowledged. What it said before it died counts too.
    pub fn kill(mut self) -> Acknowledged {
        self.child.kill().unwrap();
        while self.note() {}
        self.child.wait().unwrap();
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

/// Opens what a child left, and checks that it is what one of its commits left, not older than
/// `promised` says for each thread.
pub fn check(path: &Path, overwriting: bool, promised: [u64; THREADS]) -> Database {
    let (database, keyspaces) = open(path).unwrap();
    for (keyspace, promised) in keyspaces.iter().zip(promised) {
        let next = if overwriting { check_overwritten(keyspace) } else { check_prefix(keyspace) };
        assert!(next >= promised, "{promised} promised, {next} found");
    }
    let report = database.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    database
}
