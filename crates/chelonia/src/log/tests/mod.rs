//! Tests of the complete log: recovery after closing, damage, power failures and I/O errors.

mod append;
mod boundaries;
mod crash;
mod damage;
mod refused;
mod several;
mod sim;
mod verify;

use super::recover::{Recovered, Recovery};
use super::slots::LogIdentity;
use super::{Log, LogMode, LogOptions, LogTail, Replay};
use crate::base::error::Result;
use crate::base::ids::Lsn;
use crate::base::logs::LogPosition;
use crate::memory::budget::Budget;
use crate::runtime::rng::Rng;
use crate::runtime::sync::Arc;
use crate::storage::io::Directory;

const SALT: u64 = 0x5eed;

fn options(first: u64, max: u64) -> LogOptions {
    LogOptions {
        identity: LogIdentity::new(0, SALT),
        segment_bytes_first: first,
        segment_bytes_max: max,
        budget: Budget::new(64 << 20),
    }
}

fn small() -> LogOptions {
    options(8 << 10, 32 << 10)
}

fn create(dir: &Arc<dyn Directory>, options: &LogOptions) -> (LogTail, Arc<Log>) {
    Log::create(Arc::clone(dir), options, LogPosition::START).unwrap()
}

fn append(tail: &mut LogTail, log: &Log, payload: &[u8]) -> Result<LogPosition> {
    tail.append(payload, log.payload_hash(payload))
}

/// A payload of at least `bytes` bytes that contains its number.
fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    out.resize(bytes.max(8), 0);
    Rng::new(number).fill(&mut out[8..]);
    out
}

/// Mostly small, sometimes longer than blocks and segments.
fn random_bytes(rng: &mut Rng) -> usize {
    let max = match rng.below(20) {
        0 => 60_000,
        1..5 => 9000,
        5..8 => 2000,
        _ => 200,
    };
    usize::try_from(rng.below(max)).unwrap()
}

type Records = Vec<(LogPosition, Vec<u8>)>;

/// Recovers, collects the replayed records, and checks that they are contiguous.
fn recover(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    from: LogPosition,
    durable: Lsn,
    mode: LogMode,
) -> Result<(Records, Recovered)> {
    let mut records = Records::new();
    let mut last = None;
    let recovered = recover_log(dir, options, from, durable, mode, &mut |start, bytes| {
        assert!(start >= from && last.is_none_or(|last| start > last));
        last = Some(start);
        records.push((start, bytes.to_vec()));
        Ok(Replay::Continue)
    })?;
    Ok((records, recovered))
}

/// Recovers one log, and passes each record and its start to `replay`.
fn recover_log(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    from: LogPosition,
    durable: Lsn,
    mode: LogMode,
    replay: &mut dyn FnMut(LogPosition, &[u8]) -> Result<Replay>,
) -> Result<Recovered> {
    let mut read = Recovery::begin(dir, options.identity, from, mode)?;
    while let Some(start) = read.peek()? {
        if replay(start, read.payload())? == Replay::Cut {
            read.cut("a record refers to missing data")?;
        } else {
            read.accept();
        }
    }
    let judged = read.judge(durable)?;
    read.finish(options, &judged)
}

fn payloads(records: Records) -> Vec<Vec<u8>> {
    records.into_iter().map(|(_, bytes)| bytes).collect()
}
