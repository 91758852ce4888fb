//! A job queue that loses no job when a worker dies.
//!
//! ```text
//!   keyspace "waiting"    number of the job, 8 bytes big-endian -> job
//!   keyspace "running"    the same, while a worker has it
//!
//!   add -> waiting -- take --> running -- finish --> removed
//!             ^                   |
//!             '----- an open -----'    the worker died with its process
//! ```
//!
//! A job moves from one keyspace to the other in one transaction, so it is always in exactly one of
//! them, and of two workers that see the same job one takes it.
//! A job that was running when the process died runs again, so a job must be safe to repeat.
//!
//! Run it: `cargo run -p chelonia-examples --bin job_queue`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use chelonia::{Database, Key, Keyspace, KeyspaceOptions, Value};
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

struct Queue {
    database: Database,
    waiting: Keyspace,
    running: Keyspace,
    /// The number of the next job.
    next: AtomicU64,
}

impl Queue {
    /// Opens the queue. Jobs that were running are waiting again, before all others.
    fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let database = Database::open(path)?;
        let waiting = database.keyspace("waiting", KeyspaceOptions::default())?;
        let running = database.keyspace("running", KeyspaceOptions::default())?;
        for entry in running.iter() {
            let (number, job) = entry?;
            database.batch().insert(&waiting, &number, job).remove(&running, &number).commit()?;
        }
        let next = match waiting.last_key_value()? {
            Some((number, _)) => u64::from_be_bytes(number[..].try_into()?) + 1,
            None => 0,
        };
        Ok(Self { database, waiting, running, next: AtomicU64::new(next) })
    }

    fn add(&self, job: &str) -> chelonia::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.insert(number.to_be_bytes(), job)
    }

    /// The oldest waiting job, which is running from now on.
    fn take(&self) -> chelonia::Result<Option<(Key, Value)>> {
        self.database.transact(|transaction| {
            let oldest = transaction.iter(&self.waiting).next().transpose()?;
            if let Some((number, job)) = &oldest {
                transaction.remove(&self.waiting, number)?;
                transaction.insert(&self.running, number, job)?;
            }
            Ok(oldest)
        })
    }

    fn finish(&self, number: &Key) -> chelonia::Result<()> {
        self.running.remove(number)
    }
}

/// Does jobs until none is waiting; returns their number.
fn work(queue: &Queue) -> chelonia::Result<u32> {
    let mut done = 0;
    while let Some((number, _job)) = queue.take()? {
        // Here the job is done.
        queue.finish(&number)?;
        done += 1;
    }
    Ok(done)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("jobs");

    let queue = Queue::open(&path)?;
    for number in 0..1_000 {
        queue.add(&format!("send letter {number}"))?;
    }
    let (_, lost) = queue.take()?.ok_or("a job waits")?;
    println!("a worker takes {:?}, and the process ends", String::from_utf8_lossy(&lost));
    drop(queue);

    let queue = Queue::open(&path)?;
    let (number, again) = queue.take()?.ok_or("a job waits")?;
    println!("after the reopen the first job is {:?}", String::from_utf8_lossy(&again));
    assert_eq!(again, lost);
    queue.finish(&number)?;

    let done: Vec<u32> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&queue))).collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().expect("the workers above do not panic"));
        joined.collect::<chelonia::Result<_>>()
    })?;
    println!("four workers did {} jobs, each of them once", done.iter().sum::<u32>());
    assert_eq!(done.iter().sum::<u32>(), 999);
    assert!(queue.waiting.is_empty()? && queue.running.is_empty()?);
    Ok(())
}
