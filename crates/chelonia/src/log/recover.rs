//! Recovery: replays a log from a position, decides where it ends, and continues after that.
//!
//! ```text
//!   from                                   p
//!    |  record  record  record  ...  record | torn, or damaged, or nothing
//!    '----------- replayed -----------------'
//!                                            a watermark beyond p, here or in the superblock:
//!                                                the log was durable further -> `Corrupt`
//!                                            none: not acknowledged as durable -> cut at p
//! ```
//! Opening a log for writing then does the following, in this order:
//! 1. It syncs the replayed segments: after a process crash they may be in the page cache only, and
//!    replayed records must not be lost in a later power failure.
//! 2. It creates a segment with block numbers above all that were seen, whose header says that it
//!    continues p, and makes it durable before the first append. From then on every recovery that
//!    arrives at p continues there, so the bytes after p in the older file are never accepted, even
//!    if they look valid at a later recovery. No bytes before p are overwritten.
//!
//! Until step 2 is done, nothing that a recovery could need has been changed: it may be interrupted
//! at any moment and repeated with the same result. If the segment that begins at p is empty (an
//! earlier recovery created it), the new one takes over the position which that one continued, so
//! that repeated crashes do not accumulate segments. The blocks of the empty one, and on a full
//! device those after p in the segment that contains p, are punched out before step 2, because the
//! new segment may need their space: all of them are beyond the end, and read as never written
//! afterwards.
//!
//! If there is still no space for the new segment, the log is open without one, and step 2 is done
//! by the first append that finds space ([`LogTail::without_segment`]). Until then the end must be
//! found at p again. The bytes after a torn end do not change, but a record that was cut could be
//! accepted later: when its keyspace is dropped, the data that it lacks is not needed any more. So
//! its head is overwritten with zeros, in place. If that fails, so does the recovery.
//!
//! A read-only recovery writes nothing.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Lsn;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::log::format::{
    BLOCK_HEADER_BYTES, LogPosition, RECORD_HEAD_BYTES_MAX, SegmentHeader, block_of, block_start,
    offset_of, place,
};
use crate::log::reader::{Evidence, Inventory, Reader, Step};
use crate::log::segments::Inherited;
use crate::log::slots::slot_name;
use crate::log::tail::LogTail;
use crate::log::{Log, LogOptions};
use crate::runtime::coverage::{Mark, mark};
use crate::runtime::sync::Arc;
use crate::storage::io::{Access, Directory, OpenMode};

/// The error for a log without the segment in which replay begins.
pub(in crate::log) fn no_beginning(from: LogPosition) -> Error {
    Error::corrupt(format!(
        "no file log-NNNN holds byte {} of the log, where recovery begins: restore the missing \
         file",
        from.lsn.0
    ))
}

/// Result of replaying a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replay {
    /// Continue with the next record.
    Continue,
    /// The log ends before this record: data it refers to is missing. Damage, if the record was
    /// durable.
    Cut,
}

/// Access mode of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogMode {
    /// Replay and continue writing.
    ReadWrite,
    /// Replay without changing anything.
    ReadOnly,
}

/// Result of a recovery.
pub struct Recovered {
    /// The log to write to; `None` if it was opened read-only.
    pub writer: Option<(LogTail, Arc<Log>)>,
    /// Start of the next record.
    pub end: LogPosition,
    /// Payload bytes of the replayed records.
    pub payload_bytes: u64,
}

/// Called with the start of a record, its payload, and its end.
pub type ReplayFn<'a> = dyn FnMut(LogPosition, &[u8], LogPosition) -> Result<Replay> + 'a;

/// Progress of a replay.
struct Walk {
    end: LogPosition,
    why: &'static str,
    /// True if there is a record at `end`, which was cut.
    is_cut: bool,
    payload_bytes: u64,
    /// The segment that begins at `end`, if the walk entered it through its `continues_from`.
    entered: Option<(usize, SegmentHeader)>,
}

impl Log {
    /// Replays the log of `dir` from `from` (a record start, or the end of the log) and continues
    /// after it. Everything before `durable` is known to have been durable. Fails with `Corrupt` if
    /// durable records cannot be read; `replay` may have been called with records before that.
    pub fn recover(
        dir: &Arc<dyn Directory>,
        options: &LogOptions,
        from: LogPosition,
        durable: Lsn,
        mode: LogMode,
        replay: &mut ReplayFn<'_>,
    ) -> Result<Recovered> {
        let open_mode = match mode {
            LogMode::ReadWrite => OpenMode::Write,
            LogMode::ReadOnly => OpenMode::Read,
        };
        if place(block_of(from.lsn), offset_of(from.lsn)) != from.lsn {
            return Err(Error::corrupt("the trim position of the log is not a valid record start"));
        }
        if mode == LogMode::ReadWrite {
            // A removed file that reappeared after a later power failure would claim the serial and
            // the blocks of segments created from now on.
            dir.sync()?;
        }
        let inventory = Inventory::scan(&**dir, options.salt, open_mode)?;
        let number = block_of(from.lsn);
        let (begins_in, known) = inventory.begin(from);
        if !known {
            return Err(no_beginning(from));
        }
        let mut reader = Reader::new(&inventory, options.salt);
        reader.visited.extend(begins_in);
        let walk = walk(&inventory, &mut reader, from, replay)?;
        let end = walk.end;
        let evidence = reader.evidence(block_of(end.lsn))?;
        judge(&inventory, &walk, &evidence, durable)?;
        let mut recovered = Recovered { writer: None, end, payload_bytes: walk.payload_bytes };
        if mode == LogMode::ReadWrite {
            let visited: Vec<usize> = reader.visited.iter().copied().collect();
            let next_block = evidence.end_block.max(inventory.end_block).max(number + 1);
            let (tail, log) = resume(dir, options, &inventory, &walk, from, &visited, next_block)?;
            recovered.end = tail.position();
            recovered.writer = Some((tail, log));
        }
        Ok(recovered)
    }
}

