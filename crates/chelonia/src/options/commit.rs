//! Options of one commit: its durability, and a timeout for the wait before it begins.

use crate::options::keyspace::Durability;
use crate::runtime::clock::Clock;
use std::time::Duration;

/// Options of one commit, for [`crate::Batch::commit_with`], [`crate::Transaction::commit_with`],
/// [`crate::Keyspace::insert_with`], [`crate::Keyspace::remove_with`] and other methods of these
/// names. A [`Durability`] alone converts into them.
///
/// A commit waits before it begins if flushes cannot keep up with writes (back-pressure): for
/// memory, for a flush if a checkpoint distance was set, for pacing, or for space on a nearly full
/// disk. It waits as long as necessary unless a timeout is set. After the timeout it fails with
/// [`crate::ErrorKind::WouldBlock`] and has changed nothing. The timeout does not cover the commit
/// itself: writing large values and the log, and at level [`Durability::Sync`] the sync. Flushes
/// continue meanwhile, so a later retry succeeds.
///
/// ```
/// # use chelonia::{CommitOptions, Database, Durability, ErrorKind, KeyspaceOptions};
/// # use std::time::Duration;
/// # fn main() -> chelonia::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let database = Database::open(directory.path().join("d"))?;
/// let events = database.keyspace("events", KeyspaceOptions::default())?;
/// let options = CommitOptions::new().durability(Durability::Sync).no_wait();
/// match events.insert_with("key", "value", options) {
///     Err(error) if error.kind() == ErrorKind::WouldBlock => {
///         // Do something else first, then wait for a while.
///         events.insert_with("key", "value", options.timeout(Duration::from_secs(5)))?;
///     }
///     done => done?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct CommitOptions {
    pub(crate) durability: Option<Durability>,
    pub(crate) timeout: Option<Duration>,
}

impl CommitOptions {
    /// Creates options with the durability of the database and no timeout.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// # use chelonia::CommitOptions;
    /// assert_eq!(CommitOptions::new(), CommitOptions::default());
    /// people.insert_with("ada", "analyst", CommitOptions::new())?; // As `insert`.
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the durability (default: that of the database).
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// # use chelonia::{CommitOptions, Durability};
    /// let options = CommitOptions::new().durability(Durability::Sync);
    /// assert_eq!(options, Durability::Sync.into());
    /// people.insert_with("ada", "analyst", options)?;
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn durability(mut self, level: Durability) -> Self {
        self.durability = Some(level);
        self
    }

    /// Sets how long the commit may wait before it begins (default: as long as necessary).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets a timeout of zero: the commit fails if it would have to wait.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let database = chelonia::Database::open(directory.path().join("d"))?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// # use chelonia::CommitOptions;
    /// # use std::time::Duration;
    /// let patient = CommitOptions::new().timeout(Duration::from_secs(5));
    /// people.insert_with("ada", "analyst", patient)?;
    /// assert_eq!(patient.no_wait(), CommitOptions::new().timeout(Duration::ZERO));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    pub fn no_wait(self) -> Self {
        self.timeout(Duration::ZERO)
    }
}

impl From<Durability> for CommitOptions {
    fn from(level: Durability) -> Self {
        Self::new().durability(level)
    }
}

/// A deadline on the clock of the database.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Duration>,
}

impl Deadline {
    /// The deadline `timeout` from now; `None` for none.
    pub fn after(timeout: Option<Duration>, clock: &Clock) -> Self {
        Self { at: timeout.map(|timeout| clock.now().saturating_add(timeout)) }
    }

    /// The remaining time; `None` without a deadline.
    pub fn left(self, clock: &Clock) -> Option<Duration> {
        self.at.map(|at| at.saturating_sub(clock.now()))
    }
}
