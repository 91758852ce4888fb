//! A scan of a memtable at one seqno.
//!
//! The cursor is self-contained: it keeps the memtable's memory alive and may outlive every other
//! handle to it. Inserts continue concurrently; the cursor returns the keys and versions present
//! when it was created, and of later ones none that is newer than its seqno.
//!
//! A pin keeps the versions visible at its seqno for as long as the cursor is used. If a needed
//! version is missing nevertheless, the cursor fails: a silently skipped key would look absent.
//!
//! Thread-safety: for one thread at a time; it may move between threads.

use super::art::{Settled, Tree, Walk};
use crate::base::error::{Error, Result};
use crate::base::ids::SeqNo;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::runtime::sync::Arc;

/// The entries of a memtable within a range, at a seqno, tombstones included.
pub struct MemtableCursor {
    walk: Walk,
    range: KeyRange,
    direction: Direction,
    at: SeqNo,
    ended: bool,
}

impl MemtableCursor {
    pub(super) fn new(
        tree: &Arc<Tree>,
        range: KeyRange,
        direction: Direction,
        at: SeqNo,
    ) -> Result<Self> {
        let bound = match direction {
            Direction::Ascending => &range.lower,
            Direction::Descending => &range.upper,
        };
        let walk = Walk::new(tree, direction, bound.as_ref().map(Vec::as_slice));
        let mut cursor = Self { walk, range, direction, at, ended: false };
        cursor.go_on()?;
        Ok(cursor)
    }

    /// Moves to the next record that has a version at `at`, within the range.
    fn go_on(&mut self) -> Result<()> {
        while !self.ended {
            let within = self.walk.step()
                && self.walk.key().is_some_and(|key| match self.direction {
                    Direction::Ascending => self.range.admits(key),
                    Direction::Descending => self.range.reaches(key),
                });
            if !within {
                self.ended = true;
                return Ok(());
            }
            match self.walk.settle(self.at) {
                Settled::Found => return Ok(()),
                Settled::Absent => {}
                Settled::Pruned => {
                    self.ended = true;
                    return Err(Error::internal("a version that a pin needs was unlinked"));
                }
            }
        }
        Ok(())
    }
}

impl SortedStream for MemtableCursor {
    fn key(&self) -> Option<&[u8]> {
        if self.ended { None } else { self.walk.key() }
    }

    fn update(&self) -> Update<'_> {
        self.walk.update().expect("a cursor is asked for its update while it stands on an entry")
    }

    fn advance(&mut self) -> Result<()> {
        self.go_on()
    }
}
