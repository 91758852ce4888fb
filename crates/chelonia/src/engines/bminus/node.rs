//! Nodes in memory: pages with their bounds, and the homes that they are in.
//!
//! ```text
//!   directory  [ node | node | node ]     knows the first bound, totals and stamps of each node
//!                 |                       without reading it
//!                 '-> [ page | page | ... ]   up to `BminusConfig::node_pages`, in key order
//!                        |      '----.
//!   regions of the node  [ home | home | home ] [ home ]
//! ```
//!
//! A page covers all keys from its bound to the bound of the next one. The bound of a node's first
//! page is that of the node; the first node begins at the least key.
//!
//! A node is written when pages are divided, joined or moved, not when they are updated.
//!
//! Invariants (checked when a node is decoded, and by `verify`, as far as one node shows them):
//! 1. Bounds ascend.
//! 2. Each page has a home of its own; a region belongs to one node of each version.

use crate::base::ids::Generation;
use crate::memory::budget::Charge;
use crate::pages::homes::Region;
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{self, SharedKey, begun_by};

/// The nodes of a tree that are in memory.
pub(super) type NodeCache = structure::NodeCache<Node>;

/// A node with the facts of it.
pub(super) type Listed = structure::Listed<Node, Facts>;

/// All nodes of a tree.
pub(super) type Directory = structure::Directory<Node, Facts>;

/// A page of a node.
#[derive(Clone)]
pub(super) struct PageRef {
    /// The least key that belongs to it; empty for the first page of a node.
    pub first: SharedKey,
    /// Its region, as a place in the list of the node.
    pub region: u16,
    /// Its home in that region.
    pub home: u8,
}

/// Neighboring pages.
pub(super) struct Node {
    /// The stamp of the absorb that wrote it: homes without a page are unused since then.
    pub stamp: Generation,
    /// At least one, in key order.
    pub pages: Vec<PageRef>,
    /// The regions that they are in.
    pub regions: Vec<Arc<Region>>,
    /// Numeric prefixes of the bounds.
    heads: Vec<u64>,
    /// Memory charge; `None` while a node is examined before it is cached.
    pub charge: Option<Charge>,
}

impl Node {
    /// Creates a node of these pages.
    pub fn new(stamp: Generation, mut pages: Vec<PageRef>, regions: Vec<Arc<Region>>) -> Self {
        for index in 0..pages.len() {
            pages[index].first = match index.checked_sub(1) {
                Some(before) => pages[index].first.beside(&pages[before].first),
                None => SharedKey::LEAST,
            };
        }
        let heads = pages.iter().map(|page| page.first.head()).collect();
        Self { stamp, pages, regions, heads, charge: None }
    }

    /// The page that has the keys around `key`.
    #[inline]
    pub fn page_of(&self, key: &[u8]) -> usize {
        begun_by(&self.heads, key, |index| &self.pages[index].first).saturating_sub(1)
    }

    /// The region and the home of a page.
    #[inline]
    pub fn home_of(&self, page: usize) -> (&Arc<Region>, u8) {
        let PageRef { region, home, .. } = self.pages[page];
        (&self.regions[usize::from(region)], home)
    }

    /// Number of homes.
    pub fn homes(&self) -> usize {
        self.regions.iter().map(|region| region.homes()).sum()
    }

    /// Approximate heap bytes, without what the cache charges.
    pub fn heap_bytes(&self) -> u64 {
        let mut bytes = size_of::<Self>();
        let mut before = None;
        for page in &self.pages {
            bytes += size_of::<PageRef>() + 8 + page.first.heap_bytes(before);
            before = Some(&page.first);
        }
        let regions: u64 = self.regions.iter().map(|region| region.heap_bytes()).sum();
        bytes as u64 + regions
    }

    /// As [`Node::heap_bytes`], with what the cache charges for the regions.
    pub fn footprint_bytes(&self) -> u64 {
        let cached = self.regions.iter().map(|region| region.cache_bytes());
        self.heap_bytes() + cached.sum::<u64>()
    }
}

/// The facts that the directory knows of a node.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// Totals of its entries.
    pub totals: Totals,
    /// Number of its pages, and of its homes.
    pub pages: u32,
    pub homes: u32,
    /// Number of large values in it.
    pub large: u32,
    /// The sum over the homes of its pages and the stamps of their images, wrapping
    /// (`pages::homes::sum_of`).
    pub sum: u64,
    /// The stamp of the last absorb that wrote one of its pages; after an open that of the root.
    pub changed: Generation,
}
