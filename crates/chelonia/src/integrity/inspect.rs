//! Inspection of an open database for the project's own tests and tools only.

use crate::base::error::{Error, Result};
#[cfg(feature = "internals")]
use crate::base::ids::SeqNo;
use crate::flush::background::LogProgress;
#[cfg(feature = "internals")]
use crate::log::{LogTail, Numbers};
use crate::runtime::clock::Clock;
use crate::state::core::Core;
use crate::storage::data_file::superblock::FIRST_BLOCK;
use std::time::Duration;

/// Checks before a leak is reported, and the interval between two of them.
const LOOKS: u32 = 2_000;
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

impl Core {
    /// Blocks of the data file that are in use, though neither the newest versions nor the durable
    /// root refer to them. Zero after a checkpoint, if nothing older is held.
    ///
    /// Replaced views are dropped when every reader of their time has left; so this checks
    /// repeatedly before it reports a leak.
    pub fn unreachable_blocks(&self) -> Result<u64> {
        let mut looked = Ok(0);
        for _ in 0..LOOKS {
            self.storage.epochs().collect();
            // A flush that ends meanwhile frees extents of the previous version.
            looked = self.unreachable_blocks_now();
            if matches!(looked, Ok(0)) {
                break;
            }
            // Not on the clock of the database, which may stand still: other threads need real
            // time.
            Clock::real().sleep(LOOK_INTERVAL);
        }
        looked
    }

    /// Like [`Core::unreachable_blocks`], with a single check.
    pub fn unreachable_blocks_now(&self) -> Result<u64> {
        let mut reachable = FIRST_BLOCK;
        reachable += self.storage.catalog_extent().map_or(0, |extent| u64::from(extent.blocks));
        reachable += self.storage.spare_extent().map_or(0, |extent| u64::from(extent.blocks));
        for keyspace in self.all_keyspaces() {
            keyspace.engine.version().extents(&mut |owned| {
                if owned.is_allocated() {
                    reachable += u64::from(owned.extent.blocks);
                }
                Ok(())
            })?;
        }
        let space = self.storage.stats().space;
        if space.refused_frees > 0 {
            return Err(Error::internal("an extent was freed that was not in use"));
        }
        let used = space.used_blocks;
        used.checked_sub(reachable)
            .ok_or_else(|| Error::internal("more blocks are referred to than are in use"))
    }

    /// First block, number of blocks and generation of every extent of the newest versions and the
    /// durable catalog.
    #[cfg(feature = "internals")]
    pub fn sealed_extents(&self) -> Result<Vec<(u64, u32, u64)>> {
        let mut extents = Vec::new();
        if let Some(location) = self.storage.superblock().catalog {
            let extent = location.extent;
            extents.push((extent.start.0, extent.blocks, location.generation.0));
        }
        for keyspace in self.all_keyspaces() {
            keyspace.engine.version().extents(&mut |owned| {
                if owned.is_sealed() {
                    extents.push((owned.extent.start.0, owned.extent.blocks, owned.generation.0));
                }
                Ok(())
            })?;
        }
        Ok(extents)
    }

    /// Appends a record to the log without a commit. In one of several logs it begins with the next
    /// seqno, moved by `ahead`.
    #[cfg(feature = "internals")]
    pub fn append_to_log(&self, record: &[u8], ahead: u64) -> Result<()> {
        let no_log = || Error::internal("a writable database has no log of its own");
        let append = |tail: &mut LogTail, payload: &[u8]| {
            let hash = tail.payload_hash(payload);
            tail.append(payload, hash).map(|_| ())
        };
        let mut tails = self.log.get().ok_or_else(no_log)?.lock_tails();
        let mut commit = self.commit.lock();
        if let Some(tail) = &mut commit.tail {
            return append(tail, record);
        }
        let first = SeqNo(commit.next_seqno.0.wrapping_add(ahead));
        let tail = tails.first_mut().and_then(|tail| tail.as_mut()).ok_or_else(no_log)?;
        append(tail, &[&Numbers::front(first)[..], record].concat())
    }

    /// Does the work of the log thread in two intervals without a commit between them (a sync and a
    /// durability witness), and of the scrub thread; for databases without threads.
    pub fn tick(&self) -> Result<()> {
        let mut progress = LogProgress::default();
        self.log_tick(&mut progress)?;
        self.scrub_tick();
        self.log_tick(&mut progress)
    }
}
