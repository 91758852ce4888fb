//! Backups of an open database, verified by opening them.

use crate::api::builder::DatabaseBuilder;
use crate::api::database::Database;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::MEMORY_BYTES_MIN;
use crate::integrity::backup::{BackupProgress, BackupReport, clear};
use crate::runtime::sync::Arc;
use crate::storage::io::Directory;
use crate::storage::io::direct::DirectDirectory;
use std::path::Path;

/// How often the copy is opened while others have its lock.
const ATTEMPTS_MAX: u32 = 100;

impl Database {
    /// Makes a backup at `path` while reads and writes go on: a database with exactly the commits
    /// that a snapshot of this moment shows, which is opened to restore it. The path is an empty
    /// directory, or is created; its parent directory must exist.
    ///
    /// The backup is durable when this returns, and has been read and verified. A crash before that
    /// leaves an empty directory, one that cannot be opened as a database, or a complete copy;
    /// remove it. So open backups with [`DatabaseBuilder::create`] set to false. Meanwhile the
    /// database holds the space of what is copied, as for a snapshot. The copy occupies as many
    /// bytes as the data in use; its log is empty.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::Database;
    /// let database = Database::open(&path)?;
    /// let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let report = database.backup(directory.path().join("backup"))?;
    /// people.insert("grace", "admiral")?; // Not in the backup.
    /// assert_eq!((report.keyspaces, report.entries), (1, 1));
    ///
    /// let restored = Database::open(directory.path().join("backup"))?;
    /// let people = restored.keyspace("people", Default::default())?;
    /// assert_eq!((people.len()?, people.get("ada")?.unwrap()), (1, b"analyst"[..].into()));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the directory has files; `AlreadyOpen` if a database or another backup
    /// is there; `NotFound` if its parent does not exist; `Corrupt` if data of the database is
    /// damaged; `ReadOnly`, as memtables have to be flushed; otherwise as a commit, for the disk of
    /// the backup too. The database is unchanged.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(path, |_| {})
    }

    /// Makes a backup at `path` and reports its progress. As [`Database::backup`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", vec![7; 1 << 20])?;
    /// let mut done = 0;
    /// database.backup_with(directory.path().join("backup"), |progress| {
    ///     assert!(progress.bytes_done <= progress.bytes_total);
    ///     done = progress.bytes_done;
    /// })?;
    /// assert!(done > 1 << 20);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Database::backup`].
    pub fn backup_with(
        &self,
        path: impl AsRef<Path>,
        on_progress: impl FnMut(BackupProgress),
    ) -> Result<BackupReport> {
        let path = path.as_ref();
        // Refused before a directory is made.
        self.handle.upkeep().check_write()?;
        let target: Arc<dyn Directory> = Arc::new(DirectDirectory::open(path, true)?);
        let made = self.backup_into(&target, path, on_progress);
        made.map_err(|error| error.within(target.path()))
    }

    /// Makes a backup in `target`, which is called `path`.
    pub(crate) fn backup_into(
        &self,
        target: &Arc<dyn Directory>,
        path: &Path,
        mut on_progress: impl FnMut(BackupProgress),
    ) -> Result<BackupReport> {
        let mut report = self.handle.upkeep().backup(target, &mut on_progress)?;
        let verified = self.open_copy(target, path).and_then(|copy| copy.verify());
        let finding = match verified {
            Ok(found) => {
                report.entries = found.entries;
                found.findings.into_iter().next()
            }
            Err(error) => Some(error),
        };
        let Some(error) = finding else { return Ok(report) };
        if error.kind() != ErrorKind::Corrupt {
            // It is complete, and could not be read, or somebody has opened it.
            return Err(error);
        }
        // A damaged copy must not be taken for a backup.
        clear(&**target);
        let text = format!(
            "the backup was removed, because the data in it is damaged: {error}; verify the \
             database"
        );
        Err(Error::corrupt(text))
    }

    /// Opens a complete copy read-only; waits while another thread looks whether it is there.
    fn open_copy(&self, target: &Arc<dyn Directory>, path: &Path) -> Result<Database> {
        let mut attempt = 0;
        loop {
            let mut builder = DatabaseBuilder::new(path).read_only(true).memory(MEMORY_BYTES_MIN);
            builder.settings.internals.directory = Some(Arc::clone(target));
            match builder.open() {
                Err(error) if error.kind() == ErrorKind::AlreadyOpen && attempt < ATTEMPTS_MAX => {
                    self.handle.pause(attempt);
                    attempt += 1;
                }
                opened => return opened,
            }
        }
    }
}
