//! How a database is opened.

use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::limits::MEMORY_BYTES_DEFAULT;
use crate::base::sync::Arc;
use crate::base::workers::Workers;
use crate::db::background::default_workers;
use crate::db::database::Database;
use crate::db::open::{self, RecoveryProgress};
use crate::db::options::Durability;
use crate::storage::io::Directory;
use crate::storage::io::direct::DirectDirectory;
use std::path::{Path, PathBuf};

type ProgressFn = dyn Fn(RecoveryProgress) + Send + Sync;

/// Options of a database; made by [`Database::builder`].
#[must_use]
pub struct DatabaseBuilder {
    path: PathBuf,
    pub(crate) memory: u64,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    threads: Option<usize>,
    pub(crate) on_recovery: Option<Box<ProgressFn>>,
    pub(crate) internals: Internals,
}

/// What only the project's own tests and tools set.
pub struct Internals {
    /// Where files live, if not at the path.
    pub directory: Option<Arc<dyn Directory>>,
    /// Background work is done by the committing thread.
    pub stepped: bool,
    /// Time.
    pub clock: Clock,
    /// The salt of a new database.
    pub salt: Option<u64>,
    /// The bytes of all memtables together.
    pub write_share: Option<u64>,
    /// The size of all log segments.
    pub log_segment_bytes: Option<u64>,
}

impl DatabaseBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            memory: MEMORY_BYTES_DEFAULT,
            durability: Durability::default(),
            read_only: false,
            create: true,
            threads: None,
            on_recovery: None,
            internals: Internals {
                directory: None,
                stepped: false,
                clock: Clock::real(),
                salt: None,
                write_share: None,
                log_segment_bytes: None,
            },
        }
    }

    /// The memory budget in bytes; 256 MiB by default, at least 32 MiB. It covers everything that
    /// the database keeps in memory; values that callers hold are theirs.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// How safe a commit is that names no level; [`Durability::Process`] by default.
    pub fn durability(mut self, level: Durability) -> Self {
        self.durability = level;
        self
    }

    /// Opens for reading only: nothing is written, any number of processes may do so at the same
    /// time, none of them while a writer has the database open.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether a database that does not exist is made; true by default, never when read-only.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// The most threads a merge in the background may use; by default the number of processors, at
    /// most four.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Called as recovery goes on, from the opening thread.
    pub fn on_recovery(
        mut self,
        report: impl Fn(RecoveryProgress) + Send + Sync + 'static,
    ) -> Self {
        self.on_recovery = Some(Box::new(report));
        self
    }

    /// Opens the database, and recovers it if it was not closed. The path is a directory of its
    /// own; a new one is made within a directory that exists.
    ///
    /// # Errors
    /// `AlreadyOpen` if it is open elsewhere; `NotFound` if there is none and none is to be made,
    /// or the directory above is not there; `InvalidArgument` if the path is a file, or its file
    /// `data` somebody else's, or the memory budget is under the minimum; `Unsupported` if the
    /// files are of a newer format; `Corrupt` if durable data is damaged; `PermissionDenied`,
    /// `NoSpace` and `Io` as the system says.
    pub fn open(mut self) -> Result<Database> {
        let directory = match self.internals.directory.take() {
            Some(directory) => directory,
            None => {
                let create = self.create && !self.read_only;
                Arc::new(DirectDirectory::open(&self.path, create)?)
            }
        };
        Ok(Database { handle: open::open(&self, &directory)? })
    }

    /// Changes what only tests and tools change.
    #[cfg(feature = "internals")]
    pub fn internals(mut self, change: impl FnOnce(&mut Internals)) -> Self {
        change(&mut self.internals);
        self
    }

    pub(crate) fn workers(&self) -> Workers {
        match self.threads {
            _ if self.internals.stepped => Workers::inline(),
            Some(threads) => Workers::new(threads),
            None => default_workers(),
        }
    }

    /// A salt for a new database.
    pub(crate) fn salt(&self) -> Result<u64> {
        match self.internals.salt {
            Some(salt) => Ok(salt),
            None => random_salt(),
        }
    }
}

/// 64 bits that nobody can guess.
fn random_salt() -> Result<u64> {
    let mut bytes = [0_u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("get random numbers", "", error.into())),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}