/// Replays one record after another.
fn walk(
    inventory: &Inventory,
    reader: &mut Reader<'_>,
    from: LogPosition,
    replay: &mut ReplayFn<'_>,
) -> Result<Walk> {
    let mut walk = Walk { end: from, why: "", is_cut: false, payload_bytes: 0, entered: None };
    loop {
        if let Some((at, header)) = inventory.continuation(walk.end) {
            // This moves forward: a header never continues a position after its own first block.
            walk.end.lsn = block_start(header.first_block);
            walk.entered = Some((at, header));
            mark(Mark::LogWentOnElsewhere);
            reader.visited.insert(at);
            continue;
        }
        match reader.next(walk.end)? {
            Step::Record { payload, end } => {
                if replay(walk.end, payload, end)? == Replay::Cut {
                    mark(Mark::LogCutAtLargeValue);
                    walk.why = "a record refers to missing data";
                    walk.is_cut = true;
                    return Ok(walk);
                }
                walk.payload_bytes += payload.len() as u64;
                walk.end = end;
            }
            Step::Skip(next) => walk.end = next,
            Step::End { why, .. } => {
                walk.why = why;
                return Ok(walk);
            }
        }
        walk.entered = None;
    }
}

/// Fails if the log is known to have been durable beyond its end.
fn judge(inventory: &Inventory, walk: &Walk, evidence: &Evidence, durable: Lsn) -> Result<()> {
    let end = walk.end.lsn;
    let said_by = match &evidence.watermark {
        _ if durable > end => "the superblock".to_owned(),
        Some((watermark, file, offset)) if *watermark > end => {
            format!("the block at {offset} of {file}")
        }
        _ => return Ok(()),
    };
    let why = walk.why;
    let reason = format!(
        "the log is damaged before its durable end ({why}; durable according to {said_by})"
    );
    Err(inventory.damage(end, &reason))
}

/// Continues after the end of the walk.
fn resume(
    dir: &Arc<dyn Directory>,
    options: &LogOptions,
    inventory: &Inventory,
    walk: &Walk,
    from: LogPosition,
    visited: &[usize],
    next_block: u64,
) -> Result<(LogTail, Arc<Log>)> {
    // An empty segment in which the walk ended is replaced, unless the walk began in it: then the
    // superblock refers to its beginning.
    let replaced = walk.entered.filter(|(_, header)| from.lsn <= header.continues_from.lsn);
    let continued = replaced.map_or(walk.end, |(_, header)| header.continues_from);
    let mut inherited = Inherited {
        next_block: next_block.max(block_of(walk.end.lsn) + 1),
        next_serial: inventory.next_serial,
        ..Inherited::default()
    };
    let mut old = Vec::new();
    for (at, found) in inventory.files.iter().enumerate() {
        if replaced.is_some_and(|(replaced, _)| replaced == at) {
            mark(Mark::LogEmptySegmentReplaced);
            inherited.kept_slots.push(found.slot);
            let segment = found.to_segment();
            // The replacement may need the space. A record that was cut may have to be overwritten,
            // which must not take space.
            let used = (1 + u64::from(walk.is_cut)) * BLOCK_BYTES_U64;
            let _ = segment.file.punch_hole(used, segment.file_bytes() - used);
            old.push(segment);
        } else if visited.contains(&at) {
            found.file.sync()?;
            inherited.live.push(found.to_segment());
        } else {
            inherited.free.push(found.to_segment());
        }
    }
    inherited.live.sort_by_key(|segment| segment.first_block);
    for slot in &inventory.stray_slots {
        mark(Mark::LogStrayRemoved);
        dir.remove(&slot_name(*slot))?;
    }
    let mapped = dir.facts().mapped_log;
    let segments = Log::segments(Arc::clone(dir), options, inherited)?;
    let open = match segments.begin(continued) {
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            // The log can be read, and the first append tries again.
            mark(Mark::LogBegunWithoutSpace);
            if walk.is_cut {
                overwrite_head(&**dir, inventory, walk.end.lsn)?;
            }
            None
        }
        open => Some(open?),
    };
    if open.is_some() {
        old.drain(..).for_each(|segment| segments.give(segment));
    }
    let (tail, log) = Log::begin(segments, (options, mapped), open, continued);
    log.trim(from);
    Ok((tail, log))
}

/// Durably overwrites the head of the record at `lsn` with zeros.
fn overwrite_head(dir: &dyn Directory, inventory: &Inventory, lsn: Lsn) -> Result<()> {
    let Some((at, block)) = inventory.find(block_of(lsn)) else {
        return Err(Error::internal("a record that was read is in no file"));
    };
    mark(Mark::LogCutOverwritten);
    let name = slot_name(inventory.files[at].slot);
    let file = dir.open(&name, OpenMode::Write, Access::Buffered)?;
    let start = block + offset_of(lsn).max(BLOCK_HEADER_BYTES) as u64;
    file.write_at(&[0; RECORD_HEAD_BYTES_MAX], start)?;
    file.sync()
}
