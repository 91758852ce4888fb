//! Verification: reads and checks everything that is stored, while reads and writes go on.
//!
//! The data file is read through the newest version of every keyspace, which stays unchanged while
//! it is held; read-only, through the durable version, so that the blocks and entries counted do
//! not depend on how much of the log the reader's memory took. The log is read from the position
//! where the durable root makes a recovery begin, up to its end at the same moment
//! ([`Logs::verify`]); its segments are held too. The large values that it refers to are not held:
//! a checkpoint may make them unnecessary and free them. So an unreadable one is checked again
//! against the root that is durable then.

use crate::base::check::CheckReport;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, Lsn, SeqNo};
use crate::base::limits::VERIFY_FINDINGS_MAX;
use crate::base::logs::{LogMark, PerLog};
use crate::base::stream::Update;
use crate::log::{Logs, ReadBack};
use crate::state::core::{CheckpointState, Core};
use crate::state::keyspace::KeyspaceCore;
use crate::versions::lifetimes::HeldVersion;
use crate::write::record::Entries;
use std::collections::BTreeMap;

/// The result of [`crate::Database::verify`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Blocks of the data file read and checked.
    pub blocks: u64,
    /// Entries in the trees of the data file; every stored value of a key and every tombstone
    /// counts. The latest writes are only in the log.
    pub entries: u64,
    /// Bytes of the log read and checked: all that a recovery would have read at that moment.
    pub log_bytes: u64,
    /// Writes read from the log, inserts and removes. Some may be in the trees too.
    pub log_entries: u64,
    /// The errors found, each with file and offset if known: the first thousand of them.
    pub findings: Vec<Error>,
    /// The number of errors found.
    pub findings_total: u64,
}

impl VerifyReport {
    /// Returns whether there are no findings.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.checkpoint()?;
    /// let report = database.verify()?;
    /// assert!(report.is_clean());
    /// assert_eq!((report.entries, report.findings_total), (1, 0));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

impl CheckReport for VerifyReport {
    fn blocks(&mut self, count: u64) {
        self.blocks += count;
    }

    fn entries(&mut self, count: u64) {
        self.entries += count;
    }

    fn finding(&mut self, error: Error) {
        self.findings_total += 1;
        if self.findings.len() < VERIFY_FINDINGS_MAX {
            self.findings.push(error);
        }
    }
}

/// The part of the log that a recovery would need if it began now.
struct Needed {
    mark: LogMark,
    absorbed: BTreeMap<KeyspaceId, SeqNo>,
}

impl Needed {
    /// True if replay would not skip a write of `keyspace` with this seqno.
    fn wants(&self, keyspace: KeyspaceId, seqno: SeqNo) -> bool {
        self.absorbed.get(&keyspace).is_some_and(|upto| seqno > *upto)
    }
}

/// A large value that could not be read.
struct Suspect {
    keyspace: KeyspaceId,
    seqno: SeqNo,
    error: Error,
}

impl Core {
    /// Verifies the superblock's copies, the catalog, everything that the newest version of every
    /// keyspace refers to, and the log that is not in those versions yet.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.health.check_read()?;
        let mut report = VerifyReport::default();
        match self.storage.verify_root() {
            Ok(blocks) => report.blocks += blocks,
            Err(error) => report.finding(error),
        }
        for keyspace in self.all_keyspaces() {
            self.verify_tree(&keyspace, &mut report);
        }
        self.verify_log(&mut report)?;
        // Read failures caused by a close are no damage.
        self.health.check_read()?;
        Ok(self.with_paths(report))
    }

    /// Verifies everything that the newest version of `keyspace` refers to.
    pub fn verify_keyspace(&self, keyspace: &KeyspaceCore) -> Result<VerifyReport> {
        self.health.check_read()?;
        let mut report = VerifyReport::default();
        self.verify_tree(keyspace, &mut report);
        self.health.check_read()?;
        Ok(self.with_paths(report))
    }

    fn verify_tree(&self, keyspace: &KeyspaceCore, report: &mut VerifyReport) {
        let pin = self.pin_one(keyspace);
        // A read-only database flushes the log to a scratch file, which is not the user's data.
        let version = match self.read_only {
            true => self.durable_version(keyspace.id),
            false => Some(keyspace.view_at(pin.seqno()).version.clone()),
        };
        let Some(version) = version else { return };
        if let Err(error) = version.version().verify(report) {
            report.finding(error);
        }
    }

    /// Replaces internal file names in the report by those that the user knows.
    fn with_paths(&self, mut report: VerifyReport) -> VerifyReport {
        let findings = std::mem::take(&mut report.findings).into_iter();
        report.findings = findings.map(|error| self.locate(error)).collect();
        report
    }

