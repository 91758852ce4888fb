//! How one commit is made: how durable it is, and how long it may wait to begin.

use crate::options::keyspace::Durability;
use crate::runtime::clock::Clock;
use std::time::Duration;

/// Options of one commit, for [`crate::Batch::commit_with`], [`crate::Keyspace::insert_with`] and
/// [`crate::Keyspace::remove_with`]. A [`Durability`] alone converts into them.
///
/// A commit waits where the background cannot keep up with the writes (back-pressure): for memory,
/// for its pace, or for space on a device that is nearly full. It waits as long as that takes,
/// unless a limit is set here. Then it fails with [`crate::ErrorKind::WouldBlock`] when the time is
/// over, and nothing was changed. The limit does not cut short what comes after: writing large
/// values, the log, and at level [`Durability::Sync`] the sync. It is the background that works
/// meanwhile, so that the same commit succeeds later.
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
///         // Do something else first; then with some patience.
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
    /// The durability of the database, and as long a wait as need be.
    pub fn new() -> Self {
        Self::default()
    }

    /// How safe the commit is when its call returns; that of the database by default.
    pub fn durability(mut self, level: Durability) -> Self {
        self.durability = Some(level);
        self
    }

    /// The longest time that the commit may wait before it begins.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The commit does not wait: a timeout of zero.
    pub fn no_wait(self) -> Self {
        self.timeout(Duration::ZERO)
    }
}

impl From<Durability> for CommitOptions {
    fn from(level: Durability) -> Self {
        Self::new().durability(level)
    }
}

/// Until when something may wait, on the clock of the database.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Duration>,
}

impl Deadline {
    /// `timeout` from now; `None` for never.
    pub fn after(timeout: Option<Duration>, clock: &Clock) -> Self {
        Self { at: timeout.map(|timeout| clock.now().saturating_add(timeout)) }
    }

    /// The time that is left; `None` if there is no end to it.
    pub fn left(self, clock: &Clock) -> Option<Duration> {
        self.at.map(|at| at.saturating_sub(clock.now()))
    }
}
