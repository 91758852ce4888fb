//! The dial: one database that runs on while its checkpoint distance is turned, and what writes and
//! reads cost at each setting.
//!
//! At each setting as many updates are written to one keyspace, then values of another are read
//! that is at rest, while the last updates still wait in memory: this memory is what a far distance
//! takes from reads. There is less memory than data, for where it holds everything nothing has to
//! be read. Keys are updated again and again: of two updates of a key within the distance only the
//! later one goes to the data file, which is what a far distance spares.

use super::model::Compared;
use super::open;
use super::report::{Report, Row, Stopwatch};
use crate::failure::{Failure, Result};
use crate::output::bytes;
use chelonia::{Database, Keyspace, KeyspaceOptions, Stats};
use indicatif::ProgressBar;
use std::path::Path;

/// The settings, in bytes of updates: there and back.
const DISTANCES: [u64; 3] = [1 << 20, 16 << 20, 1 << 20];

/// The memory of this step, unless the tour has less.
const MEMORY: u64 = 64 << 20;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Updates of each key at each setting, on average.
const UPDATES_PER_KEY: u64 = 20;

/// So many times as many keys are at rest as are updated: with these they are more than memory.
const AT_REST: u64 = 54;

/// So many updates for each read.
const UPDATES_PER_READ: u64 = 30;

/// So many times the reads of a setting go before the first one, and fill the cache.
const READS_BEFORE: u64 = 3;

/// Updates between two moves of the bar.
const BAR_STEP: u64 = 4_096;

/// What the figures mean.
const MEANING: &str = "  what is overwritten within the distance is not written to the data file; \
                       what waits takes memory from reads";

/// Turns the dial of a fresh database below `root`; its content must be what was written.
pub fn turn(root: &Path, memory: u64, updates: u64, report: &mut Report) -> Result<()> {
    let memory = memory.min(MEMORY);
    let within = bytes(memory);
    report.say(format!("Turning the dial of a running database that has {within} of memory"))?;
    let database = open(&root.join("dial"), memory)?;
    let keys = (updates / UPDATES_PER_KEY).max(1);
    let mut resting = Stream::new(&database, "at-rest", keys * AT_REST)?;
    let mut updated = Stream::new(&database, "updated", keys)?;
    let watch = Stopwatch::start();
    let mut written = resting.write_all()?;
    written.extend(updated.write_all()?);
    database.checkpoint()?;
    report.add(Row::new("entries to begin with", written.count, written.bytes, watch))?;
    let reads = updates / UPDATES_PER_READ;
    resting.read(reads * READS_BEFORE)?;
    for distance in DISTANCES {
        updated.keyspace.set_checkpoint_distance(distance)?;
        let distance = bytes(updated.keyspace.checkpoint_distance());

        // As many before those that are measured: until then what waits in the tree is of the
        // setting before.
        updated.update(updates, &report.bar(updates))?;
        let before = database.stats();
        let watch = Stopwatch::start();
        let written = updated.update(updates, &report.bar(updates))?;
        let what = format!("updates, checkpoint distance {distance}");
        let mut writes = Row::new(what, written.count, written.bytes, watch);

        let misses = || database.stats().io.cache_misses;
        let (watch, missed) = (Stopwatch::start(), misses());
        let read = resting.read(reads)?;
        let what = format!("gets, checkpoint distance {distance}");
        let mut row = Row::new(what, read.count, read.bytes, watch);
        row.blocks_read = Some((misses() - missed) as f64 / read.count.max(1) as f64);

        // What the last updates cost belongs to this setting too.
        database.checkpoint()?;
        writes.write_amplification = Some(amplification(&before, &database.stats()));
        report.add(writes)?;
        report.add(row)?;
    }
    report.say(MEANING)?;
    let watch = Stopwatch::start();
    let mut compared = updated.compare()?;
    compared.extend(resting.compare()?);
    report.add(Row::new("compared across the dial", compared.count, compared.bytes, watch))?;
    drop((resting, updated));
    Ok(database.close()?)
}

/// Bytes written for each byte of users between two moments.
fn amplification(before: &Stats, after: &Stats) -> f64 {
    let written = |stats: &Stats| stats.io.data_bytes_written + stats.io.log_bytes_written;
    let user = after.commits.user_bytes - before.commits.user_bytes;
    (written(after) - written(before)) as f64 / user.max(1) as f64
}

/// A keyspace, writes to random keys of it, and what each key has by now. All follows from a fixed
/// seed.
struct Stream {
    keyspace: Keyspace,
    random: SplitMix,
    /// Of each key, by its number: the seed of its value.
    values: Vec<u64>,
}

impl Stream {
    fn new(database: &Database, name: &str, keys: u64) -> Result<Self> {
        let keyspace = database.keyspace(name, KeyspaceOptions::default())?;
        Ok(Self { keyspace, random: SplitMix(keys), values: vec![0; index(keys)] })
    }

    fn write(&mut self, number: u64, written: &mut Compared) -> Result<()> {
        let (key, seed) = (key_of(number), self.random.next());
        let value = value_of(seed);
        self.keyspace.insert(key, value)?;
        self.values[index(number)] = seed;
        written.add(&key, &value);
        Ok(())
    }

    /// Writes every key once.
    fn write_all(&mut self) -> Result<Compared> {
        let mut written = Compared::default();
        for number in 0..self.values.len() as u64 {
            self.write(number, &mut written)?;
        }
        Ok(written)
    }

    fn update(&mut self, updates: u64, bar: &ProgressBar) -> Result<Compared> {
        let mut written = Compared::default();
        for count in 0..updates {
            let number = self.random.below(self.values.len() as u64);
            self.write(number, &mut written)?;
            if count.is_multiple_of(BAR_STEP) {
                bar.set_position(count);
            }
        }
        bar.finish_and_clear();
        Ok(written)
    }

    fn read(&mut self, reads: u64) -> Result<Compared> {
        let mut read = Compared::default();
        for _ in 0..reads {
            let number = self.random.below(self.values.len() as u64);
            let (key, value) = (key_of(number), value_of(self.values[index(number)]));
            match self.keyspace.get(key)? {
                Some(found) if found == value => read.add(&key, &value),
                _ => return Err(Failure::no("MISMATCH: a get while the dial is turned")),
            }
        }
        Ok(read)
    }

    /// Compares all that is stored with all that was written.
    fn compare(&self) -> Result<Compared> {
        let mut expected: Vec<_> = (0_u64..)
            .zip(&self.values)
            .map(|(number, seed)| (key_of(number), value_of(*seed)))
            .collect();
        expected.sort_unstable();
        let (mut expected, mut compared) = (expected.into_iter(), Compared::default());
        for entry in self.keyspace.iter() {
            let (key, value) = entry?;
            match expected.next() {
                Some(expected) if key == expected.0 && value == expected.1 => {}
                _ => return Err(Failure::no("MISMATCH: the dial changed what is stored")),
            }
            compared.add(&key, &value);
        }
        if expected.next().is_some() {
            return Err(Failure::no("MISMATCH: the dial changed how much is stored"));
        }
        Ok(compared)
    }
}

/// Multiplying by an odd number keeps keys apart and spreads them over the key space.
fn key_of(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value_of(seed: u64) -> [u8; VALUE_BYTES] {
    let (mut random, mut value) = (SplitMix(seed), [0; VALUE_BYTES]);
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
    value
}

/// Numbers of keys are less than their count, which is a length.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
