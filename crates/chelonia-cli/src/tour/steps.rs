//! The steps of the tour in this process: files, a snapshot, and the checkpoint distance.
//!
//! The checkpoint distance is changed in a database of its own that runs on. At each setting the
//! same number of updates is written to one keyspace; then values of another one are read while the
//! last updates are still in memory, which a longer distance takes from reads. There is less
//! memory than data, so that gets have to read blocks. Of several updates of a key within the
//! distance only the last one is written to the data file, which is what a longer distance saves.

use super::{Amount, Report, compare, digest, mismatch, now, open, verify_and_close};
use crate::arguments::Tour;
use crate::failure::{Context, Failure, Result};
use crate::output::{bytes, counted};
use chelonia::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use chelonia::{Database, Keyspace, KeyspaceOptions, Stats};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders of what programs made.
const SKIPPED_FOLDERS: [&str; 2] = ["target", ".git"];

/// The most files that are visited; two of three are changed.
const VISITS_MAX: usize = 15_000;

/// The checkpoint distances, in bytes of updates: there and back.
const DISTANCES: [u64; 3] = [1 << 20, 16 << 20, 1 << 20];

/// The memory for changing the distance, unless the tour has less.
const DIAL_MEMORY: u64 = 64 << 20;

/// Updates of each key at each setting, on average.
const UPDATES_PER_KEY: u64 = 20;

/// Keys that are only read, for each key that is updated: together they exceed the memory.
const AT_REST: u64 = 54;

/// Updates for each get.
const UPDATES_PER_GET: u64 = 30;

/// Words of eight bytes in the value of a numbered key.
const VALUE_WORDS: usize = 13;

/// The paths of the stored files and the digests of their content.
pub(super) type Files = BTreeMap<Vec<u8>, u64>;

fn expected(files: &Files) -> impl DoubleEndedIterator<Item = (&Vec<u8>, u64)> {
    files.iter().map(|(path, hash)| (path, *hash))
}

/// The folder to store if none was named: the sources that cargo keeps, else the current one.
fn default_source() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let registry = home.map(|home| home.join("registry/src")).filter(|path| path.is_dir());
    registry.unwrap_or_else(|| PathBuf::from("."))
}

/// Stores files in the order of their paths, as far as the limits go, and reads them back.
pub(super) fn load(path: &Path, arguments: &Tour, report: &mut Report) -> Result<Files> {
    let source = arguments.source.clone().unwrap_or_else(default_source);
    let failed = |error| Failure::io(source.display().to_string(), error);
    // A stack, the next path is last. A link is followed only if it is what the user named.
    let mut paths = vec![source.canonicalize().map_err(failed)?];
    let (most, space) = (arguments.files_max as u64, arguments.bytes_max);
    let limit = format!("at most {} and {}", counted(most, "file", "files"), bytes(space));
    report.say(&format!("Storing the files below {}, {limit}", source.display()))?;
    let database = open(path, arguments.memory)?;
    let keyspace = database.keyspace("files", KeyspaceOptions::default())?;
    let (mut files, mut stored) = (Files::new(), Amount::default());
    let (mut unread, start) = (0, now());
    while let Some(path) = paths.pop() {
        report.go_on()?;
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            let entries = path.read_dir();
            unread += u64::from(entries.is_err());
            let mut inner: Vec<_> = entries.into_iter().flatten().flatten().collect();
            inner.retain(|entry| SKIPPED_FOLDERS.iter().all(|name| entry.file_name() != *name));
            inner.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.file_name()));
            paths.extend(inner.iter().map(|entry| entry.path()));
            continue;
        }
        let (key, size) = (path.as_os_str().as_bytes(), metadata.len());
        if !metadata.is_file() || key.len() > KEY_BYTES_MAX || size > VALUE_BYTES_MAX as u64 {
            continue;
        }
        if stored.count >= most || stored.bytes + size > space {
            break;
        }
        match std::fs::read(&path) {
            Ok(content) if content.len() <= VALUE_BYTES_MAX => {
                keyspace.insert(key, &content).context(format!("storing {}", path.display()))?;
                files.insert(key.to_vec(), digest(&content));
                stored.add(key, &content);
            }
            _ => unread += 1,
        }
    }
    if files.is_empty() {
        let text = format!("there are no files that can be read below {}", source.display());
        return Err(Failure::usage(text));
    }
    let cost = Some(database.stats().write_amplification);
    report.add("files stored", stored, start.elapsed(), [cost, None])?;
    if unread > 0 {
        report.say(&format!("  files and folders that could not be read: {unread}"))?;
    }
    report.step("files read back", |what| {
        for (path, hash) in &files {
            if keyspace.get(path)?.is_none_or(|content| digest(&content) != *hash) {
                return Err(mismatch(what, path));
            }
        }
        Ok(stored)
    })?;
    report.step("files scanned in reverse", |what| {
        compare(what, expected(&files).rev(), keyspace.iter().rev())
    })?;
    drop(keyspace);
    database.close()?;
    Ok(files)
}

