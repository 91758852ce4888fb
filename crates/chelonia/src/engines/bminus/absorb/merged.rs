//! The records of a page merged with updates.

use super::Context;
use crate::base::error::Result;
use crate::base::stream::{SortedStream, SortedUpdates, Update};
use crate::engine::OwnedExtent;
use crate::merge::UpdatesStream;
use crate::pages::homes::Page;
use std::borrow::Cow;
use std::ops::Range;

/// The records of a page merged with updates, in key order.
pub(super) struct Merged<'m> {
    page: Page<'m>,
    index: usize,
    context: &'m Context<'m>,
    updates: UpdatesStream<'m>,
}

/// A key, its payload, and whether that refers to a large value.
pub(super) type Record<'m> = (Cow<'m, [u8]>, Vec<u8>, bool);

impl<'m> Merged<'m> {
    pub fn new(
        page: Page<'m>,
        context: &'m Context<'m>,
        updates: &'m dyn SortedUpdates,
        ranks: Range<usize>,
    ) -> Self {
        let updates = UpdatesStream::new(updates, vec![ranks], context.progress);
        Self { page, index: 0, context, updates }
    }

    /// The next record that is not deleted.
    pub fn next(&mut self) -> Result<Option<Record<'m>>> {
        loop {
            let key = match self.index < self.page.count() {
                true => Some(self.page.key(self.index)?),
                false => None,
            };
            let update = self.updates.key();
            let is_page = match (&key, update) {
                (None, None) => return Ok(None),
                (Some(key), Some(update)) => &**key < update,
                (page, _) => page.is_some(),
            };
            if is_page {
                let (payload, is_large) = self.page.payload(self.index)?;
                self.index += 1;
                return Ok(key.map(|key| (key, payload.into_owned(), is_large)));
            }
            if key.as_deref() == update {
                let before = self.page.large(self.index)?;
                self.context.output.lose(before.as_ref().map(OwnedExtent::from));
                self.index += 1;
            }
            let key = update.map(<[u8]>::to_vec).unwrap_or_default();
            let record = match self.updates.update() {
                Update::Delete => None,
                Update::Put(value) => Some((value.to_vec(), false)),
                Update::PutCompressed(value) => {
                    let mut payload = Vec::new();
                    value.decode(&mut payload)?;
                    Some((payload, false))
                }
                Update::PutLarge(large) => {
                    let mut payload = Vec::new();
                    large.encode(&mut payload);
                    Some((payload, true))
                }
            };
            self.updates.advance()?;
            if let Some((payload, is_large)) = record {
                return Ok(Some((key.into(), payload, is_large)));
            }
        }
    }

    /// Reports the large values that came with the updates.
    pub fn finish(self) {
        let large = self.updates.finish();
        self.context.output.gain(large.iter().map(OwnedExtent::from));
    }
}
