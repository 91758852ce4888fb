//! Range reads: merges one cursor per staged memtable with a cursor over the pages.
//!
//! The cursor over the pages reads few pages at first, then twice as many each time, up to whole
//! groups: neighboring pages are read together. Tombstones of staged memtables hide older entries
//! and are dropped.
//!
//! A cursor holds its version, so that no extent it reads is reused meanwhile. It has one user, on
//! any thread.

use crate::base::error::Result;
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::engines::treeline::node::Node;
use crate::engines::treeline::staged::{Staged, from_key};
use crate::engines::treeline::version::TreelineVersion;
use crate::merge::{Merge, Tombstones};
use crate::pages::{LoadedPages, PageStream, Reading};
use crate::run::{RunCursor, scan_blocks_max};
use crate::runtime::sync::Arc;
use std::ops::Range;

/// Number of pages that a scan reads first.
const FIRST_PAGES: usize = 2;

/// Number of blocks that a scan reads first of a staged run.
const STAGED_BLOCKS: u32 = 1;

/// Entries of a version within a range: see the module documentation.
pub(in crate::engines::treeline) struct TreelineCursor {
    merge: Merge<Source>,
}

impl TreelineCursor {
    /// Creates a cursor positioned on the first entry.
    pub fn new(
        version: &Arc<TreelineVersion>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Self> {
        let range = Arc::new(range);
        let mut sources = Vec::new();
        if !range.is_empty() {
            for (staged, from) in version.parts.live() {
                let range = Arc::new(from_key(&range, from));
                let cursor = StagedCursor::new(staged, range, direction)?;
                if cursor.current.is_some() {
                    sources.push(Source::Staged(Box::new(cursor)));
                }
            }
            version.shared.due.note_scan(sources.len());
            let pages = PagesCursor::new(version, &range, direction)?;
            sources.push(Source::Pages(Box::new(pages)));
        }
        Ok(Self { merge: Merge::new(sources, direction, Tombstones::Drop)? })
    }
}

impl SortedStream for TreelineCursor {
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

enum Source {
    Staged(Box<StagedCursor>),
    Pages(Box<PagesCursor>),
}

impl SortedStream for Source {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Staged(cursor) => cursor.current.as_ref().and_then(RunCursor::key),
            Self::Pages(cursor) => cursor.stream.as_ref().and_then(PageStream::key),
        }
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        match self {
            Self::Staged(cursor) => {
                cursor.current.as_ref().map_or(Update::Delete, RunCursor::update)
            }
            Self::Pages(cursor) => {
                cursor.stream.as_ref().map_or(Update::Delete, PageStream::update)
            }
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        match self {
            Self::Staged(cursor) => cursor.advance(),
            Self::Pages(cursor) => cursor.advance(),
        }
    }
}

/// Entries of one staged memtable within a range, tombstones included.
struct StagedCursor {
    staged: Arc<Staged>,
    range: Arc<KeyRange>,
    direction: Direction,
    /// Runs not entered yet, as indexes.
    rest: Range<usize>,
    current: Option<RunCursor>,
}

impl StagedCursor {
    fn new(staged: &Arc<Staged>, range: Arc<KeyRange>, direction: Direction) -> Result<Self> {
        let tables = &staged.tables;
        let start = tables.partition_point(|table| !table.last.is_reached(&range));
        let end = tables.partition_point(|table| table.first.is_admitted(&range));
        let rest = start..end.max(start);
        let mut cursor = Self { staged: Arc::clone(staged), range, direction, rest, current: None };
        cursor.settle()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.advance()?;
        }
        self.settle()
    }

    /// Enters runs until one has an entry.
    fn settle(&mut self) -> Result<()> {
        while self.current.as_ref().is_none_or(|current| current.key().is_none()) {
            self.current = None;
            let next = match self.direction {
                Direction::Ascending => self.rest.next(),
                Direction::Descending => self.rest.next_back(),
            };
            let Some(next) = next else { return Ok(()) };
            let (run, range) = (&self.staged.tables[next].run, Arc::clone(&self.range));
            let mut cursor = RunCursor::located(run, range, self.direction, STAGED_BLOCKS)?;
            RunCursor::start(std::slice::from_mut(&mut cursor))?;
            self.current = Some(cursor);
        }
        Ok(())
    }
}

/// Entries of the pages within a range.
struct PagesCursor {
    version: Arc<TreelineVersion>,
    range: Arc<KeyRange>,
    direction: Direction,
    /// The node that it is in, and its place in the directory.
    node: Option<(usize, Arc<Node>)>,
    /// The group that it is in, and those of its pages that were not read yet.
    item: usize,
    pages: Range<usize>,
    stream: Option<PageStream>,
    /// Number of pages to read next.
    window: usize,
}