/// Changes files while a snapshot is held. Both states must be right, before and after a
/// checkpoint.
pub(super) fn change_under_snapshot(
    path: &Path,
    memory: u64,
    files: &mut Files,
    report: &mut Report,
) -> Result<()> {
    report.say("Changing files under a snapshot")?;
    let database = open(path, memory)?;
    let keyspace = database.keyspace("files", KeyspaceOptions::default())?;
    let (snapshot, before) = (database.snapshot(), files.clone());
    report.step("files overwritten or deleted", |_| {
        let mut changed = Amount::default();
        for (index, key) in before.keys().enumerate().take(VISITS_MAX) {
            if index % 3 == 0 {
                let value = format!("overwritten by the tour, file {index}\n");
                keyspace.insert(key, &value)?;
                files.insert(key.clone(), digest(value.as_bytes()));
                changed.add(key, value.as_bytes());
            } else if index % 3 == 1 {
                keyspace.remove(key)?;
                files.remove(key);
                changed.add(key, &[]);
            }
        }
        Ok(changed)
    })?;
    for moment in ["before a checkpoint", "after a checkpoint"] {
        report.step(&format!("snapshot, {moment}"), |what| {
            compare(what, expected(&before), snapshot.iter(&keyspace))
        })?;
        report.step(&format!("changed files, {moment}"), |what| {
            compare(what, expected(files), keyspace.iter())
        })?;
        database.checkpoint()?;
    }
    drop((snapshot, keyspace));
    Ok(database.close()?)
}

/// Opens the database again, compares the files and verifies every block.
pub(super) fn reopen(path: &Path, memory: u64, files: &Files, report: &mut Report) -> Result<()> {
    report.say("Opening the database again")?;
    let database = open(path, memory)?;
    let keyspace = database.keyspace("files", KeyspaceOptions::default())?;
    report.step("files after a reopen", |what| compare(what, expected(files), keyspace.iter()))?;
    drop(keyspace);
    verify_and_close(database, report)
}

