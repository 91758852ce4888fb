//! Where a check of what is stored tells what it saw.

use crate::base::error::Error;

/// Is told by parts and engines what they read and what is wrong with it.
pub trait CheckReport {
    /// So many blocks were read and checked.
    fn blocks(&mut self, count: u64);
    /// So many entries were seen.
    fn entries(&mut self, count: u64);
    /// Something is wrong; the check goes on where it can.
    fn finding(&mut self, error: Error);
}

/// Hands everything on, and knows whether anything was wrong.
pub struct Relay<'a> {
    report: &'a mut dyn CheckReport,
    is_complete: bool,
}

impl<'a> Relay<'a> {
    /// Hands on to `report`.
    pub fn to(report: &'a mut dyn CheckReport) -> Self {
        Self { report, is_complete: true }
    }

    /// True if nothing was found so far.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl CheckReport for Relay<'_> {
    fn blocks(&mut self, count: u64) {
        self.report.blocks(count);
    }

    fn entries(&mut self, count: u64) {
        self.report.entries(count);
    }

    fn finding(&mut self, error: Error) {
        self.is_complete = false;
        self.report.finding(error);
    }
}
