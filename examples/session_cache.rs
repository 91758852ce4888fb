//! A cache of sessions that expire.
//!
//! ```text
//!   keyspace "sessions"   token -> when it expires, 8 bytes big-endian; user
//!   keyspace "expiry"     when it expires, 8 bytes big-endian; token -> nothing
//! ```
//!
//! A read checks the time in the session, so an expired one is never returned. The index by time
//! finds expired sessions without reading the others. Both change in one batch. Times are
//! handed in, in seconds: a service passes its clock, a test any number.
//!
//! Run it: `cargo run -p chelonia-examples --bin session_cache`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use chelonia::{Batch, Database, Durability, Keyspace, KeyspaceOptions};
use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const LIFETIME: u64 = 1_800;

struct Sessions {
    database: Database,
    sessions: Keyspace,
    expiry: Keyspace,
    /// Held from the read of a session to the write that depends on it: there are no transactions.
    writing: Mutex<()>,
}

impl Sessions {
    fn open(path: &Path) -> chelonia::Result<Self> {
        let database = Database::open(path)?;
        let sessions = database.keyspace("sessions", KeyspaceOptions::default())?;
        let expiry = database.keyspace("expiry", KeyspaceOptions::default())?;
        Ok(Self { database, sessions, expiry, writing: Mutex::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // A thread that panicked left nothing half done: batches are atomic.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user of a session that has not expired, and when it will.
    fn get(&self, token: &str, now: u64) -> chelonia::Result<Option<(u64, String)>> {
        let Some(value) = self.sessions.get(token)? else { return Ok(None) };
        let Some((time, user)) = value.split_first_chunk() else { return Ok(None) };
        let expires = u64::from_be_bytes(*time);
        let user = String::from_utf8_lossy(user).into_owned();
        Ok((now < expires).then_some((expires, user)))
    }

    /// Begins a session.
    fn begin(&self, token: &str, user: &str, now: u64) -> chelonia::Result<()> {
        let _writing = self.lock();
        let mut batch = self.database.batch();
        self.put(&mut batch, token, user, now + LIFETIME);
        // A login must survive a power cut; an extension need not (see `touch`).
        batch.commit_with(Durability::Sync)
    }

    /// Extends a session; false if it has expired.
    fn touch(&self, token: &str, now: u64) -> chelonia::Result<bool> {
        let _writing = self.lock();
        let Some((expires, user)) = self.get(token, now)? else { return Ok(false) };
        let mut batch = self.database.batch();
        batch.remove(&self.expiry, by_time(expires, token));
        self.put(&mut batch, token, &user, now + LIFETIME);
        batch.commit()?;
        Ok(true)
    }

    fn put(&self, batch: &mut Batch, token: &str, user: &str, expires: u64) {
        let value = [&expires.to_be_bytes(), user.as_bytes()].concat();
        batch.insert(&self.sessions, token, value);
        batch.insert(&self.expiry, by_time(expires, token), "");
    }

    /// Removes sessions that have expired, as many as fit into a batch; gives their number. To be
    /// called from time to time.
    fn sweep(&self, now: u64) -> chelonia::Result<usize> {
        let _writing = self.lock();
        let mut batch = self.database.batch();
        for key in self.expiry.iter().keys() {
            let key = key?;
            let Some((time, token)) = key.split_first_chunk() else { break };
            if now < u64::from_be_bytes(*time) || batch.size() > Batch::limit() / 2 {
                break;
            }
            batch.remove(&self.expiry, &key).remove(&self.sessions, token);
        }
        let swept = batch.len() / 2;
        batch.commit()?;
        Ok(swept)
    }
}

fn by_time(expires: u64, token: &str) -> Vec<u8> {
    [&expires.to_be_bytes(), token.as_bytes()].concat()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let sessions = Sessions::open(&directory.path().join("sessions"))?;

    for (token, user) in [("t1", "ada"), ("t2", "grace"), ("t3", "alan")] {
        sessions.begin(token, user, 0)?;
    }
    assert!(sessions.touch("t2", 1_200)?);
    println!("three users log in; 20 minutes later one is back");
    println!("half an hour after the login: {:?}", sessions.get("t1", LIFETIME)?);
    println!("the one that was back:        {:?}", sessions.get("t2", LIFETIME)?);
    println!("sessions swept: {}", sessions.sweep(LIFETIME)?);
    println!("sessions left:  {}", sessions.sessions.len()?);
    assert_eq!((sessions.sessions.len()?, sessions.expiry.len()?), (1, 1));
    Ok(())
}
