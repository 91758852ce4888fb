//! Changes of a page in memory. Layout: `slotted.rs`.

use super::slotted::{
    HEADER_BYTES, PLACE_BYTES, Page, PageBytes, RECORD_HEAD_MAX, damaged, record_bytes,
};
use crate::base::codec::put_varint;
use crate::base::error::Result;
use crate::base::stream::{LargeRef, Update};
use std::borrow::Cow;

/// A page that is changed, in one piece.
pub struct PageMut<'p>(&'p mut [u8]);

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// Done; the large value that the key had before, if it had one.
    Done(Option<LargeRef>),
    /// The page has no room, and was not changed.
    Full,
}

impl<'p> PageMut<'p> {
    /// The page in `bytes`, which was verified.
    pub fn parse(bytes: &'p mut [u8]) -> Result<Self> {
        Page::parse(PageBytes::Whole(bytes))?;
        let page = Self(bytes);
        if page.end() < HEADER_BYTES || page.end() + PLACE_BYTES * page.count() > page.0.len() {
            return Err(damaged("its records end beyond it"));
        }
        Ok(page)
    }

    /// An empty page in `bytes`.
    pub fn empty(bytes: &'p mut [u8]) -> Self {
        bytes.fill(0);
        let mut page = Self(bytes);
        page.set_end(HEADER_BYTES);
        page
    }

