//! How a database is to be opened.

#[cfg(feature = "internals")]
use crate::options::database::Internals;
use crate::options::database::{RecoveryProgress, Settings};
use crate::options::keyspace::Durability;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of a database; made by [`crate::Database::builder`].
#[must_use]
pub struct DatabaseBuilder {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
}

impl DatabaseBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), settings: Settings::default() }
    }

    /// The memory budget in bytes; 256 MiB by default, at least 32 MiB. It covers everything that
    /// the database keeps in memory; values that callers hold are theirs.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.memory = bytes;
        self
    }

    /// How safe a commit is that names no level; [`Durability::Process`] by default.
    pub fn durability(mut self, level: Durability) -> Self {
        self.settings.durability = level;
        self
    }

    /// Opens for reading only: nothing of the database is changed, any number of processes may do
    /// so at the same time, none of them while a writer has it open. What a crash left in the log
    /// is seen; if that does not fit into memory, a temporary file without a name takes it, in the
    /// database's directory or, where that may not be written, in `/var/tmp`.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.settings.read_only = read_only;
        self
    }

    /// Whether a database that does not exist is made; true by default, never when read-only.
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// The most threads a merge in the background may use; by default twice the number of
    /// processors, at most four.
    pub fn threads(mut self, threads: usize) -> Self {
        self.settings.threads = Some(threads);
        self
    }

    /// How long it may take until everything that is stored was read and checked once, in the
    /// background and evenly over that time; 14 days by default, `None` for never. What was found
    /// is in [`crate::Stats::scrub`]. A database that is open for reading only is not scrubbed.
    pub fn scrub_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.scrub_interval = interval;
        self
    }

    /// Called as recovery goes on, from the opening thread.
    pub fn on_recovery(
        mut self,
        report: impl Fn(RecoveryProgress) + Send + Sync + 'static,
    ) -> Self {
        self.settings.on_recovery = Some(Box::new(report));
        self
    }

    /// Keeps the files there, not at the path.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn in_directory(
        mut self,
        directory: crate::runtime::sync::Arc<dyn crate::storage::io::Directory>,
    ) -> Self {
        self.settings.internals.directory = Some(directory);
        self
    }

    /// Changes what only tests and tools change.
    #[cfg(feature = "internals")]
    pub fn internals(mut self, change: impl FnOnce(&mut Internals)) -> Self {
        change(&mut self.settings.internals);
        self
    }
}
