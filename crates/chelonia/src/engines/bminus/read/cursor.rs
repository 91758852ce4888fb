//! Range reads: the pages within the range, in order.
//!
//! The cursor reads few pages at first, then twice as many each time. It holds its version, so that
//! nothing it reads is overwritten meanwhile. It has one user, on any thread.

use super::pages::{NodePages, Reading};
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{LargeRef, SortedStream, Update};
use crate::engines::bminus::node::Node;
use crate::engines::bminus::version::BminusVersion;
use crate::memory::budget::{Charge, Use};
use crate::pages::homes::slotted::{Spans, large_of};
use crate::pages::homes::{Page, PageBytes};
use crate::run::scan_blocks_max;
use crate::runtime::sync::Arc;
use crate::storage::block::DATA_FILE;
use std::collections::VecDeque;
use std::ops::{Bound, Range};

/// Number of pages that a scan reads first.
const FIRST_PAGES: usize = 1;

/// Number of pages that a scan reads together at most.
const PAGES_MAX: usize = 32;

/// Entries of a version within a range: see the module documentation.
pub(in crate::engines::bminus) struct BminusCursor {
    version: Arc<BminusVersion>,
    range: KeyRange,
    direction: Direction,
    /// The node that it is in, and its place in the directory.
    node: Option<(usize, Arc<Node>)>,
    /// Its pages that were not read yet.
    pages: Range<usize>,
    /// Pages that were read and not entered yet, with their offsets in the file.
    loaded: VecDeque<(Vec<u8>, u64)>,
    /// The page that it is in.
    page: Vec<u8>,
    offset: u64,
    /// Its records that were not passed yet.
    records: Range<usize>,
    /// The current record; `None` at the end.
    current: Option<Spans>,
    large: Option<LargeRef>,
    /// The key of the last record of the page before, to check that pages are in order.
    last: Option<Vec<u8>>,
    window: usize,
    /// The error of the page behind those that were read.
    unread: Option<Error>,
    charge: Charge,
}

impl BminusCursor {
    /// Creates a cursor positioned on the first entry.
    pub fn new(
        version: &Arc<BminusVersion>,
        range: KeyRange,
        direction: Direction,
    ) -> Result<Self> {
        let mut cursor = Self {
            version: Arc::clone(version),
            range,
            direction,
            node: None,
            pages: 0..0,
            loaded: VecDeque::new(),
            page: Vec::new(),
            offset: 0,
            records: 0..0,
            current: None,
            large: None,
            last: None,
            window: FIRST_PAGES,
            unread: None,
            charge: version.storage().budget().charge(Use::Scans, 0),
        };
        if !cursor.range.is_empty() {
            cursor.begin()?;
        }
        Ok(cursor)
    }

    fn begin(&mut self) -> Result<()> {
        let key = self.range.start(self.direction).map(<[u8]>::to_vec);
        let directory = Arc::clone(&self.version.parts.directory);
        let Some(last) = directory.nodes.len().checked_sub(1) else { return Ok(()) };
        let place = match (&key, self.direction) {
            (Some(key), _) => directory.node_of(key).unwrap_or(0),
            (None, Direction::Ascending) => 0,
            (None, Direction::Descending) => last,
        };
        self.enter(place)?;
        if let (Some(key), Some((_, node))) = (&key, &self.node) {
            let page = node.page_of(key);
            match self.direction {
                Direction::Ascending => self.pages.start = page,
                Direction::Descending => self.pages.end = page + 1,
            }
        }
        self.settle()
    }

    /// Enters a node.
    fn enter(&mut self, place: usize) -> Result<()> {
        let slot = &self.version.parts.directory.nodes[place].slot;
        let node = self.version.shared.node_cache.load_owned(slot)?;
        self.pages = 0..node.pages.len();
        self.node = Some((place, node));
        Ok(())
    }

    /// Goes to the next record within the range, reading pages as needed.
    fn settle(&mut self) -> Result<()> {
        loop {
            let next = match self.direction {
                Direction::Ascending => self.records.next(),
                Direction::Descending => self.records.next_back(),
            };
            if let Some(index) = next {
                return self.stand_on(index).map_err(|error| error.at(DATA_FILE, self.offset));
            }
            if let Some(spans) = self.current.take() {
                self.last = Some(self.page[spans.key].to_vec());
            }
            if !self.next_page()? {
                return Ok(());
            }
        }
    }

    /// Stands on a record, or at the end if it is beyond the range.
    fn stand_on(&mut self, index: usize) -> Result<()> {
        let page = Page::parse(PageBytes::Whole(&self.page))?;
        let spans = page.spans(index)?;
        let key = &self.page[spans.key.clone()];
        let is_within = match self.direction {
            Direction::Ascending => self.range.admits(key),
            Direction::Descending => self.range.reaches(key),
        };
        if !is_within {
            self.finish();
            return Ok(());
        }
        let before = self.current.as_ref().map(|before| &self.page[before.key.clone()]);
        let before = before.or(self.last.as_deref());
        let is_next = before.is_none_or(|before| match self.direction {
            Direction::Ascending => before < key,
            Direction::Descending => before > key,
        });
        if !is_next {
            return Err(Error::corrupt(
                "the keys of pages are out of order: a write is lost, or a page forged",
            ));
        }
        self.large = match spans.is_large {
            true => Some(large_of(&self.page[spans.payload.clone()])?),
            false => None,
        };
        self.current = Some(spans);
        Ok(())
    }