    /// The page to read.
    #[must_use]
    pub fn read(&self) -> Page<'_> {
        Page(PageBytes::Whole(self.0))
    }

    fn count(&self) -> usize {
        self.read().count()
    }

    fn end(&self) -> usize {
        2 * usize::from(u16::from_le_bytes([self.0[2], self.0[3]]))
    }

    fn set_end(&mut self, end: usize) {
        self.set_u16(2, end / 2);
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        let value = u16::try_from(value).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Adds to the counters of the header.
    fn count_in(&mut self, live: isize, user: isize, large: isize) {
        for (at, change) in [(4, live), (8, user)] {
            let old = self.0[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let new = (old as usize).saturating_add_signed(change);
            let new = u32::try_from(new).unwrap_or(u32::MAX);
            self.0[at..at + 4].copy_from_slice(&new.to_le_bytes());
        }
        let old = usize::from(u16::from_le_bytes([self.0[12], self.0[13]]));
        self.set_u16(12, old.saturating_add_signed(large));
    }

    /// Bytes of records and places in use.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.read().live_bytes()
    }

    /// Makes the change of `key`. `scratch` is used if records must be moved together.
    pub fn change(
        &mut self,
        key: &[u8],
        update: Update<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Changed> {
        let place = self.read().find(key)?;
        let (payload, is_large) = match update {
            Update::Delete => return self.delete(place.ok()),
            Update::Put(value) => (Cow::Borrowed(value), false),
            Update::PutCompressed(value) => {
                let mut payload = Vec::new();
                value.decode(&mut payload)?;
                (Cow::Owned(payload), false)
            }
            Update::PutLarge(large) => {
                let mut payload = Vec::new();
                large.encode(&mut payload);
                (Cow::Owned(payload), true)
            }
        };
        let bytes = record_bytes(key.len(), payload.len());
        let (old, before) = match place {
            Ok(index) => (self.size_of(index)?, self.read().large(index)?),
            Err(_) => (0, None),
        };
        let new_place = if place.is_ok() { 0 } else { PLACE_BYTES };
        let limit = self.0.len() - PLACE_BYTES * self.count() - new_place;
        let user = key.len() + update.inline_bytes();
        if old == bytes
            && let Ok(index) = place
        {
            let at = self.place_of(index)?;
            self.uncount(index)?;
            self.write_record(at, key, &payload, is_large);
            self.count_in(signed(bytes), signed(user), isize::from(is_large));
            return Ok(Changed::Done(before));
        }
        if self.end() + bytes > limit {
            let kept = (HEADER_BYTES + self.live_bytes()).saturating_sub(old);
            if kept + bytes + new_place > self.0.len() {
                return Ok(Changed::Full);
            }
            self.move_together(place.ok(), scratch)?;
            if self.end() + bytes > limit {
                return Err(damaged("its records take more than it says"));
            }
        }
        let at = self.end();
        match place {
            Ok(index) => self.uncount_unless_moved(index, old)?,
            Err(index) => self.insert_place(index),
        }
        let index = place.unwrap_or_else(|index| index);
        self.set_place(index, at);
        self.write_record(at, key, &payload, is_large);
        self.set_end(at + bytes);
        self.count_in(signed(bytes), signed(user), isize::from(is_large));
        Ok(Changed::Done(before))
    }

    /// Adds a record behind all others: `key` is greater than theirs. False if there is no room.
    pub fn append(&mut self, key: &[u8], payload: &[u8], is_large: bool) -> bool {
        let bytes = record_bytes(key.len(), payload.len());
        let (count, at) = (self.count(), self.end());
        if at + bytes + PLACE_BYTES * (count + 1) > self.0.len() || count == usize::from(u16::MAX) {
            return false;
        }
        self.set_u16(0, count + 1);
        self.set_place(count, at);
        self.write_record(at, key, payload, is_large);
        self.set_end(at + bytes);
        let user = if is_large { 24 } else { payload.len() };
        self.count_in(signed(bytes), signed(key.len() + user), isize::from(is_large));
        true
    }

    fn place_of(&self, index: usize) -> Result<usize> {
        let place = self.0.len() - PLACE_BYTES * (index + 1);
        Ok(2 * PageBytes::Whole(self.0).u16(place)?)
    }

    fn set_place(&mut self, index: usize, at: usize) {
        let place = self.0.len() - PLACE_BYTES * (index + 1);
        self.set_u16(place, at / 2);
    }

    /// Opens a place before that of record `index`.
    fn insert_place(&mut self, index: usize) {
        let count = self.count();
        let (low, high) = (self.0.len() - PLACE_BYTES * count, self.0.len() - PLACE_BYTES * index);
        self.0.copy_within(low..high, low - PLACE_BYTES);
        self.set_u16(0, count + 1);
    }

    fn size_of(&self, index: usize) -> Result<usize> {
        let record = self.read().record(index)?;
        Ok(record_bytes(record.key.1, record.payload.1))
    }

    /// Takes a record out of the counters.
    fn uncount(&mut self, index: usize) -> Result<()> {
        let record = self.read().record(index)?;
        let bytes = record_bytes(record.key.1, record.payload.1);
        let value = if record.is_large { 24 } else { record.payload.1 };
        let user = record.key.1 + value;
        self.count_in(-signed(bytes), -signed(user), -isize::from(record.is_large));
        Ok(())
    }

    /// As [`PageMut::uncount`], unless the record went when records were moved together: its place
    /// is 0 then.
    fn uncount_unless_moved(&mut self, index: usize, old: usize) -> Result<()> {
        if old > 0 && self.place_of(index)? != 0 { self.uncount(index) } else { Ok(()) }
    }

    fn write_record(&mut self, at: usize, key: &[u8], payload: &[u8], is_large: bool) {
        let mut head = Vec::with_capacity(RECORD_HEAD_MAX);
        put_varint(&mut head, 2 * key.len() as u64 + u64::from(is_large));
        put_varint(&mut head, payload.len() as u64);
        let mut at = at;
        for part in [&head[..], key, payload] {
            self.0[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    fn delete(&mut self, index: Option<usize>) -> Result<Changed> {
        let Some(index) = index else { return Ok(Changed::Done(None)) };
        let before = self.read().large(index)?;
        self.uncount(index)?;
        let count = self.count();
        let (low, high) =
            (self.0.len() - PLACE_BYTES * count, self.0.len() - PLACE_BYTES * (index + 1));
        self.0.copy_within(low..high, low + PLACE_BYTES);
        self.0[low..low + PLACE_BYTES].fill(0);
        self.set_u16(0, count - 1);
        Ok(Changed::Done(before))
    }

    /// Moves the records together, in key order, without record `gone`, whose place becomes 0.
    fn move_together(&mut self, gone: Option<usize>, scratch: &mut Vec<u8>) -> Result<()> {
        scratch.clear();
        scratch.extend_from_slice(self.0);
        let old = Page::parse(PageBytes::Whole(scratch))?;
        if let Some(gone) = gone {
            self.uncount(gone)?;
        }
        let mut at = HEADER_BYTES;
        for index in 0..old.count() {
            if gone == Some(index) {
                self.set_place(index, 0);
                continue;
            }
            let record = old.record(index)?;
            let bytes = record_bytes(record.key.1, record.payload.1);
            if at + bytes + PLACE_BYTES * old.count() > self.0.len() {
                return Err(damaged("its records take more than it says"));
            }
            let key = old.0.get(record.key.0, record.key.1)?;
            let payload = old.0.get(record.payload.0, record.payload.1)?;
            self.write_record(at, &key, &payload, record.is_large);
            self.set_place(index, at);
            at += bytes;
        }
        let places = self.0.len() - PLACE_BYTES * old.count();
        self.0[at..places].fill(0);
        self.set_end(at);
        Ok(())
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}
