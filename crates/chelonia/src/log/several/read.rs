//! Reads all logs of a database: replay and salvage in the order of all writes, verification.

use super::Logs;
use super::numbers::Numbers;
use crate::base::error::{Error, Result};
use crate::base::ids::{Lsn, SeqNo};
use crate::base::logs::{LogMark, LogPosition, PerLog, Starts};
use crate::log::LogOptions;
use crate::log::recover::{LogMode, Recovered, Recovery, Replay};
use crate::log::slots::LogIdentity;
use crate::log::tail::LogTail;
use crate::log::verify::{CheckFn, LogVerified, ReadBack, Verifier};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::storage::io::Directory;

/// A record that is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Replayed<'a> {
    /// Where a replay of this record and all after it would begin.
    pub starts: Starts<'a>,
    /// Its payload, without the seqno with which it begins in one of several logs.
    pub payload: &'a [u8],
}

/// Called with each record, in the order of all writes.
pub type ReplayFn<'a> = dyn FnMut(Replayed<'_>) -> Result<Replay> + 'a;

/// Result of a recovery of all logs.
pub struct RecoveredLogs {
    /// The tail of a single log, and the logs; `None` if they were opened read-only.
    pub writer: Option<(Option<LogTail>, Logs)>,
    /// Where each ends.
    pub ends: PerLog<Lsn>,
    /// Payload bytes of the replayed records.
    pub payload_bytes: u64,
}

impl Logs {
    /// Replays the logs of `dir` from `mark` on and continues after them. Fails with `Corrupt` if
    /// durable records cannot be read; `replay` may have been called with records before that.
    pub fn recover(
        dir: &Arc<dyn Directory>,
        options: &LogOptions,
        mark: &LogMark,
        mode: LogMode,
        replay: &mut ReplayFn<'_>,
    ) -> Result<RecoveredLogs> {
        let count = mark.begin.len();
        let mut reads = Vec::with_capacity(count);
        for (number, from) in mark.begin.iter().enumerate() {
            let log = options.of_log(number, count).identity;
            reads.push(Recovery::begin(dir, log, *from, mode)?);
        }
        let last = match &mut reads[..] {
            [one] => replay_one(one, replay).map(|()| mark.seqno)?,
            several => replay_several(several, mark.seqno, replay)?,
        };
        // All are judged before any of them is changed.
        let judge = |(read, durable): (&mut Recovery, &Lsn)| read.judge(*durable);
        let judged: Result<Vec<_>> = reads.iter_mut().zip(mark.durable.iter()).map(judge).collect();
        let mut recovered = Vec::with_capacity(count);
        for (number, (read, judged)) in reads.into_iter().zip(judged?).enumerate() {
            recovered.push(read.finish(&options.of_log(number, count), &judged)?);
        }
        let ends = PerLog::collect(recovered.iter().map(|one| one.end.lsn));
        let payload_bytes = recovered.iter().map(|one: &Recovered| one.payload_bytes).sum();
        let writers: Vec<_> = recovered.into_iter().filter_map(|one| one.writer).collect();
        let writer = (!writers.is_empty()).then(|| Self::new(writers, last));
        Ok(RecoveredLogs { writer, ends, payload_bytes })
    }

    /// Reads the logs of `dir` from where a recovery would begin, up to `upto`, and passes each
    /// record to `check`, whose errors are reported as damage too. Those of several logs are passed
    /// in one log after the other.
    pub fn verify(
        dir: &dyn Directory,
        salt: u64,
        begin: &PerLog<LogPosition>,
        upto: &PerLog<Lsn>,
        check: &mut CheckFn<'_>,
    ) -> Result<LogVerified> {
        let mut found = LogVerified::default();
        for (number, (from, upto)) in begin.iter().zip(upto.iter()).enumerate() {
            let log = identity(number, salt);
            let mut read = Verifier::of_written(dir, log, *from, *upto)?;
            while read.peek() {
                let checked = pass(&read, begin.len() > 1, check);
                read.accept(checked);
            }
            read.check_headers();
            let one = read.finish();
            found.bytes += one.bytes;
            found.damage.extend(one.damage);
        }
        Ok(found)
    }

