//! Salvage: reads everything that can be read of a run, despite damage.
//!
//! ```text
//!   spans     [a..d] [f..k] ~~~~~~ [t..w] ~~~~~~
//!   given     a..d   f..k   gap    t..w   gap          gaps: after k and before t; after w
//! ```
//!
//! The index is used if it can be read, but is not required. Entries and gaps are returned in key
//! order.

use super::verify::{Ahead, visit_entries, visit_spans};
use crate::base::check::CheckReport;
use crate::base::error::{Error, Result};
use crate::base::keys::KeyRange;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::base::stream::{Compressed, Dictionary, Update};
use crate::run::block::SortedBlock;
use crate::run::read::lookup::Run;
use crate::run::reference::BlockSpan;
use crate::storage::block::BlockKind;
use std::cell::RefCell;
use std::ops::Bound;

/// A part of the content of a run.
pub enum RunPart<'a> {
    /// An entry.
    Entry(&'a [u8], Update<'a>),
    /// Keys whose entries cannot be read, with the reason.
    Gap(KeyRange, Error),
}

/// Called with the parts; its error ends the walk.
type Take<'a> = dyn FnMut(RunPart<'_>) -> Result<()> + 'a;

impl Run {
    /// Passes every readable entry within `range`, decoded, and every gap, to `take`.
    pub fn salvage(&self, range: &KeyRange, take: &mut Take<'_>) -> Result<()> {
        let all = 0..self.reference().data_blocks;
        let blocks = self.blocks_in(range).unwrap_or(all);
        let dictionary = self.dictionary();
        let (dictionary, undecodable) = match &dictionary {
            Ok(dictionary) => (*dictionary, None),
            Err(error) => (None, Some(error.clone())),
        };
        let mut walk = Walk {
            range,
            take,
            dictionary,
            undecodable,
            decoded: Vec::new(),
            last: None,
            gap: None,
            failed: None,
        };
        let cause = RefCell::new(Vec::new());
        let visit = &mut |span: BlockSpan, bytes: Option<&[u8]>, _: &mut dyn CheckReport| {
            let unknown = || Error::corrupt("a block of a run cannot be read");
            let reason = || self.take_reason(span.first, &cause).unwrap_or_else(unknown);
            let read = match bytes.map_or(Ok(false), |bytes| walk.span(bytes)) {
                Ok(true) => Ok(()),
                Ok(false) => Err(reason()),
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                walk.gap.get_or_insert_with(|| self.blame(span.first)(error));
            }
        };
        visit_spans(&mut Ahead::new(self), blocks, BlockKind::Data, &mut Why(&cause), visit);
        walk.end()
    }

    /// The reason why the span at `first` cannot be read, recorded when blocks were read ahead of
    /// the walk: the first one from there on.
    fn take_reason(&self, first: u32, found: &RefCell<Vec<Error>>) -> Option<Error> {
        let mut found = found.borrow_mut();
        let begin = self.block_no(first).0.saturating_mul(BLOCK_BYTES_U64);
        found.retain(|error| error.offset().is_none_or(|offset| offset >= begin));
        let place = (0..found.len()).min_by_key(|at| found[*at].offset())?;
        Some(found.swap_remove(place))
    }
}

/// Collects the errors of unreadable blocks, for the gaps that they leave.
struct Why<'a>(&'a RefCell<Vec<Error>>);

impl CheckReport for Why<'_> {
    fn blocks(&mut self, _count: u64) {}

    fn entries(&mut self, _count: u64) {}

    fn finding(&mut self, error: Error) {
        self.0.borrow_mut().push(error);
    }
}

struct Walk<'a, 't> {
    range: &'a KeyRange,
    take: &'a mut Take<'t>,
    dictionary: Option<&'a Dictionary>,
    /// The reason why the dictionary cannot be read.
    undecodable: Option<Error>,
    decoded: Vec<u8>,
    /// The last key that was read.
    last: Option<Vec<u8>>,
    /// The reason why entries after the last key are unknown, if they are.
    gap: Option<Error>,
    /// The error that ended the walk.
    failed: Option<Error>,
}

impl Walk<'_, '_> {
    /// Passes on the entries of a joined span; fails if its content is invalid. False if the last
    /// one overflows into blocks that cannot be read.
    fn span(&mut self, bytes: &[u8]) -> Result<bool> {
        if self.failed.is_some() {
            return Ok(true);
        }
        let block = SortedBlock::parse(bytes, BlockKind::Data)?;
        // Without their dictionary compressed values are lost, and only they.
        let none = Dictionary::lz4(Vec::new());
        let dictionary = match self.undecodable {
            Some(_) => Some(&none),
            None => self.dictionary,
        };
        let visited = visit_entries(&block, dictionary, &mut |key, update| {
            let given = match update {
                Update::PutCompressed(value) => self.give_decoded(key, value),
                _ => self.give(key, update),
            };
            if let Err(error) = &given {
                self.failed = Some(error.clone());
            }
            given
        });
        if self.failed.is_some() { Ok(true) } else { visited }
    }

    /// Passes on an entry with its value decoded; it is lost if that fails.
    fn give_decoded(&mut self, key: &[u8], value: Compressed<'_>) -> Result<()> {
        let mut decoded = std::mem::take(&mut self.decoded);
        let result = match &self.undecodable {
            Some(error) => Err(error.clone()),
            None => value.decode(&mut decoded),
        };
        let given = match result {
            Ok(()) => self.give(key, Update::Put(&decoded)),
            Err(error) => {
                self.gap.get_or_insert(error);
                Ok(())
            }
        };
        self.decoded = decoded;
        given
    }

    fn give(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        self.close_gap(Some(key))?;
        if self.range.contains(key) {
            (self.take)(RunPart::Entry(key, update))?;
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    /// Reports the gap between the last key and `next`, if there is one.
    fn close_gap(&mut self, next: Option<&[u8]>) -> Result<()> {
        let Some(error) = self.gap.take() else { return Ok(()) };
        let mut gap = self.range.clone();
        if let Some(last) = self.last.as_ref().filter(|last| gap.reaches(last)) {
            gap.lower = Bound::Excluded(last.clone());
        }
        if let Some(next) = next.filter(|next| gap.admits(next)) {
            gap.upper = Bound::Excluded(next.to_vec());
        }
        if gap.is_empty() { Ok(()) } else { (self.take)(RunPart::Gap(gap, error)) }
    }

    fn end(mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.close_gap(None),
        }
    }
}
