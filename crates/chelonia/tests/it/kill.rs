//! A process that writes is killed in mid-write, again and again, on the real file system: every
//! acknowledged commit is there, and what is there is a prefix.

use chelonia::internals::Rng;
use chelonia::{Database, KeyspaceOptions, Result};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Set for the child to its database; the test below is what the child runs.
const CHILD: &str = "CHELONIA_TEST_KILL";
const THREADS: u64 = 2;

fn open(path: &Path) -> Result<(Database, Vec<chelonia::Keyspace>)> {
    let database = Database::builder(path).memory(32 << 20).open()?;
    let mut keyspaces = Vec::new();
    for thread in 0..THREADS {
        let options = KeyspaceOptions::new().leaf_bytes(16 << 10).checkpoint_distance(100_000);
        keyspaces.push(database.keyspace(&format!("thread {thread}"), options)?);
    }
    Ok((database, keyspaces))
}

fn value(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let length = if rng.one_in(500) { 40_000 } else { rng.below(400) };
    let mut value = vec![0; usize::try_from(length).unwrap()];
    rng.fill(&mut value);
    value
}

/// The next number of a thread: one more than what is there, after checking all that is there.
fn check_prefix(keyspace: &chelonia::Keyspace) -> u64 {
    let mut next = 0_u64;
    for entry in keyspace.iter() {
        let (key, found) = entry.unwrap();
        assert_eq!(key, next.to_be_bytes(), "the numbers have a gap");
        assert_eq!(found, value(next), "a value that nobody wrote");
        next += 1;
    }
    next
}

/// Few keys are written over and over, every third time with a large value, so that large values
/// come and go within a drain.
const OVERWRITTEN: &str = "overwritten";
const OVERWRITTEN_KEYS: u64 = 20;

fn overwriting_value(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(3) { 40_000 + number % 9_000 } else { number % 3_000 };
    let mut value = vec![number.to_le_bytes()[0]; usize::try_from(length).unwrap()];
    value.splice(..0, number.to_be_bytes());
    value
}

/// The number after the last one written, after checking that the state is the one it left.
fn check_overwritten(keyspace: &chelonia::Keyspace) -> u64 {
    let mut found = std::collections::BTreeMap::new();
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

#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    if std::env::var(OVERWRITTEN).is_ok() {
        let (_database, keyspaces) = open(Path::new(&path)).unwrap();
        return std::thread::scope(|scope| {
            for (thread, keyspace) in keyspaces.iter().enumerate() {
                scope.spawn(move || {
                    for number in check_overwritten(keyspace).. {
                        let key = (number % OVERWRITTEN_KEYS).to_be_bytes();
                        keyspace.insert(key, overwriting_value(number)).unwrap();
                        let line = format!("acknowledged {thread} {number}\n");
                        std::io::stdout().write_all(line.as_bytes()).unwrap();
                    }
                });
            }
        });
    }
    let (_database, keyspaces) = open(Path::new(&path)).unwrap();
    std::thread::scope(|scope| {
        for (thread, keyspace) in keyspaces.iter().enumerate() {
            scope.spawn(move || {
                let (last, _) = keyspace.last_key_value().unwrap().unzip();
                let last = last.map(|key| u64::from_be_bytes(key[..].try_into().unwrap()));
                for number in last.map_or(0, |last| last + 1).. {
                    keyspace.insert(number.to_be_bytes(), value(number)).unwrap();
                    let line = format!("acknowledged {thread} {number}\n");
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let mut rng = Rng::new(crate::support::fresh_seed());
    let mut records = 0;
    for round in 0..12 {
        // Some children are killed while they still open.
        let enough = if round % 4 == 3 { 0 } else { 1 + rng.below(6_000) };
        let acknowledged = write_and_kill(&path, enough, false);
        let (database, keyspaces) = open(&path).unwrap();
        records = 0;
        for (keyspace, acknowledged) in keyspaces.iter().zip(acknowledged) {
            let next = check_prefix(keyspace);
            assert!(next >= acknowledged, "{acknowledged} acknowledged, {next} found");
            records += next;
        }
        assert!(database.verify().unwrap().is_clean());
        if round % 2 == 0 {
            database.close().unwrap();
        }
    }
    assert!(records > 5_000, "only {records} records were written in all");
}

#[test]
fn large_values_that_the_log_names_are_there_after_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    for _ in 0..6 {
        let acknowledged = write_and_kill(&path, 1_500, true);
        let (_database, keyspaces) = open(&path).unwrap();
        for (keyspace, acknowledged) in keyspaces.iter().zip(acknowledged) {
            let next = check_overwritten(keyspace);
            assert!(next >= acknowledged, "{acknowledged} acknowledged, {next} found");
        }
    }
}

/// Runs the child until it acknowledged `enough` commits, kills it, and returns for each thread the
/// number after the last one acknowledged.
fn write_and_kill(path: &Path, enough: u64, overwriting: bool) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child_that_writes_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .envs(overwriting.then_some((OVERWRITTEN, "1")))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = vec![0; usize::try_from(THREADS).unwrap()];
    let mut seen = 0;
    let mut note = |line: &str| {
        let mut words = line.split(' ').skip_while(|word| !word.ends_with("acknowledged")).skip(1);
        if let (Some(thread), Some(number)) = (words.next(), words.next()) {
            let thread: usize = thread.parse().unwrap();
            next[thread] = number.parse::<u64>().unwrap() + 1;
        }
    };
    while seen < enough {
        let Some(Ok(line)) = lines.next() else { break };
        seen += u64::from(line.contains("acknowledged"));
        note(&line);
    }
    child.kill().unwrap();
    // What it still said before it died was acknowledged too; a line may be torn at the end.
    let rest: Vec<String> = lines.map_while(std::result::Result::ok).collect();
    let whole = rest.len().saturating_sub(1);
    rest[..whole].iter().for_each(|line| note(line));
    child.wait().unwrap();
    next
}
