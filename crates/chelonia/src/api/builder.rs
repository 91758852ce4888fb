//! The options for opening a database.

#[cfg(feature = "internals")]
use crate::options::database::Internals;
use crate::options::database::{LogLayout, RecoveryProgress, Settings};
use crate::options::keyspace::Durability;
use crate::runtime::sync::Arc;
use crate::storage::io::memory::MemoryDirectory;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The options for opening a database; [`crate::Database::builder`] returns it.
#[must_use]
pub struct DatabaseBuilder {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
}

impl DatabaseBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), settings: Settings::default() }
    }

    /// Sets the memory budget in bytes (default 256 MiB, minimum 32 MiB). It covers all memory of
    /// the database, except batches and the keys and values returned to callers.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let database = Database::builder(&path).memory(64 << 20).open()?;
    /// assert_eq!(database.stats().memory.budget_bytes, 64 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.memory = bytes;
        self
    }

    /// Sets the durability of commits that do not choose one (default [`Durability::Process`]).
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let builder = Database::builder(&path).durability(chelonia::Durability::Sync);
    /// let people = builder.open()?.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?; // Synced when it returns.
    /// # assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn durability(mut self, level: Durability) -> Self {
        self.settings.durability = level;
        self
    }

    /// Sets whether the database is opened read-only (default false). A read-only database is not
    /// modified. Any number of processes may have it open read-only, but not while a writer has it
    /// open. Commits that a crash left in the log are visible; if they do not fit in memory, they
    /// go to an unnamed temporary file in the database's directory or, if that is not writable, in
    /// `/var/tmp`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// # Database::open(&path)?.close()?;
    /// let database = Database::builder(&path).read_only(true).open()?;
    /// let error = database.keyspace("new", Default::default()).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// assert_eq!(database.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.settings.read_only = read_only;
        self
    }

    /// Sets whether a missing database is created (default true; never when read-only).
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let error = Database::builder(&path).create(false).open().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// Keeps the files of the database in memory, not at the path: for tests. It works like any
    /// other, with the same code above its files, and is gone when its last handle is dropped.
    ///
    /// Its files take about as much memory as they would take on a disk. The memory budget does not
    /// count it, and it is not returned before the database is gone.
    ///
    /// ```
    /// # use chelonia::Database;
    /// let database = Database::builder("not a path").memory(64 << 20).in_memory().open()?;
    /// let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// database.checkpoint()?;
    /// assert!(!std::path::Path::new("not a path").exists());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn in_memory(mut self) -> Self {
        self.settings.internals.directory = Some(Arc::new(MemoryDirectory::new()));
        self
    }

    /// Sets the maximum number of threads of a background merge (default: the number of processors;
    /// twice that up to four threads). Fewer work where the memory budget is small, and at most
    /// four on a keyspace of the engine `autumn`.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let database = Database::builder(&path).threads(1).open()?;
    /// # assert!(database.keyspaces().is_empty());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn threads(mut self, threads: usize) -> Self {
        self.settings.threads = Some(threads);
        self
    }

    /// Sets the target duration of one full scrub, which reads and verifies all data in the
    /// background, spread evenly over that time (default 14 days; `None` disables it). Findings are
    /// in [`crate::Stats::scrub`]. A
    /// read-only database is not scrubbed.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// # use std::time::Duration;
    /// let week = Duration::from_secs(7 * 24 * 60 * 60);
    /// let database = Database::builder(&path).scrub_interval(Some(week)).open()?;
    /// assert!(database.stats().scrub.findings.is_empty());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn scrub_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.scrub_interval = interval;
        self
    }

    /// Sets how commits are laid out in the write-ahead log (default [`LogLayout::Shared`]). An
    /// existing database keeps the number of logs with which it was created; whether a single one
    /// is [`LogLayout::Sparse`] is chosen by each open.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind, LogLayout};
    /// let builder = Database::builder(&path).log_layout(LogLayout::PerThread { logs: 4 });
    /// let people = builder.open()?.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// # assert!(people.contains_key("ada")?);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn log_layout(mut self, layout: LogLayout) -> Self {
        self.settings.log_layout = layout;
        self
    }

    /// Sets a callback that reports the progress of recovery. It is called on the opening thread.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, ErrorKind};
    /// let report = |progress: chelonia::RecoveryProgress| {
    ///     println!("{} of {} bytes", progress.log_bytes_done, progress.log_bytes_total);
    /// };
    /// let database = Database::builder(&path).on_recovery(report).open()?;
    /// # assert!(database.keyspaces().is_empty());
    /// # Ok::<(), chelonia::Error>(())
    /// ```
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
