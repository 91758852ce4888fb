//! Range reads: merges one cursor per sequence.
//!
//! The cursor of a sequence is positioned in one table at a time and opens the next table when it
//! reaches it. All cursors start together: uncached first blocks are read in one batch. Tombstones
//! hide older entries and are dropped.
//!
//! A cursor holds its version, so that no extent it reads is reused meanwhile. It has one user, on
//! any thread.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::engines::autumn::table::{Node, Sequence, Table};
use crate::engines::autumn::version::AutumnVersion;
use crate::merge::{Merge, Tombstones};
use crate::run::{RunCursor, first_blocks};
use crate::runtime::sync::Arc;
use std::ops::Bound;

/// Number of blocks read first in a table that a scan enters from its neighbour.
const NEXT_BLOCKS: u32 = 16;

/// Entries of a version within a range: see the module documentation.
pub(in crate::engines::autumn) struct AutumnCursor {
    merge: Merge<SequenceCursor>,
}

impl AutumnCursor {
    /// Creates a cursor positioned on the first entry.
    pub fn new(
        version: &Arc<AutumnVersion>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Self> {
        let range = Arc::new(range);
        let mut sources = Vec::new();
        if !range.is_empty() {
            let sequences = || version.level0.iter().chain(&version.levels);
            let whole: u64 = sequences().map(|sequence| sequence.totals().entries).sum();
            for sequence in sequences() {
                let (version, sequence) = (Arc::clone(version), Arc::clone(sequence));
                let mut source = SequenceCursor {
                    version,
                    sequence,
                    range: Arc::clone(&range),
                    direction,
                    at: None,
                    current: None,
                };
                let blocks = first_blocks(source.sequence.totals().entries, whole);
                if source.find_first()? {
                    source.locate(blocks)?;
                    sources.push(source);
                }
            }
        }
        let mut cursors: Vec<RunCursor> =
            sources.iter_mut().filter_map(|source| source.current.take()).collect();
        RunCursor::start(&mut cursors)?;
        for (source, cursor) in sources.iter_mut().zip(cursors) {
            source.current = Some(cursor);
            source.settle()?;
        }
        Ok(Self { merge: Merge::new(sources, direction, Tombstones::Drop)? })
    }
}

impl SortedStream for AutumnCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.merge.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.merge.update()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.merge.advance()
    }
}

/// Position of a table in a sequence.
struct Place {
    node: usize,
    /// The node at that position, held while the cursor is in it.
    tables: Arc<Node>,
    table: usize,
}

/// Entries of one sequence within a range, including tombstones.
struct SequenceCursor {
    version: Arc<AutumnVersion>,
    sequence: Arc<Sequence>,
    range: Arc<KeyRange>,
    direction: Direction,
    /// Current position; `None` at the end.
    at: Option<Place>,
    current: Option<RunCursor>,
}

impl SequenceCursor {
    /// Moves to the first table, in cursor direction, that may have keys of the range; returns
    /// false if there is none.
    fn find_first(&mut self) -> Result<bool> {
        let key = self.range.start(self.direction);
        let Some(last) = self.sequence.nodes.len().checked_sub(1) else { return Ok(false) };
        let node = match (key, self.direction) {
            (Some(key), Direction::Ascending) => self.sequence.node_of(key).unwrap_or(0),
            (Some(key), Direction::Descending) => match self.sequence.node_of(key) {
                Some(node) => node,
                None => return Ok(false),
            },
            (None, Direction::Ascending) => 0,
            (None, Direction::Descending) => last,
        };
        let tables = self.load(node)?;
        let table = match (key, self.direction) {
            (Some(key), _) => tables.begun_by(key).saturating_sub(1),
            (None, Direction::Ascending) => 0,
            (None, Direction::Descending) => tables.tables.len() - 1,
        };
        self.at = Some(Place { node, tables, table });
        while let Some(table) = self.table() {
            let live = (&table.first, &table.last);
            let (before, behind) = match self.direction {
                Direction::Ascending => {
                    (!live.1.is_reached(&self.range), !live.0.is_admitted(&self.range))
                }
                Direction::Descending => {
                    (!live.0.is_admitted(&self.range), !live.1.is_reached(&self.range))
                }
            };
            if behind {
                break;
            }
            if !before {
                return Ok(true);
            }
            self.step()?;
        }
        self.at = None;
        Ok(false)
    }

    fn load(&self, node: usize) -> Result<Arc<Node>> {
        self.version.shared.node_cache.load_owned(&self.sequence.nodes[node].slot)
    }

    /// The current table.
    fn table(&self) -> Option<&Table> {
        self.at.as_ref().map(|at| &at.tables.tables[at.table])
    }

    /// Moves to the next table in cursor direction.
    fn step(&mut self) -> Result<()> {
        let Some(at) = &mut self.at else { return Ok(()) };
        let within = match self.direction {
            Direction::Ascending => Some(at.table + 1).filter(|it| *it < at.tables.tables.len()),
            Direction::Descending => at.table.checked_sub(1),
        };
        if let Some(table) = within {
            at.table = table;
            return Ok(());
        }
        let node = match self.direction {
            Direction::Ascending => Some(at.node + 1).filter(|it| *it < self.sequence.nodes.len()),
            Direction::Descending => at.node.checked_sub(1),
        };
        self.at = match node {
            None => None,
            Some(node) => {
                let tables = self.load(node)?;
                let table = match self.direction {
                    Direction::Ascending => 0,
                    Direction::Descending => tables.tables.len() - 1,
                };
                Some(Place { node, tables, table })
            }
        };
        Ok(())
    }

    /// Opens the run of the current table; it has no position until it is started.
    fn locate(&mut self, blocks: u32) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        // Entries before a table's first key are not live.
        let lower = self.range.start(Direction::Ascending).unwrap_or_default();
        let range = if table.is_complete() || table.first <= *lower {
            Arc::clone(&self.range)
        } else {
            let lower = Bound::Included(table.first.to_bytes().into_owned());
            Arc::new(KeyRange { lower, upper: self.range.upper.clone() })
        };
        self.current = Some(RunCursor::located(&table.run, range, self.direction, blocks)?);
        Ok(())
    }

    /// Advances to the next table until there is an entry, or to the end.
    fn settle(&mut self) -> Result<()> {
        while self.current.as_ref().is_some_and(|current| current.key().is_none()) {
            self.current = None;
            self.step()?;
            let Some(table) = self.table() else { return Ok(()) };
            let within = match self.direction {
                Direction::Ascending => table.first.is_admitted(&self.range),
                Direction::Descending => table.last.is_reached(&self.range),
            };
            if !within {
                self.at = None;
                return Ok(());
            }
            self.locate(NEXT_BLOCKS)?;
            if let Some(current) = &mut self.current {
                RunCursor::start(std::slice::from_mut(current))?;
            }
        }
        Ok(())
    }
}

impl SortedStream for SequenceCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().and_then(RunCursor::key)
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.current.as_ref().map_or(Update::Delete, RunCursor::update)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.advance()?;
            if current.key().is_some() {
                return Ok(());
            }
        }
        self.settle()
    }
}