impl PagesCursor {
    fn new(
        version: &Arc<TreelineVersion>,
        range: &Arc<KeyRange>,
        direction: Direction,
    ) -> Result<Self> {
        let mut cursor = Self {
            version: Arc::clone(version),
            range: Arc::clone(range),
            direction,
            node: None,
            item: 0,
            pages: 0..0,
            stream: None,
            window: FIRST_PAGES,
        };
        cursor.begin()?;
        Ok(cursor)
    }

    /// Goes to the page where the range begins, in cursor direction.
    fn begin(&mut self) -> Result<()> {
        let range = Arc::clone(&self.range);
        let key = range.start(self.direction);
        let directory = Arc::clone(&self.version.parts.directory);
        let Some(last) = directory.nodes.len().checked_sub(1) else { return Ok(()) };
        let place = match (key, self.direction) {
            (Some(key), _) => directory.node_of(key).unwrap_or(0),
            (None, Direction::Ascending) => 0,
            (None, Direction::Descending) => last,
        };
        let node = self.load(place)?;
        let item = match (key, self.direction) {
            (Some(key), _) => node.item_of(key),
            (None, Direction::Ascending) => 0,
            (None, Direction::Descending) => node.items.len() - 1,
        };
        self.node = Some((place, node));
        self.enter(item);
        if let (Some(key), Some((_, node))) = (key, &self.node) {
            let item = &node.items[item];
            let page = item.group.bounds.page_of(&item.first, key);
            match self.direction {
                Direction::Ascending => self.pages.start = page,
                Direction::Descending => self.pages.end = page + 1,
            }
        }
        self.settle()
    }

    fn load(&self, place: usize) -> Result<Arc<Node>> {
        self.version.shared.node_cache.load_owned(&self.version.parts.directory.nodes[place].slot)
    }

    /// Enters a group of the current node.
    fn enter(&mut self, item: usize) {
        self.item = item;
        let pages = self.node.as_ref().map(|(_, node)| node.items[item].group.slots.len());
        self.pages = 0..pages.unwrap_or(0);
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            stream.advance()?;
            if stream.key().is_some() {
                return Ok(());
            }
        }
        self.settle()
    }

    /// Reads pages until there is an entry, or to the end of the range.
    fn settle(&mut self) -> Result<()> {
        self.stream = None;
        loop {
            if self.pages.is_empty() && !self.next_group()? {
                self.node = None;
                return Ok(());
            }
            let Some((_, node)) = &self.node else { return Ok(()) };
            let group = Arc::clone(&node.items[self.item].group);
            let storage = self.version.shared.node_cache.storage();
            let blocks = scan_blocks_max(storage) / group.place.page_blocks();
            let most = usize::try_from(blocks).unwrap_or(1).max(1);
            let count = self.window.min(most).min(self.pages.len());
            let pages = match self.direction {
                Direction::Ascending => self.pages.start..self.pages.start + count,
                Direction::Descending => self.pages.end - count..self.pages.end,
            };
            match self.direction {
                Direction::Ascending => self.pages.start = pages.end,
                Direction::Descending => self.pages.end = pages.start,
            }
            self.window = (2 * self.window).min(crate::pages::SLOTS_MAX);
            let loaded = LoadedPages::read(storage, &group, pages, Reading::Scan)?;
            let loaded = Arc::new(loaded);
            let stream = PageStream::new(&loaded, 0..count, &self.range, self.direction)?;
            if stream.key().is_some() {
                self.stream = Some(stream);
                return Ok(());
            }
        }
    }

    /// Enters the next group that may have keys of the range; false if there is none.
    fn next_group(&mut self) -> Result<bool> {
        let Some((place, node)) = self.node.clone() else { return Ok(false) };
        let within = match self.direction {
            Direction::Ascending => Some(self.item + 1).filter(|item| *item < node.items.len()),
            Direction::Descending => self.item.checked_sub(1),
        };
        // Going down, the keys of the group that is left must reach below its first bound.
        let first = &node.items[self.item].first;
        if self.direction == Direction::Descending && !first.is_reached(&self.range) {
            return Ok(false);
        }
        let item = match within {
            Some(item) => item,
            None => {
                let nodes = self.version.parts.directory.nodes.len();
                let next = match self.direction {
                    Direction::Ascending => Some(place + 1).filter(|next| *next < nodes),
                    Direction::Descending => place.checked_sub(1),
                };
                let Some(next) = next else { return Ok(false) };
                let listed = &self.version.parts.directory.nodes[next];
                if self.direction == Direction::Ascending && !listed.first.is_admitted(&self.range)
                {
                    return Ok(false);
                }
                let node = self.load(next)?;
                let item = match self.direction {
                    Direction::Ascending => 0,
                    Direction::Descending => node.items.len() - 1,
                };
                self.node = Some((next, node));
                item
            }
        };
        let Some((_, node)) = &self.node else { return Ok(false) };
        let first = &node.items[item].first;
        if self.direction == Direction::Ascending && !first.is_admitted(&self.range) {
            return Ok(false);
        }
        self.enter(item);
        Ok(true)
    }
}
