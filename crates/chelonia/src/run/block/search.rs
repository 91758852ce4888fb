//! A joined span of a sorted block that can be searched. Its layout is drawn in `run/block.rs`.

use super::{ALIKE, EXTENDED, Entry, EntryKind, Layout, SPAN, Word, damaged, u16_at, u32_at};
use crate::base::error::Result;
use crate::base::keys::head32;
use crate::kernels::heads::{HEAD_BYTES, equal_range};
use crate::storage::block::BlockKind;
use std::cmp::Ordering;

impl Layout {
    /// Views the span's bytes with this layout. `bytes` must be those that were parsed.
    #[inline]
    pub fn over(self, bytes: &[u8]) -> SortedBlock<'_> {
        SortedBlock { bytes, layout: self }
    }
}

/// A joined span that can be searched.
#[derive(Clone, Copy, Debug)]
pub struct SortedBlock<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl<'a> SortedBlock<'a> {
    /// Parses the joined span `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8], kind: BlockKind) -> Result<Self> {
        Ok(Layout::parse(bytes, kind)?.over(bytes))
    }

    /// Its layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Its number of blocks.
    #[inline]
    pub fn span(&self) -> u32 {
        self.bytes.get(SPAN).map_or(0, |span| u32::from(span & !(ALIKE | EXTENDED)))
    }

    /// The joined bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes that all keys share.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        &self.bytes[self.layout.prefix..self.layout.prefix + self.layout.prefix_len]
    }

    #[inline]
    fn heads(&self) -> &'a [u8] {
        &self.bytes[self.layout.heads..self.layout.slots]
    }

    /// The head of entry `index`; 0 if there is none.
    #[inline]
    pub fn head(&self, index: usize) -> u32 {
        u32_at(self.heads(), index * HEAD_BYTES)
    }

    /// Start of entry `index`; the end for the one after the last.
    #[inline]
    fn slot(&self, index: usize) -> usize {
        if index >= self.layout.count {
            return self.layout.end;
        }
        if self.layout.wide_slots {
            u32_at(self.bytes, self.layout.slots + index * 4) as usize
        } else {
            usize::from(u16_at(self.bytes, self.layout.slots + index * 2))
        }
    }

    /// Decodes entry `index`, which must be below the count.
    #[inline]
    pub fn entry(&self, index: usize) -> Result<Entry> {
        if let Some(alike) = self.layout.alike {
            if index >= self.layout.count {
                return Err(damaged("the entry index exceeds its count"));
            }
            let tail = self.layout.entries + index * alike.bytes;
            let payload = tail + alike.rest_len.saturating_sub(HEAD_BYTES);
            let (kind, rest_len) = (alike.kind, alike.rest_len);
            let end = tail + alike.bytes;
            return Ok(Entry { kind, rest_len, tail, payload, end, overflow: 0 });
        }
        let (start, end) = (self.slot(index), self.slot(index + 1));
        if start < self.layout.entries || end > self.layout.end || start >= end {
            return Err(damaged("an entry lies outside of it"));
        }
        let word = Word::read(&self.bytes[start..end], self.layout.prefix_len)?;
        let tail = start + word.len;
        let payload = tail + word.tail_len();
        if payload > end {
            return Err(damaged("a key extends past its entry"));
        }
        let is_last = index + 1 == self.layout.count;
        let overflow = if is_last { self.layout.overflow } else { 0 };
        Ok(Entry { kind: word.kind, rest_len: word.rest_len, tail, payload, end, overflow })
    }

    /// Compares the key of entry `index`, whose head equals that of `rest`, with `rest` (the
    /// searched key after the prefix).
    #[inline]
    fn compare_rest(&self, index: usize, rest: &[u8]) -> Result<Ordering> {
        let entry = self.entry(index)?;
        if entry.rest_len >= HEAD_BYTES && rest.len() >= HEAD_BYTES {
            return Ok(self.bytes[entry.tail..entry.payload].cmp(&rest[HEAD_BYTES..]));
        }
        // One of them ends within the head, where the other can only have zeros: it is a prefix of
        // it.
        Ok(entry.rest_len.cmp(&rest.len()))
    }

    /// Searches `key`: `Ok` with its index if it exists, otherwise `Err` with the index of the
    /// first greater key.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<Result<usize, usize>> {
        let prefix = self.prefix();
        let shared = prefix.len().min(key.len());
        match key[..shared].cmp(&prefix[..shared]) {
            Ordering::Less => return Ok(Err(0)),
            Ordering::Greater => return Ok(Err(self.layout.count)),
            Ordering::Equal if key.len() < prefix.len() => return Ok(Err(0)),
            Ordering::Equal => {}
        }
        let rest = &key[shared..];
        let (mut low, mut high) = equal_range(self.heads(), head32(rest));
        while low < high {
            let middle = low.midpoint(high);
            match self.compare_rest(middle, rest)? {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    /// Fails unless the key of entry `index` is greater than that of the one before. `before` and
    /// `entry` describe the two.
    #[inline]
    pub fn check_ascends(&self, index: usize, before: &Entry, entry: &Entry) -> Result<()> {
        let (low, high) = (self.head(index - 1), self.head(index));
        // Heads that consist of key bytes only usually differ, and then nothing else is compared.
        let is_complete = before.rest_len.min(entry.rest_len) >= HEAD_BYTES;
        if is_complete && low < high {
            return Ok(());
        }
        let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
        let low = &low[..before.rest_len.min(HEAD_BYTES)];
        let high = &high[..entry.rest_len.min(HEAD_BYTES)];
        let tail = |entry: &Entry| &self.bytes[entry.tail..entry.payload];
        match low.cmp(high).then_with(|| tail(before).cmp(tail(entry))) {
            Ordering::Less => Ok(()),
            Ordering::Equal | Ordering::Greater => Err(damaged("its keys do not ascend")),
        }
    }

    /// True if `entry`, which is entry `index`, is laid out as by a builder: no unused bytes before
    /// the first one, zeros in the head after a short key, nothing after a tombstone.
    pub fn is_tidy(&self, index: usize, entry: &Entry) -> bool {
        let padding = HEAD_BYTES.saturating_sub(entry.rest_len);
        let padded = padding == 0
            || self.head(index).to_be_bytes()[entry.rest_len..].iter().all(|byte| *byte == 0);
        let close = index > 0 || self.layout.alike.is_some() || self.slot(0) == self.layout.entries;
        let bare = entry.kind != EntryKind::Tombstone || entry.payload == entry.end;
        padded && close && bare && entry.check_value().is_ok()
    }

    /// The entry of `key`, if there is one.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Result<Option<Entry>> {
        match self.search(key)? {
            Ok(index) => Ok(Some(self.entry(index)?)),
            Err(_) => Ok(None),
        }
    }
}
