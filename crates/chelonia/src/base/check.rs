//! Reporting interface for checks of stored data.

use crate::base::error::Error;

/// Receives the progress and the errors of a check.
pub trait CheckReport {
    /// `count` blocks were read and checked.
    fn blocks(&mut self, count: u64);
    /// `count` entries were seen.
    fn entries(&mut self, count: u64);
    /// An error was found; the check continues where it can.
    fn finding(&mut self, error: Error);
}

/// Forwards to another report and remembers whether an error was found.
pub struct Relay<'a> {
    report: &'a mut dyn CheckReport,
    is_complete: bool,
}

impl<'a> Relay<'a> {
    /// Creates a relay to `report`.
    pub fn to(report: &'a mut dyn CheckReport) -> Self {
        Self { report, is_complete: true }
    }

    /// True if no error was found so far.
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
