//! The dial: one stream of updates at two checkpoint distances, and what each writes to the device.

use super::model::Compared;
use super::open;
use super::report::{Report, Row, Stopwatch};
use crate::failure::{Failure, Result};
use crate::output::bytes;
use chelonia::{Database, Keyspace, KeyspaceOptions};
use std::path::Path;

/// The near distance, in bytes of updates.
const NEAR: u64 = 1 << 20;

/// The far distance is this much farther, unless memory is too small for it.
const FAR_FACTOR: u64 = 32;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// Updates between two moves of the bar.
const BAR_STEP: u64 = 4_096;

/// Writes the stream into two fresh databases below `root`; both must end with the same content.
pub fn turn(root: &Path, memory: u64, updates: u64, report: &mut Report) -> Result<()> {
    report.say("Turning the dial: the same updates at two checkpoint distances")?;
    let far = (NEAR * FAR_FACTOR).min(memory / 8).max(2 * NEAR);
    let near = write(&root.join("dial-near"), memory, NEAR, updates, report)?;
    let far = write(&root.join("dial-far"), memory, far, updates, report)?;
    let watch = Stopwatch::start();
    let mut compared = Compared::default();
    let mut others = far.1.iter();
    for entry in near.1.iter() {
        let (key, value) = entry?;
        match others.next().transpose()? {
            Some((other_key, other)) if other_key == key && other == value => {}
            _ => return Err(Failure::no("MISMATCH: the dial changed what is stored")),
        }
        compared.add(&key, &value);
    }
    if others.next().transpose()?.is_some() {
        return Err(Failure::no("MISMATCH: the dial changed how much is stored"));
    }
    report.add(Row::new("compared across the dial", compared.count, compared.bytes, watch))?;
    drop((near.1, far.1, others));
    near.0.close()?;
    Ok(far.0.close()?)
}

fn write(
    path: &Path,
    memory: u64,
    distance: u64,
    updates: u64,
    report: &mut Report,
) -> Result<(Database, Keyspace)> {
    let database = open(path, memory)?;
    let options = KeyspaceOptions::default().checkpoint_distance(distance);
    let keyspace = database.keyspace("updates", options)?;
    let bar = report.bar(updates);
    let mut stream = Stream::new(updates);
    let mut written = Compared::default();
    let watch = Stopwatch::start();
    for index in 0..updates {
        let (key, value) = stream.next();
        keyspace.insert(key, value)?;
        written.add(&key, &value);
        if index.is_multiple_of(BAR_STEP) {
            bar.set_position(index);
        }
    }
    bar.finish_and_clear();
    // The last of the stream counts too: what is still in the log is not yet written twice.
    database.checkpoint()?;
    let what = format!("updates, checkpoint distance {}", bytes(distance));
    let mut row = Row::new(what, written.count, written.bytes, watch);
    row.write_amplification = Some(database.stats().write_amplification);
    report.add(row)?;
    Ok((database, keyspace))
}

/// Updates of random keys, each written about twice: SplitMix64 from a fixed seed.
struct Stream {
    state: u64,
    keys: u64,
}

impl Stream {
    fn new(updates: u64) -> Self {
        Self { state: 42, keys: (updates / 2).max(1) }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next(&mut self) -> ([u8; 8], [u8; VALUE_BYTES]) {
        // Multiplying by an odd number keeps keys apart and spreads them over the key space.
        let key = (self.random() % self.keys).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut value = [0; VALUE_BYTES];
        for chunk in value.chunks_mut(8) {
            chunk.copy_from_slice(&self.random().to_le_bytes()[..chunk.len()]);
        }
        (key.to_be_bytes(), value)
    }
}
