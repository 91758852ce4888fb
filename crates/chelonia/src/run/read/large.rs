//! The large values that a run refers to: free space is derived from them.
//!
//! They are listed at the end of the run, so that its entries need not be read. If a block of the
//! list is damaged, the entries are read instead. A value that neither the list nor a readable
//! entry names cannot be reached by any read: it is no longer needed, and damage of both is not an
//! error.

use super::verify::{Ahead, visit_entries, visit_spans};
use crate::base::check::CheckReport;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::keys::KeyRange;
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Dictionary, LargeRef, Update};
use crate::run::block::SortedBlock;
use crate::run::large_list;
use crate::run::read::lookup::Run;
use crate::storage::block::{BlockKind, expect_kind};

impl Run {
    /// Visits the large values that entries within `range` refer to. `range` must extend to the end
    /// of the run, and `skipped` values of its list come before it. A damaged list is visited in
    /// any order.
    pub fn large_refs_from(
        &self,
        skipped: u64,
        range: &KeyRange,
        visit: &mut dyn FnMut(LargeRef) -> Result<()>,
    ) -> Result<()> {
        if skipped == 0 {
            return self.large_refs(visit);
        }
        let mut place = 0;
        match self.listed(&mut |large| {
            place += 1;
            if place > skipped { visit(large) } else { Ok(()) }
        })? {
            true => Ok(()),
            // Positions in the list are unknown after damage.
            false => self.large_in_entries(range, visit),
        }
    }

    /// Visits the large values that the run refers to; if the list is damaged, some more than once.
    pub fn large_refs(&self, visit: &mut dyn FnMut(LargeRef) -> Result<()>) -> Result<()> {
        if self.listed(visit)? { Ok(()) } else { self.large_in_entries(&KeyRange::all(), visit) }
    }

    /// Visits the listed values; false if a block of the list is damaged.
    fn listed(&self, visit: &mut dyn FnMut(LargeRef) -> Result<()>) -> Result<bool> {
        let reference = self.reference();
        let mut bytes = vec![0; BLOCK_BYTES];
        let start = reference.large_start();
        let mut is_complete = true;
        for block in start..start + reference.large_blocks {
            let number = self.block_no(block);
            let read = self.storage().read_blocks(number, reference.generation, &mut bytes);
            match read.and_then(|()| self.decode_list(block, &bytes)) {
                Ok(listed) => listed.into_iter().try_for_each(&mut *visit)?,
                Err(error) if error.kind() == ErrorKind::Corrupt => is_complete = false,
                Err(error) => return Err(error),
            }
        }
        Ok(is_complete)
    }

    /// Decodes the references in a block of the list.
    pub(super) fn decode_list(&self, block: u32, bytes: &[u8]) -> Result<Vec<LargeRef>> {
        expect_kind(bytes, BlockKind::LargeRefs, self.block_no(block))?;
        let mut listed = Vec::new();
        large_list::decode(bytes, &mut |large| {
            listed.push(large);
            Ok(())
        })
        .map_err(self.blame(block))?;
        Ok(listed)
    }

    /// Visits the large values of all readable entries within `range`.
    fn large_in_entries(
        &self,
        range: &KeyRange,
        visit: &mut dyn FnMut(LargeRef) -> Result<()>,
    ) -> Result<()> {
        let mut unread = Unread { first: None };
        let mut listed = Vec::new();
        let blocks = 0..self.reference().data_blocks;
        // No value is decoded: any dictionary will do.
        let dictionary = Dictionary::lz4(Vec::new());
        visit_spans(
            &mut Ahead::new(self),
            blocks,
            BlockKind::Data,
            &mut unread,
            &mut |_, bytes, report| {
                let Some(bytes) = bytes else { return };
                let read = SortedBlock::parse(bytes, BlockKind::Data).and_then(|block| {
                    visit_entries(&block, Some(&dictionary), &mut |key, update| {
                        if let Update::PutLarge(large) = update
                            && range.contains(key)
                        {
                            listed.push(large);
                        }
                        Ok(())
                    })
                });
                if let Err(error) = read {
                    report.finding(error);
                }
            },
        );
        unread.first.map_or(Ok(()), Err)?;
        listed.into_iter().try_for_each(visit)
    }
}

/// Keeps the first error that is not damage.
struct Unread {
    first: Option<Error>,
}

impl CheckReport for Unread {
    fn blocks(&mut self, _count: u64) {}

    fn entries(&mut self, _count: u64) {}

    fn finding(&mut self, error: Error) {
        if error.kind() != ErrorKind::Corrupt {
            self.first.get_or_insert(error);
        }
    }
}