    fn finish(&mut self) {
        (self.node, self.pages, self.records) = (None, 0..0, 0..0);
        self.loaded.clear();
        self.current = None;
        self.page = Vec::new();
        self.charge.resize(0);
    }

    /// Enters the next page; false at the end.
    fn next_page(&mut self) -> Result<bool> {
        if self.loaded.is_empty() && !self.read()? {
            self.finish();
            return Ok(false);
        }
        let Some((page, offset)) = self.loaded.pop_front() else { return Ok(false) };
        (self.page, self.offset) = (page, offset);
        let entered = self.enter_page().map_err(|error| error.at(DATA_FILE, self.offset));
        self.records = entered?;
        Ok(true)
    }

    /// The records of the page that are within the start of the range.
    fn enter_page(&self) -> Result<Range<usize>> {
        let page = Page::parse(PageBytes::Whole(&self.page))?;
        let count = page.count();
        Ok(match (self.direction, &self.range.lower, &self.range.upper) {
            (Direction::Ascending, Bound::Included(key), _) => {
                page.find(key)?.unwrap_or_else(|at| at)..count
            }
            (Direction::Ascending, Bound::Excluded(key), _) => {
                page.find(key)?.map_or_else(|at| at, |at| at + 1)..count
            }
            (Direction::Descending, _, Bound::Included(key)) => {
                0..page.find(key)?.map_or_else(|at| at, |at| at + 1)
            }
            (Direction::Descending, _, Bound::Excluded(key)) => {
                0..page.find(key)?.unwrap_or_else(|at| at)
            }
            _ => 0..count,
        })
    }

    /// Reads the next pages; false if there are none within the range.
    fn read(&mut self) -> Result<bool> {
        if let Some(error) = &self.unread {
            return Err(error.clone());
        }
        if self.pages.is_empty() && !self.next_node()? {
            return Ok(false);
        }
        let Some((place, node)) = self.node.clone() else { return Ok(false) };
        let count =
            self.window.min(self.pages_within(&node, scan_blocks_max(self.version.storage())));
        let chosen = match self.direction {
            Direction::Ascending => self.pages.start..self.pages.start + count,
            Direction::Descending => self.pages.end - count..self.pages.end,
        };
        let admitted = |page: &usize| match self.direction {
            Direction::Ascending => node.pages[*page].first.is_admitted(&self.range),
            Direction::Descending => {
                node.pages.get(page + 1).is_none_or(|next| next.first.is_reached(&self.range))
            }
        };
        let mut pages: Vec<usize> = chosen.clone().filter(admitted).collect();
        match self.direction {
            Direction::Ascending => self.pages.start = chosen.end,
            Direction::Descending => {
                self.pages.end = chosen.start;
                pages.reverse();
            }
        }
        self.window = (2 * self.window).min(PAGES_MAX);
        if pages.is_empty() {
            return Ok(false);
        }
        let listed = &self.version.parts.directory.nodes[place];
        let of_node = NodePages::of(&self.version, &node, &listed.facts);
        let loaded = of_node.load(&pages, Reading::Scan);
        for (page, loaded) in pages.iter().zip(loaded) {
            let (region, home) = node.home_of(*page);
            let offset = region.offset_of(home);
            match loaded {
                Ok(loaded) => self.loaded.push_back((loaded.page, offset)),
                // The pages before it are given first.
                Err(error) if !self.loaded.is_empty() => {
                    self.unread = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let bytes: usize = self.loaded.iter().map(|(page, _)| page.len()).sum();
        self.charge.resize(bytes as u64);
        Ok(true)
    }

    /// How many of the next pages have at most `most` blocks together; at least one.
    fn pages_within(&self, node: &Node, most: u32) -> usize {
        let mut left = most;
        let has_room = |page: &usize| {
            let blocks = node.home_of(*page).0.layout().page_blocks;
            let fits = blocks <= left;
            left = left.saturating_sub(blocks);
            fits
        };
        let count = match self.direction {
            Direction::Ascending => self.pages.clone().take_while(has_room).count(),
            Direction::Descending => self.pages.clone().rev().take_while(has_room).count(),
        };
        count.max(1)
    }

    /// Enters the next node that may have keys of the range; false if there is none.
    fn next_node(&mut self) -> Result<bool> {
        let Some((place, _)) = self.node.clone() else { return Ok(false) };
        let nodes = &self.version.parts.directory.nodes;
        let next = match self.direction {
            Direction::Ascending => Some(place + 1)
                .filter(|next| *next < nodes.len() && nodes[*next].first.is_admitted(&self.range)),
            Direction::Descending => {
                place.checked_sub(1).filter(|_| nodes[place].first.is_reached(&self.range))
            }
        };
        let Some(next) = next else { return Ok(false) };
        self.enter(next)?;
        Ok(true)
    }
}

impl SortedStream for BminusCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().map(|spans| &self.page[spans.key.clone()])
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        match (&self.large, &self.current) {
            (Some(large), _) => Update::PutLarge(*large),
            (None, Some(spans)) => Update::Put(&self.page[spans.payload.clone()]),
            (None, None) => Update::Delete,
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.current.is_none() { Ok(()) } else { self.settle() }
    }
}