    /// Reads the logs of a database that is not open, despite damage, and passes each record to
    /// `take`, in the order of all writes. They are known to be durable as far as `mark` and their
    /// own blocks say: what one of them shows to be durable was so in all, up to that seqno. After
    /// that the read of a log ends at the first record that cannot be read or for which `take`
    /// fails, and of all logs at the first seqno that is missing.
    pub fn salvage(
        dir: &dyn Directory,
        salt: u64,
        mark: &LogMark,
        take: &mut CheckFn<'_>,
    ) -> Result<LogVerified> {
        let begin = || -> Result<Vec<Verifier>> {
            let marks = mark.begin.iter().zip(mark.durable.iter()).enumerate();
            let read = |(number, (from, durable)): (usize, (&LogPosition, &Lsn))| {
                Verifier::of_readable(dir, identity(number, salt), *from, *durable)
            };
            marks.map(read).collect()
        };
        let mut reads = begin()?;
        let mut lost = Vec::new();
        match &mut reads[..] {
            [one] => {
                while one.peek() {
                    let taken = pass(one, false, take);
                    one.accept(taken);
                }
            }
            several => {
                let durable = begin()?.iter_mut().map(last_durable).fold(mark.seqno, SeqNo::max);
                salvage_several(several, (mark.seqno, durable), take, &mut lost);
            }
        }
        let mut found = LogVerified { damage: lost, ..LogVerified::default() };
        for one in reads.into_iter().map(Verifier::finish) {
            found.bytes += one.bytes;
            found.damage.extend(one.damage);
        }
        Ok(found)
    }
}

fn identity(number: usize, salt: u64) -> LogIdentity {
    LogIdentity::new(u8::try_from(number).unwrap_or(u8::MAX), salt)
}

/// Replays one log.
fn replay_one(read: &mut Recovery, replay: &mut ReplayFn<'_>) -> Result<()> {
    while let Some(start) = read.peek()? {
        let record = Replayed { starts: Starts::One(start), payload: read.payload() };
        if replay(record)? == Replay::Cut {
            mark(Mark::LogCutAtLargeValue);
            return read.cut("a record refers to missing data");
        }
        read.accept();
    }
    Ok(())
}

/// Replays several logs in the order of seqnos, up to the first that is missing; returns the last
/// one before it. Replay needs no record up to `after`.
fn replay_several(
    reads: &mut [Recovery],
    after: SeqNo,
    replay: &mut ReplayFn<'_>,
) -> Result<SeqNo> {
    let mut last = after;
    let mut why = "a write before it is missing in another log";
    let mut numbers = vec![None; reads.len()];
    while let Some(at) = next_of(reads, &mut numbers, (after, last))? {
        let starts = PerLog::collect(reads.iter().map(Recovery::position));
        // It may have been forgotten, for its length.
        reads[at].peek()?;
        let (of_record, payload) = Numbers::split(reads[at].payload())?;
        if replay(Replayed { starts: Starts::Each(&starts), payload })? == Replay::Cut {
            mark(Mark::LogCutAtLargeValue);
            why = "a record refers to missing data";
            break;
        }
        reads[at].accept();
        numbers[at] = None;
        last = of_record.last();
    }
    for read in reads {
        if read.peek()?.is_some() {
            mark(Mark::LogCutAtGap);
        }
        read.cut(why)?;
    }
    Ok(last)
}

