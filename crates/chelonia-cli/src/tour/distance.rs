//! The checkpoint distance, changed in a running database.
//!
//! At each distance the same number of updates is written to a few keys, then the other keys are
//! read while the last updates are still in memory. Of several updates of a key within the distance
//! only the last is written to the data file, so a longer distance saves writes. It takes memory
//! from the cache, which is smaller than the data, so gets read more blocks.

use super::report::{Done, Report, compare, digest, mismatch, open};
use crate::failure::Result;
use crate::output::bytes;
use chelonia::{Keyspace, KeyspaceOptions, Stats};
use std::ops::Range;
use std::path::Path;

/// The checkpoint distances, in bytes of updates: there and back.
const DISTANCES: [u64; 3] = [1 << 20, 16 << 20, 1 << 20];

/// The memory for this step, unless the tour has less.
const MEMORY_MAX: u64 = 64 << 20;

/// Updates of each updated key at each distance, on average.
const UPDATES_PER_KEY: u64 = 20;

/// Keys that are only read, for each updated key: together they exceed the memory.
const AT_REST: usize = 54;

/// Updates for each get.
const UPDATES_PER_GET: u64 = 30;

/// Bytes of a key and its value.
const ENTRY_BYTES: u64 = 8 + 16 * 7;

/// Updates and reads a new database at `path` at each of the checkpoint distances.
pub fn change(path: &Path, memory: u64, updates: u64, report: &mut Report) -> Result<()> {
    let memory = memory.min(MEMORY_MAX);
    let with = format!("with {} of memory", bytes(memory));
    report.say(&format!("Changing the checkpoint distance of a running database {with}"))?;
    let database = open(path, memory)?;
    let (keys, gets) = ((updates / UPDATES_PER_KEY).max(1), updates / UPDATES_PER_GET);
    let keys = usize::try_from(keys).unwrap_or(usize::MAX);
    let (updated, at_rest) = (0..keys, keys..keys.saturating_mul(1 + AT_REST));
    let keyspace = database.keyspace("numbers", KeyspaceOptions::default())?;
    let mut numbers = Numbers { keyspace, writes: vec![0; at_rest.end], random: 7 };
    report.step("entries to begin with", |_| {
        (0..at_rest.end).try_for_each(|number| numbers.write(number))?;
        database.checkpoint()?;
        Ok(amount(at_rest.end as u64))
    })?;
    // Fills the cache.
    numbers.get(3 * gets, &at_rest)?;
    for distance in DISTANCES {
        numbers.keyspace.set_checkpoint_distance(distance)?;
        let at = format!("checkpoint distance {}", bytes(numbers.keyspace.checkpoint_distance()));
        // Not measured: these flush what the previous distance left in the tree.
        numbers.update(updates, &updated)?;
        let before = database.stats();
        report.step(&format!("updates, {at}"), |_| numbers.update(updates, &updated))?;
        report.step(&format!("gets, {at}"), |_| {
            let misses = database.stats().io.cache_misses;
            let done = numbers.get(gets, &at_rest)?;
            let blocks = (database.stats().io.cache_misses - misses) as f64 / gets.max(1) as f64;
            Ok(Done { note: format!("blocks read {blocks:.2}"), ..done })
        })?;
        // The flush of the last updates belongs to this distance too.
        database.checkpoint()?;
        let cost = write_amplification(&before, &database.stats());
        report.say(&format!("  write amplification {cost:.2}, {at}"))?;
    }
    report.step("entries at the end", |what| {
        compare(what, numbers.entries(), numbers.keyspace.iter())
    })?;
    drop(numbers);
    report.verify_and_close(database)
}

/// Bytes written to the data file and the log, per byte of users, between two moments.
fn write_amplification(before: &Stats, after: &Stats) -> f64 {
    let written = |stats: &Stats| stats.io.data_bytes_written + stats.io.log_bytes_written;
    let user = after.commits.user_bytes - before.commits.user_bytes;
    (written(after) - written(before)) as f64 / user.max(1) as f64
}

/// Numbered keys, and how often each was written.
struct Numbers {
    keyspace: Keyspace,
    writes: Vec<u64>,
    random: u64,
}

impl Numbers {
    /// The key and the value of a number; the value also follows from how often it was written.
    fn entry(&self, number: usize) -> ([u8; 8], Vec<u8>) {
        let key = (number as u64).to_be_bytes();
        (key, [key, self.writes[number].to_be_bytes()].concat().repeat(7))
    }

    fn entries(&self) -> impl Iterator<Item = ([u8; 8], u64)> {
        let entries = (0..self.writes.len()).map(|number| self.entry(number));
        entries.map(|(key, value)| (key, digest(&value)))
    }

    fn write(&mut self, number: usize) -> Result<()> {
        self.writes[number] += 1;
        let (key, value) = self.entry(number);
        Ok(self.keyspace.insert(key, value)?)
    }

    /// A pseudo-random number of `range`.
    fn draw(&mut self, range: &Range<usize>) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = usize::try_from(self.random >> 33).unwrap_or(0);
        range.start + random % range.len()
    }

    fn update(&mut self, count: u64, range: &Range<usize>) -> Result<Done> {
        for _ in 0..count {
            let number = self.draw(range);
            self.write(number)?;
        }
        Ok(amount(count))
    }

    fn get(&mut self, count: u64, range: &Range<usize>) -> Result<Done> {
        for _ in 0..count {
            let number = self.draw(range);
            let (key, value) = self.entry(number);
            if self.keyspace.get(key)?.is_none_or(|found| found != value) {
                return Err(mismatch("a get", &key));
            }
        }
        Ok(amount(count))
    }
}

/// `count` entries.
fn amount(count: u64) -> Done {
    Done { count, bytes: count * ENTRY_BYTES, note: String::new() }
}
