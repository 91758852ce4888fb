//! Scrub: slowly and repeatedly reads stored blocks, to find bit rot while a copy still exists.
//!
//! ```text
//!   pass   | roots | leg | leg | leg | ... | pages |  one pass in `scrub_interval`
//!   leg    the extents that begin in one part of the data file
//!   piece  a few blocks of one extent: read in one tick
//!   pages  those whose extents cannot be checked by themselves: node by node
//! ```
//!
//! Elapsed time gives credit for blocks: in one interval for as many as are in use. A leg lists the
//! extents of the newest versions at its begin, and holds nothing. So an extent may be freed, and
//! its blocks rewritten, before it is read; damage is reported only if a newest version still
//! refers to the extent, with the same generation.
//!
//! Pages are checked through the newest version of their keyspace, which is held for one node.
//! A finding is reported unless there is a newer version then, and the same check of it finds
//! nothing. Such a node is read in one tick, and what it costs beyond the credit of that tick is
//! paid with the next ones.
//!
//! A pass reads both superblocks, the catalog, and every block of every extent. It does not read
//! the log, which is short, and whose files are rewritten all the time. The content of blocks, and
//! the references between them, are verified by [`crate::Database::verify`]. An unreadable
//! structure block is reported itself, and hides only the extents that it alone refers to.
//!
//! Thread-safety: one thread scrubs; its state is under a lock of its own, held for one tick.

use crate::base::check::CheckReport;
use crate::base::error::Error;
use crate::base::ids::{Extent, KeyspaceId};
use crate::base::limits::BLOCK_BYTES;
use crate::engine::OwnedExtent;
use crate::memory::budget::Use;
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::state::scrubbing::State;
use crate::versions::lifetimes::HeldVersion;

/// Least blocks per read (64 KiB).
const PIECE_BLOCKS_MIN: u64 = 16;

/// Most blocks read in a tick (4 MiB), however much time has passed: readers have priority.
const TICK_BLOCKS_MAX: u64 = 1024;

/// Most blocks of a single read (256 KiB).
pub const PIECE_BLOCKS_MAX: u32 = 64;

/// Least length of a leg (64 MiB), else a 64th of the data file: listing the extents of a leg walks
/// the complete structure.
const LEG_BLOCKS_MIN: u64 = 16 << 10;

/// Most legs of a pass, see [`LEG_BLOCKS_MIN`].
const LEGS_MAX: u64 = 64;

/// The result of a check of pages.
#[derive(Default)]
struct Checked {
    blocks: u64,
    findings: Vec<Error>,
    /// The key to go on at, if there is more.
    next: Option<Vec<u8>>,
}

impl CheckReport for Checked {
    fn blocks(&mut self, count: u64) {
        self.blocks += count;
    }

    fn entries(&mut self, _count: u64) {}

    fn finding(&mut self, error: Error) {
        self.findings.push(error);
    }
}

impl Core {
    /// Reads as many blocks as the time since the last call gives credit for.
    pub fn scrub_tick(&self) {
        let Some(interval) = self.scrub_interval else { return };
        let mut state = self.scrub.state.lock();
        let now = self.clock.now();
        let passed = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        let each = interval.as_nanos().max(1);
        let used = u128::from(self.storage.stats().space.used_blocks);
        state.paid += passed.as_nanos() * used;
        // Credit beyond one tick is dropped: the pass takes longer then.
        state.paid = state.paid.min(each * u128::from(TICK_BLOCKS_MAX));
        let blocks = u64::try_from(state.paid / each).unwrap_or(TICK_BLOCKS_MAX);
        if blocks < PIECE_BLOCKS_MIN.min(u64::try_from(used).unwrap_or(PIECE_BLOCKS_MIN)) {
            return;
        }
        state.paid -= each * u128::from(blocks);
        self.scrub_blocks(&mut state, blocks);
    }

    /// Reads about `blocks` blocks.
    fn scrub_blocks(&self, state: &mut State, blocks: u64) {
        let repaid = state.owed.min(blocks);
        state.owed -= repaid;
        let mut left = blocks - repaid;
        while left > 0 {
            let Some(owned) = state.waiting.last().copied() else {
                if state.pages.is_none() && self.begin_leg(state) {
                    continue;
                }
                if let Some(blocks) = self.scrub_pages(state) {
                    // A node of which nothing can be read costs a block, too.
                    let blocks = blocks.max(1);
                    state.owed += blocks.saturating_sub(left);
                    left = left.saturating_sub(blocks);
                    continue;
                }
                // The pass ended: the next one has its own credit.
                state.next = 0;
                state.stats.passes += 1;
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

    /// Reads a piece of an extent.
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

    /// Checks the pages of the next node, and returns the number of blocks read; `None` after the
    /// last one.
    fn scrub_pages(&self, state: &mut State) -> Option<u64> {
        let (at, from) = state.pages.get_or_insert_default();
        let mut keyspaces = self.all_keyspaces();
        keyspaces.retain(|keyspace| u64::from(keyspace.id.0) >= *at);
        let Some(keyspace) = keyspaces.into_iter().min_by_key(|keyspace| keyspace.id) else {
            state.pages = None;
            return None;
        };
        let number = u64::from(keyspace.id.0);
        if number > *at {
            (*at, *from) = (number, Vec::new());
        }
        let (version, mut checked) = self.check_newest(&keyspace, from);
        let mut blocks = checked.blocks;
        if !checked.findings.is_empty() && self.newest_of(&keyspace).number() != version.number() {
            checked = self.check_newest(&keyspace, from).1;
            blocks += checked.blocks;
        }
        match checked.next {
            Some(next) if next > *from => *from = next,
            _ => (*at, *from) = (number + 1, Vec::new()),
        }
        state.stats.blocks += blocks;
        checked.findings.into_iter().for_each(|error| state.find(Some(keyspace.id), error));
        Some(blocks)
    }

    /// Checks the pages around key `from` of the newest version.
    fn check_newest(&self, keyspace: &KeyspaceCore, from: &[u8]) -> (HeldVersion, Checked) {
        let version = self.newest_of(keyspace);
        let mut checked = Checked::default();
        match version.version().check_pages(from, &mut checked) {
            Ok(next) => checked.next = next,
            Err(error) => checked.findings.push(error),
        }
        (version, checked)
    }

    /// The newest version of `keyspace`.
    fn newest_of(&self, keyspace: &KeyspaceCore) -> HeldVersion {
        keyspace.current_view().version.clone()
    }

    /// Lists the extents of the next leg; false after the last one.
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
            return false;
        }
        let leg = state.next..state.next + (file_blocks / LEGS_MAX).max(LEG_BLOCKS_MIN);
        state.next = leg.end;
        let mut waiting = Vec::new();
        let unread = self.walk_newest(&mut |owned| {
            if owned.is_sealed() && leg.contains(&owned.extent.start.0) {
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

    /// True if a newest version refers to this very extent, or that cannot be determined.
    fn may_name(&self, wanted: &OwnedExtent) -> bool {
        let mut is_there = false;
        let unread = self.walk_newest(&mut |owned| is_there |= owned == *wanted);
        is_there || !unread.is_empty()
    }

    /// Visits every extent of the newest version of every keyspace, as far as its structure is
    /// readable; returns the first error of each keyspace with unreadable structure.
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