/// The log whose next record is the one after `last`. Keeps the seqnos of the next record of each
/// in `numbers`.
fn next_of(
    reads: &mut [Recovery],
    numbers: &mut [Option<Numbers>],
    (after, last): (SeqNo, SeqNo),
) -> Result<Option<usize>> {
    for (at, read) in reads.iter_mut().enumerate() {
        while numbers[at].is_none() && read.peek()?.is_some() {
            let (found, _) = Numbers::split(read.payload()).map_err(|error| read.locate(error))?;
            if found.last() <= after {
                // Replay begins at a position before the first record that it needs.
                read.accept();
                continue;
            }
            if found.first <= last {
                let text = format!("a record begins with seqno {}, after {last}", found.first);
                return Err(read.locate(Error::corrupt(text)));
            }
            numbers[at] = Some(found);
            if found.first != last.next() {
                read.forget_payload();
            }
        }
        if numbers[at].is_some_and(|found| found.first == last.next()) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Passes the record that was peeked at on; with its seqnos if it is one of several logs.
fn pass(read: &Verifier, is_numbered: bool, check: &mut CheckFn<'_>) -> Result<()> {
    let Some(record) = read.record() else { return Ok(()) };
    if !is_numbered {
        return check(record);
    }
    let (numbers, payload) = Numbers::split(record.payload)?;
    check(ReadBack { payload, numbers: Some(numbers), seqnos_known: true, ..record })
}

/// The last seqno of those that a log shows to be durable.
fn last_durable(read: &mut Verifier) -> SeqNo {
    let mut last = SeqNo::ZERO;
    while read.peek() {
        let Some(record) = read.record().filter(|record| record.is_durable) else { break };
        last = last.max(Numbers::split(record.payload).map_or(last, |(found, _)| found.last()));
        read.accept(Ok(()));
    }
    last
}

/// Takes the records of several logs in the order of seqnos, from the one after `last` on. Those up
/// to `durable` were durable; `lost` takes what is missing of them without a trace.
fn salvage_several(
    reads: &mut [Verifier],
    (mut last, durable): (SeqNo, SeqNo),
    take: &mut CheckFn<'_>,
    lost: &mut Vec<Error>,
) {
    let mut reported = 0;
    while let Some(at) = oldest(reads) {
        let Some(record) = reads[at].record() else { return };
        let numbers = Numbers::split(record.payload).map(|(numbers, _)| numbers);
        // Durable records are taken despite gaps, which are damage. Otherwise a gap is where a
        // crash ended the log.
        let gap = numbers.as_ref().ok().filter(|numbers| numbers.first > last.next());
        if let Some(numbers) = gap {
            if last >= durable {
                return;
            }
            // A log that ended before may go on behind its damage.
            let further = reads.iter_mut().map(|read| !read.peek() && read.go_on());
            if further.fold(false, |any, one| any | one) {
                continue;
            }
            let findings = reads.iter().map(Verifier::damage_count).sum();
            if findings == reported {
                let (from, to) = (last.next(), numbers.first.0 - 1);
                let text = format!(
                    "the writes {from} to {to} are in no log, although later ones were durable"
                );
                lost.push(Error::corrupt(text));
            }
            reported = findings;
            if numbers.first > durable {
                return;
            }
        }
        if numbers.as_ref().is_ok_and(|numbers| numbers.last() <= durable) {
            reads[at].note_durable();
        }
        let taken = pass(&reads[at], true, take);
        // One that is not taken leaves a gap.
        if let (Ok(numbers), Ok(())) = (numbers, &taken) {
            last = last.max(numbers.last());
        }
        reads[at].accept(taken);
    }
}

/// The log whose next record has the lowest seqnos; one that has none in front is taken at once.
fn oldest(reads: &mut [Verifier]) -> Option<usize> {
    let mut oldest: Option<(SeqNo, usize)> = None;
    for (at, read) in reads.iter_mut().enumerate() {
        if !read.peek() {
            continue;
        }
        let payload = read.record().map(|record| record.payload).unwrap_or_default();
        let first = Numbers::split(payload).map_or(SeqNo::ZERO, |(numbers, _)| numbers.first);
        if oldest.is_none_or(|(best, _)| first < best) {
            oldest = Some((first, at));
        }
    }
    let oldest = oldest.map(|(_, at)| at);
    let others = reads.iter_mut().enumerate().filter(|(at, _)| Some(*at) != oldest);
    others.for_each(|(_, read)| read.forget_payload());
    oldest
}
