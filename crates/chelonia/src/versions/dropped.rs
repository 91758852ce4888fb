//! Dropped keyspaces that handles or pins still hold.
//!
//! A handle of a dropped keyspace returns `NotFound` and needs no data: its version is replaced by
//! [`Empty`], so that the handle holds no space. Pins made before the drop continue to read; the
//! space that they hold is counted here, because the keyspace is in no list any more.
//!
//! Thread-safety: everything may be called from any thread.

use crate::base::check::CheckReport;
use crate::base::checksum::KeyHash;
use crate::base::dump::DumpVisitor;
use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::engine::{Answer, Looked, OwnedExtent, Progress, Salvaged, Version};
use crate::memory::epoch::Guard;
use crate::runtime::sync::{Arc, Mutex, Weak};
use crate::versions::lifetimes::Lifetimes;

/// The keyspaces dropped since the open that still have holders.
#[derive(Default)]
pub struct Dropped {
    lifetimes: Mutex<Vec<Weak<Lifetimes>>>,
}

impl Dropped {
    /// Adds a keyspace.
    pub fn add(&self, lifetimes: &Arc<Lifetimes>) {
        let mut all = self.lifetimes.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(lifetimes));
    }

    /// Bytes of lost extents that pins hold, over all of them.
    pub fn lost_bytes(&self) -> u64 {
        let all: Vec<_> = self.lifetimes.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().map(|one| one.lost_bytes()).sum()
    }
}

/// A version without entries.
pub struct Empty;

impl Version for Empty {
    fn look(&self, _: &[u8], _: KeyHash, _: &Guard) -> Result<Looked> {
        Ok(Looked::Answer(Answer::default()))
    }

    fn read(&self, _: &[u8], _: KeyHash, _: Progress) -> Result<Answer> {
        Ok(Answer::default())
    }

    fn cursor(self: Arc<Self>, _: KeyRange, _: Direction) -> Result<Box<dyn SortedStream + Send>> {
        Ok(Box::new(AtEnd))
    }

    fn root(&self) -> Result<Vec<u8>> {
        // That of a new keyspace.
        Ok(Vec::new())
    }

    fn extents(&self, _: &mut dyn FnMut(OwnedExtent) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn describe(&self, _: &mut dyn DumpVisitor) -> Result<()> {
        Ok(())
    }

    fn verify(&self, _: &mut dyn CheckReport) -> Result<()> {
        Ok(())
    }

    fn salvage(&self, _: &mut dyn Salvaged) -> Result<()> {
        Ok(())
    }
}

/// A stream without entries.
struct AtEnd;

impl SortedStream for AtEnd {
    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn update(&self) -> Update<'_> {
        Update::Delete
    }

    fn advance(&mut self) -> Result<()> {
        Ok(())
    }
}