    fn durable_version(&self, keyspace: KeyspaceId) -> Option<HeldVersion> {
        self.checkpoint.lock().durable.get(&keyspace).map(|durable| durable.version.held())
    }

    fn verify_log(&self, report: &mut VerifyReport) -> Result<()> {
        let _hold = self.log.get().map(|log| log.hold());
        let (needed, (upto, last)) = {
            // Not during a checkpoint: the two belong together.
            let state = self.checkpoint.lock();
            (self.needed_log(&state), self.log_end()?)
        };
        let (mut suspects, mut large_blocks, mut seqno) = (Vec::new(), 0, needed.mark.seqno);
        // Of several logs, which are read one after the other: the writes that replay needs.
        let (mut writes, mut counted) = (0, 0);
        let mut check = |record: ReadBack<'_>| {
            if let Some(numbers) = record.numbers {
                seqno = SeqNo(numbers.first.0 - 1);
                if seqno >= needed.mark.seqno {
                    counted += u64::from(numbers.count);
                }
            }
            let mut entries = Entries::new(record.payload)?;
            while let Some(entry) = entries.next_entry()? {
                seqno = seqno.next();
                writes += 1;
                let Update::PutLarge(large) = entry.update else { continue };
                let keyspace = entry.keyspace;
                // Seqnos after damage are unknown, and so is whether they were absorbed.
                if !record.seqnos_known || !needed.wants(keyspace, seqno) {
                    continue;
                }
                match self.storage.verify_large(&large) {
                    Ok(blocks) => large_blocks += blocks,
                    Err(error) => suspects.push(Suspect { keyspace, seqno, error }),
                }
            }
            Ok(())
        };
        let (directory, salt) = (&*self.directory, self.storage.salt());
        let begin = &needed.mark.begin;
        let verified = match Logs::verify(directory, salt, begin, &upto, &mut check) {
            Ok(verified) => verified,
            Err(error) => {
                report.finding(error);
                return Ok(());
            }
        };
        report.log_bytes += verified.bytes;
        report.log_entries += writes;
        report.blocks += large_blocks;
        if begin.len() > 1 {
            seqno = SeqNo(needed.mark.seqno.0 + counted);
        }
        if verified.damage.is_empty()
            && let Some(last) = last.filter(|last| *last != seqno)
        {
            let (end, last) = (seqno.0, last.0);
            let text = format!("the log ends at seqno {end}, but the last commit at {last}");
            report.finding(Error::corrupt(text));
        }
        verified.damage.into_iter().for_each(|error| report.finding(error));
        if !suspects.is_empty() {
            let needed = self.needed_log(&self.checkpoint.lock());
            suspects.retain(|suspect| needed.wants(suspect.keyspace, suspect.seqno));
            suspects.into_iter().for_each(|suspect| report.finding(suspect.error));
        }
        Ok(())
    }

    /// End of the written log, and the seqno of the last write in it. That is unknown if a record
    /// did not get into one of several logs: all writes are stopped then.
    fn log_end(&self) -> Result<(PerLog<Lsn>, Option<SeqNo>)> {
        let tails = self.log.get().map(Logs::lock_tails).unwrap_or_default();
        let commit = self.commit.lock();
        let is_open = commit.tail.is_some() || tails.first().is_some_and(|tail| tail.is_some());
        let upto = match self.log.get() {
            Some(logs) if is_open => logs.written(),
            _ if self.read_only => commit.opened_ends,
            _ => return Err(Error::new(ErrorKind::Stopped, "the database is being closed")),
        };
        let is_known = upto.len() == 1 || self.health.check_write().is_ok() || self.read_only;
        Ok((upto, is_known.then(|| SeqNo(commit.next_seqno.0 - 1))))
    }

    /// The part of the log that the currently durable root needs.
    fn needed_log(&self, state: &CheckpointState) -> Needed {
        let absorbed = state.durable.iter().map(|(id, durable)| (*id, durable.absorbed)).collect();
        Needed { mark: self.storage.superblock().log, absorbed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_findings_are_counted_and_the_first_are_kept() {
        let mut report = VerifyReport::default();
        assert!(report.is_clean());
        for number in 0..VERIFY_FINDINGS_MAX as u64 + 5 {
            report.finding(Error::corrupt("a block").at("data", number));
        }
        assert!(!report.is_clean());
        let kept = report.findings.iter().map(|error| error.offset().unwrap());
        assert!(kept.eq(0..VERIFY_FINDINGS_MAX as u64));
        assert_eq!(report.findings_total, VERIFY_FINDINGS_MAX as u64 + 5);
    }
}
