//! The entries of pages in memory, in order.

use super::load::LoadedPages;
use crate::base::error::{Error, Result};
use crate::base::keys::{Direction, KeyRange};
use crate::base::stream::{SortedStream, Update};
use crate::run::Steps;
use crate::runtime::sync::Arc;
use std::ops::Range;

/// Entries of consecutive loaded pages within a range.
pub struct PageStream {
    pages: Arc<LoadedPages>,
    /// Pages not entered yet, as indexes into the loaded ones.
    rest: Range<usize>,
    /// The page that it is in.
    page: usize,
    range: Arc<KeyRange>,
    direction: Direction,
    steps: Steps,
    /// The last key of the page before, to check that pages are in order.
    last: Option<Vec<u8>>,
}

impl PageStream {
    /// Creates the stream of those entries of `pages` (indexes into `loaded`) that are in `range`,
    /// positioned on the first in `direction`.
    pub fn new(
        loaded: &Arc<LoadedPages>,
        pages: Range<usize>,
        range: &Arc<KeyRange>,
        direction: Direction,
    ) -> Result<Self> {
        let mut stream = Self {
            pages: Arc::clone(loaded),
            page: pages.start,
            rest: pages,
            range: Arc::clone(range),
            direction,
            steps: Steps::default(),
            last: None,
        };
        stream.next_page()?;
        Ok(stream)
    }

    fn next_page(&mut self) -> Result<()> {
        self.last = self.steps.key().map(<[u8]>::to_vec).or(self.last.take());
        self.steps.leave();
        loop {
            let page = match self.direction {
                Direction::Ascending => self.rest.next(),
                Direction::Descending => self.rest.next_back(),
            };
            let Some(page) = page else { return Ok(()) };
            self.page = page;
            let bytes = self.pages.bytes(page);
            let entered = self.steps.enter((bytes, None), &self.range, self.direction);
            let entered = entered.map_err(|error| self.pages.blame(page, error))?;
            if entered.last {
                self.rest = 0..0;
            }
            if entered.found {
                return self.check_order(page);
            }
        }
    }

    /// Fails if the first key of a page does not continue the page before.
    fn check_order(&self, page: usize) -> Result<()> {
        let (Some(last), Some(key)) = (&self.last, self.steps.key()) else { return Ok(()) };
        let continues = match self.direction {
            Direction::Ascending => key > &last[..],
            Direction::Descending => key < &last[..],
        };
        if continues {
            return Ok(());
        }
        Err(self.pages.blame(page, Error::corrupt("the pages of a group are out of order")))
    }

    /// The page of the current entry, as an index into the loaded ones.
    #[must_use]
    pub fn page(&self) -> usize {
        self.page
    }
}

impl SortedStream for PageStream {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.steps.key()
    }

    #[inline]
    fn update(&self) -> Update<'_> {
        self.steps.update(self.pages.bytes(self.page), None)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let bytes = self.pages.bytes(self.page);
        let stepped = match self.direction {
            Direction::Ascending => self.steps.step_checked((bytes, None)),
            Direction::Descending => self.steps.step((bytes, None), self.direction),
        };
        match stepped {
            Ok(true) => Ok(()),
            Ok(false) => self.next_page(),
            Err(error) => Err(self.pages.blame(self.page, error)),
        }
    }
}
