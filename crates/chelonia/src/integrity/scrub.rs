//! Scrubbing: what is stored is read again and again, slowly, so that rot is found while there is
//! still a copy somewhere.
//!
//! ```text
//!   tour   | roots | leg | leg | leg | ... |         one tour in `scrub_interval`
//!   leg    the extents that begin in one stretch of the data file
//!   piece  a few blocks of one extent: what a tick reads
//! ```
//!
//! Time pays for blocks: in one interval for as many as are in use. A leg lists extents as the
//! newest versions name them when it begins, and holds nothing. So an extent may be freed, and its
//! blocks written anew, before its turn comes; what looks damaged is believed only if a newest
//! version still names the extent, with the same generation.
//!
//! A tour reads both superblocks, the catalog, and every block of every extent. The log is not
//! read: it is short, and its files are written anew all the time. What lies in the blocks, and how
//! they refer to each other, is for [`crate::Database::verify`] to check. Structure that cannot be
//! read is a finding itself, and hides no more than what only it names.
//!
//! Thread-safety: one thread scrubs; its state is under a lock of its own, held for one tick.

use crate::base::error::Error;
use crate::base::ids::{Extent, KeyspaceId};
use crate::base::limits::BLOCK_BYTES;
use crate::engine::OwnedExtent;
use crate::memory::budget::Use;
use crate::state::core::Core;
use crate::state::scrubbing::State;

/// Fewer blocks (64 KiB) are not worth a read.
const PIECE_BLOCKS_MIN: u64 = 16;

/// No more (4 MiB) are read at a tick, however much time has passed: readers come first.
const TICK_BLOCKS_MAX: u64 = 1024;

/// So many (256 KiB) are read together.
pub const PIECE_BLOCKS_MAX: u32 = 64;

/// A leg is a 64th of the data file, but not less than this (64 MiB): to list its extents all
/// structure has to be walked.
const LEG_BLOCKS_MIN: u64 = 16 << 10;

/// See [`LEG_BLOCKS_MIN`].
const LEGS_MAX: u64 = 64;

impl Core {
    /// Reads as much as the time since the last call pays for.
    pub fn scrub_tick(&self) {
        let Some(interval) = self.scrub_interval else { return };
        let mut state = self.scrub.state.lock();
        let now = self.clock.now();
        let passed = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        let each = interval.as_nanos().max(1);
        let used = u128::from(self.storage.stats().space.used_blocks);
        state.paid += passed.as_nanos() * used;
        // What one tick cannot read is forgiven: a tour takes longer then.
        state.paid = state.paid.min(each * u128::from(TICK_BLOCKS_MAX));
        let blocks = u64::try_from(state.paid / each).unwrap_or(TICK_BLOCKS_MAX);
        if blocks < PIECE_BLOCKS_MIN.min(u64::try_from(used).unwrap_or(PIECE_BLOCKS_MIN)) {
            return;
        }
        state.paid -= each * u128::from(blocks);
        self.scrub_blocks(&mut state, blocks);
    }

    /// Reads about so many blocks.
    fn scrub_blocks(&self, state: &mut State, blocks: u64) {
        let mut left = blocks;
        while left > 0 {
            let Some(owned) = state.waiting.last().copied() else {
                if self.begin_leg(state) {
                    continue;
                }
                // A tour ended: the next one is paid for by its own time.
                return;
            };
            let rest = owned.extent.blocks - state.within;
            let count = rest.min(u32::try_from(left).unwrap_or(u32::MAX)).min(PIECE_BLOCKS_MAX);
            let start = owned.extent.start.0 + u64::from(state.within);
            self.scrub_piece(state, &owned, Extent::new(start, count));
            state.within += count;
            left -= u64::from(count);
            if state.within == owned.extent.blocks {
                state.waiting.pop();
                state.within = 0;
            }
        }
    }

    /// Reads some blocks of an extent.
    fn scrub_piece(&self, state: &mut State, owned: &OwnedExtent, piece: Extent) {
        let mut buffer = vec![0; piece.blocks as usize * BLOCK_BYTES];
        let _charge = self.storage.budget().charge(Use::Work, buffer.len() as u64);
        let mut damage = Vec::new();
        let read = self.storage.check_blocks(piece.start, owned.generation, &mut buffer, |error| {
            damage.push(error);
        });
        state.stats.blocks += u64::from(piece.blocks);
        damage.extend(read.err());
        if !damage.is_empty() && self.may_name(owned) {
            damage.into_iter().for_each(|error| state.find(None, error));
        }
    }

    /// Lists the extents of the next leg; false if there is none: that was the end of a tour.
    fn begin_leg(&self, state: &mut State) -> bool {
        let file_blocks = self.storage.stats().space.file_blocks;
        if state.next == 0 {
            state.reported.clear();
            match self.storage.verify_root() {
                Ok(blocks) => state.stats.blocks += blocks,
                Err(error) => state.find(None, error),
            }
        }
        if state.next >= file_blocks {
            state.next = 0;
            state.stats.passes += 1;
            return false;
        }
        let leg = state.next..state.next + (file_blocks / LEGS_MAX).max(LEG_BLOCKS_MIN);
        state.next = leg.end;
        let mut waiting = Vec::new();
        let unread = self.walk_newest(&mut |owned| {
            if leg.contains(&owned.extent.start.0) {
                waiting.push(owned);
            }
        });
        for (keyspace, error) in unread {
            state.find(Some(keyspace), error);
        }
        waiting.sort_unstable_by_key(|owned| std::cmp::Reverse(owned.extent.start));
        let bytes = (waiting.capacity() * size_of::<OwnedExtent>()) as u64;
        state.charge = Some(self.storage.budget().charge(Use::Metadata, bytes));
        state.waiting = waiting;
        true
    }

    /// True if a newest version refers to this very extent, or that cannot be reported.
    fn may_name(&self, wanted: &OwnedExtent) -> bool {
        let mut is_there = false;
        let unread = self.walk_newest(&mut |owned| is_there |= owned == *wanted);
        is_there || !unread.is_empty()
    }

    /// Visits every extent of the newest version of every keyspace, as far as its structure can be
    /// read; gives the first error of each whose structure cannot.
    pub fn walk_newest(&self, visit: &mut dyn FnMut(OwnedExtent)) -> Vec<(KeyspaceId, Error)> {
        let mut unread = Vec::new();
        for keyspace in self.all_keyspaces() {
            let pin = self.pin_one(&keyspace);
            let view = keyspace.view_at(pin.seqno());
            let walked = view.version.version().extents(&mut |owned| {
                visit(owned);
                Ok(())
            });
            unread.extend(walked.err().map(|error| (keyspace.id, error)));
        }
        unread
    }
}
