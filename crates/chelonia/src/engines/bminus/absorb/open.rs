//! Pages that are being changed, in memory.

use crate::base::error::{Error, Result};
use crate::base::ids::Generation;
use crate::engines::bminus::read::pages::Loaded;
use crate::pages::homes::{Page, PageBytes, PageMut, Region};
use crate::runtime::sync::Arc;
use crate::storage::cache::Heat;
use crate::structure::SharedKey;

/// The home of a page.
pub(super) type HomeAt = (Arc<Region>, u8);

/// A page that is not written yet.
pub(super) struct OpenPage {
    /// The least key that belongs to it.
    pub first: SharedKey,
    /// Its content.
    pub page: Vec<u8>,
    /// The content of its home, and the stamp of that image.
    pub old: Option<(Vec<u8>, Generation)>,
    /// The home that it was read from.
    pub origin: Option<HomeAt>,
    /// The heat that it had in the cache.
    pub heat: Option<Heat>,
}

impl OpenPage {
    /// A page that was read.
    pub fn loaded(first: SharedKey, origin: HomeAt, loaded: Loaded) -> Self {
        let Loaded { page, stamp, heat } = loaded;
        let old = Some((page.clone(), stamp));
        Self { first, page, old, origin: Some(origin), heat }
    }

    /// An empty page of `bytes` bytes.
    pub fn empty(first: SharedKey, bytes: usize, heat: Option<Heat>) -> Self {
        let mut page = vec![0; bytes];
        PageMut::empty(&mut page);
        Self { first, page, old: None, origin: None, heat }
    }

    /// The page to read.
    pub fn read(&self) -> Result<Page<'_>> {
        Page::parse(PageBytes::Whole(&self.page))
    }

    /// Number of its records.
    pub fn count(&self) -> usize {
        self.read().map_or(0, |page| page.count())
    }

    /// Bytes of its records and their places.
    pub fn live_bytes(&self) -> usize {
        self.read().map_or(0, |page| page.live_bytes())
    }

    /// True if it is as its home has it.
    pub fn is_unchanged(&self) -> bool {
        self.old.as_ref().is_some_and(|(old, _)| *old == self.page)
    }

    /// Adds a record behind all others; false if there is no space.
    pub fn append(&mut self, key: &[u8], payload: &[u8], is_large: bool) -> Result<bool> {
        let count = self.count();
        if count > 0 && self.read()?.key(count - 1)?.as_ref() >= key {
            return Err(Error::corrupt(
                "the keys of pages are out of order: a write is lost, or a page forged",
            ));
        }
        Ok(PageMut::parse(&mut self.page)?.append(key, payload, is_large))
    }

    /// Adds all records of `other` from `index` on. Fails if they do not fit: then the byte count
    /// of `other`, by which the caller decided, is wrong.
    pub fn append_all(&mut self, other: &Page<'_>, index: usize) -> Result<()> {
        if self.append_from(other, index)? < other.count() {
            return Err(Error::corrupt("the records of a page take more than it says"));
        }
        Ok(())
    }

    /// Adds the records of `other` from `index` on, as far as they fit; returns the first that does
    /// not.
    pub fn append_from(&mut self, other: &Page<'_>, index: usize) -> Result<usize> {
        for index in index..other.count() {
            let (key, (payload, is_large)) = (other.key(index)?, other.payload(index)?);
            if !self.append(&key, &payload, is_large)? {
                return Ok(index);
            }
        }
        Ok(other.count())
    }
}