/// Updates and reads a fresh database at `path` at each of the checkpoint distances.
pub(super) fn change_distance(
    path: &Path,
    memory: u64,
    updates: u64,
    report: &mut Report,
) -> Result<()> {
    let memory = memory.min(DIAL_MEMORY);
    let with = format!("with {} of memory", bytes(memory));
    report.say(&format!("Changing the checkpoint distance of a running database {with}"))?;
    let database = open(path, memory)?;
    let (keys, gets) = ((updates / UPDATES_PER_KEY).max(1), updates / UPDATES_PER_GET);
    let start = now();
    let mut resting = Numbered::new(&database, "at-rest", keys * AT_REST)?;
    let mut updated = Numbered::new(&database, "updated", keys)?;
    database.checkpoint()?;
    let all = amount(keys * (AT_REST + 1));
    report.add("entries to begin with", all, start.elapsed(), [None; 2])?;
    // Fills the cache.
    resting.get(3 * gets)?;
    for distance in DISTANCES {
        updated.keyspace.set_checkpoint_distance(distance)?;
        let at = format!("checkpoint distance {}", bytes(updated.keyspace.checkpoint_distance()));
        // As many before those that are measured: what waits in the tree is of the setting before.
        updated.update(updates)?;
        let (before, start) = (database.stats(), now());
        let written = updated.update(updates)?;
        let (time, misses, start) = (start.elapsed(), database.stats().io.cache_misses, now());
        let read = resting.get(gets)?;
        let blocks = (database.stats().io.cache_misses - misses) as f64 / gets.max(1) as f64;
        let read_time = start.elapsed();
        // The cost of the last updates belongs to this setting too.
        database.checkpoint()?;
        let cost = amplification(&before, &database.stats());
        report.add(&format!("updates, {at}"), written, time, [Some(cost), None])?;
        report.add(&format!("gets, {at}"), read, read_time, [None, Some(blocks)])?;
    }
    for numbered in [&resting, &updated] {
        report.step("entries at the end", |what| {
            compare(what, numbered.expected(), numbered.keyspace.iter())
        })?;
    }
    drop((resting, updated));
    verify_and_close(database, report)
}

/// Bytes written for each byte of users between two moments.
fn amplification(before: &Stats, after: &Stats) -> f64 {
    let written = |stats: &Stats| stats.io.data_bytes_written + stats.io.log_bytes_written;
    let user = after.commits.user_bytes - before.commits.user_bytes;
    (written(after) - written(before)) as f64 / user.max(1) as f64
}

/// A keyspace of numbered keys, and how often each was written.
struct Numbered {
    keyspace: Keyspace,
    writes: Vec<u64>,
    random: u64,
}

impl Numbered {
    /// Writes every key once.
    fn new(database: &Database, name: &str, keys: u64) -> Result<Self> {
        let keyspace = database.keyspace(name, KeyspaceOptions::default())?;
        let writes = vec![0; usize::try_from(keys).unwrap_or(usize::MAX)];
        let mut numbered = Self { keyspace, writes, random: 0 };
        (0..numbered.writes.len()).try_for_each(|number| numbered.write(number))?;
        Ok(numbered)
    }

    /// The key and the value of a number.
    fn entry(&self, number: usize) -> ([u8; 8], Vec<u8>) {
        let key = mix(number as u64);
        (key.to_be_bytes(), mix(key ^ self.writes[number]).to_le_bytes().repeat(VALUE_WORDS))
    }

    fn write(&mut self, number: usize) -> Result<()> {
        self.writes[number] += 1;
        let (key, value) = self.entry(number);
        Ok(self.keyspace.insert(key, value)?)
    }

    /// A number that follows from how many were drawn before it.
    fn draw(&mut self) -> usize {
        self.random += 1;
        let number = mix(self.random) % self.writes.len() as u64;
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    fn update(&mut self, count: u64) -> Result<Amount> {
        for _ in 0..count {
            let number = self.draw();
            self.write(number)?;
        }
        Ok(amount(count))
    }

    fn get(&mut self, count: u64) -> Result<Amount> {
        for _ in 0..count {
            let number = self.draw();
            let (key, value) = self.entry(number);
            if self.keyspace.get(key)?.is_none_or(|found| found != value) {
                return Err(mismatch("a get", &key));
            }
        }
        Ok(amount(count))
    }

    fn expected(&self) -> Vec<([u8; 8], u64)> {
        let entries = (0..self.writes.len()).map(|number| self.entry(number));
        let mut all: Vec<_> = entries.map(|(key, value)| (key, digest(&value))).collect();
        all.sort_unstable();
        all
    }
}

/// `count` numbered entries.
fn amount(count: u64) -> Amount {
    Amount { count, bytes: count * 8 * (1 + VALUE_WORDS as u64) }
}

/// A number for a number, different for each, with its bits well mixed: the end of SplitMix64.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
