//! Verification: everything that is stored is read and checked.

use crate::base::error::{Error, Result};
use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::db::core::Core;
use crate::db::view::View;
use crate::engine;

/// What [`crate::Database::verify`] read and found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Blocks read and checked.
    pub blocks: u64,
    /// Entries seen, newer and older versions of a key and tombstones counted each.
    pub entries: u64,
    /// What is wrong, each with file and offset where there is one.
    pub findings: Vec<Error>,
}

impl VerifyReport {
    /// True if nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl engine::VerifyReport for VerifyReport {
    fn blocks(&mut self, count: u64) {
        self.blocks += count;
    }

    fn entries(&mut self, count: u64) {
        self.entries += count;
    }

    fn finding(&mut self, error: Error) {
        self.findings.push(error);
    }
}

impl Core {
    /// Reads the superblock's copies, the catalog, and everything that the newest version of every
    /// keyspace refers to, while reads and writes go on.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.health.check_read()?;
        let mut report = VerifyReport::default();
        match self.storage.verify_root() {
            Ok(blocks) => report.blocks += blocks,
            Err(error) => report.findings.push(error),
        }
        for keyspace in self.all_keyspaces() {
            let pin = self.pin_one(&keyspace);
            let Some(view) = pin.view(keyspace.id) else { continue };
            if let Err(error) = view.version.version().verify(&mut report) {
                report.findings.push(error);
            }
            self.verify_large_values(&view, pin.seqno(), &mut report)?;
        }
        Ok(report)
    }

    /// The large values that only memtables and the log refer to.
    fn verify_large_values(&self, view: &View, at: SeqNo, report: &mut VerifyReport) -> Result<()> {
        for buffer in &view.buffers {
            let mut cursor = buffer.memtable.cursor(KeyRange::all(), Direction::Ascending, at);
            while cursor.key().is_some() {
                if let Update::PutLarge(large) = cursor.update() {
                    match self.storage.verify_large(&large) {
                        Ok(blocks) => report.blocks += blocks,
                        Err(error) => report.findings.push(error),
                    }
                }
                cursor.advance()?;
            }
        }
        Ok(())
    }
}
