//! On-disk encoding of nodes and of the directory. Block layout of both: `structure/mod.rs`; root
//! blob: `structure/root.rs`; homes: `pages/homes/mod.rs`.
//!
//! ```text
//! node     0    1  format ([`NODE_FORMAT`])
//!               v  stamp of the absorb that wrote it
//!               v  regions; each: v first block; v generation; v that less the stamp of the
//!                  absorb that allocated it; v homes; v blocks of a page
//!               v  pages; each: its bound, prefix-compressed against that of the page before
//!                  (`structure/key_codec.rs`); v region; 1 home
//!
//! directory 0   1  format ([`DIRECTORY_FORMAT`])
//!               v  stamp of the version; dead stamps (`pages/homes/stamps.rs`)
//!                  nodes (`structure/directory.rs`), with the facts: `Totals`; v pages; v homes;
//!                  v large values; 8 sum of its stamps
//! ```
//!
//! `v` is a varint. Decoding trusts nothing: counts are bounded by the remaining bytes before
//! anything is allocated, and the invariants of `node.rs` are checked.

use super::config::BminusConfig;
use super::node::{Directory, Facts, Node, NodeCache, PageRef};
use super::version::Parts;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{Extent, Generation};
use crate::memory::budget::Charge;
use crate::pages::homes::slotted::PAGE_BLOCKS_MAX;
use crate::pages::homes::{DeadStamps, HOMES_MAX, HomeLayout, Region, View};
use crate::run::Totals;
use crate::runtime::sync::Arc;
use crate::structure::{Allowance, SharedKey, Structure, list_of};

/// Format byte at the start of every node.
const NODE_FORMAT: u8 = 1;
/// Format byte at the start of every directory.
const DIRECTORY_FORMAT: u8 = 1;
/// Maximum number of pages, and of regions, of a node.
pub(super) const PAGES_MAX: usize = 1024;

/// Encodes `node`.
pub(super) fn encode_node(node: &Node) -> Vec<u8> {
    let mut out = vec![NODE_FORMAT];
    put_varint(&mut out, node.stamp.0);
    put_varint(&mut out, node.regions.len() as u64);
    for region in &node.regions {
        let owned = region.owned();
        put_varint(&mut out, owned.extent.start.0);
        put_varint(&mut out, owned.generation.0);
        put_varint(&mut out, owned.generation.0.saturating_sub(region.born().0));
        put_varint(&mut out, region.homes() as u64);
        put_varint(&mut out, u64::from(region.layout().page_blocks));
    }
    put_varint(&mut out, node.pages.len() as u64);
    let mut before = &SharedKey::LEAST;
    for page in &node.pages {
        page.first.encode_after(before, &mut out);
        put_varint(&mut out, u64::from(page.region));
        out.push(page.home);
        before = &page.first;
    }
    out
}

/// Decodes a node.
pub(super) fn decode_node(bytes: &[u8], node_cache: &NodeCache) -> Result<Node> {
    let mut decoder = Decoder::new(bytes, "node");
    if decoder.u8()? != NODE_FORMAT {
        return Err(decoder.damaged("unknown format"));
    }
    let stamp = Generation(decoder.varint()?);
    let mut allowance = Allowance::of(node_cache.storage());
    let count = decoder.length(PAGES_MAX)?;
    let mut regions: Vec<Arc<Region>> = list_of(count);
    for _ in 0..count {
        regions.push(decode_region(&mut decoder, node_cache, &mut allowance)?);
    }
    let count = decoder.length(PAGES_MAX)?;
    if count == 0 {
        return Err(decoder.damaged("there are no pages"));
    }
    let mut pages: Vec<PageRef> = list_of(count);
    let mut used: Vec<u32> = vec![0; regions.len()];
    for index in 0..count {
        allowance.take(size_of::<PageRef>() + 8);
        let before = pages.last().map_or(&SharedKey::LEAST, |page| &page.first);
        let first = SharedKey::decode_after(before, &mut decoder, &mut allowance)?;
        if (index > 0 && *before >= first) || (index == 0 && first.len() > 0) {
            return Err(decoder.damaged("pages are out of order"));
        }
        let region = u16::try_from(decoder.length(regions.len())?).unwrap_or(u16::MAX);
        let home = decoder.u8()?;
        let homes = regions.get(usize::from(region)).map_or(0, |region| region.homes());
        let taken = used.get_mut(usize::from(region)).filter(|_| usize::from(home) < homes);
        match taken {
            Some(taken) if *taken & (1 << home) == 0 => *taken |= 1 << home,
            _ => return Err(decoder.damaged("two pages are in one home, or one is in none")),
        }
        pages.push(PageRef { first, region, home });
    }
    if used.contains(&0) {
        return Err(decoder.damaged("a region has no page"));
    }
    decoder.finish()?;
    Ok(Node::new(stamp, pages, regions))
}

fn decode_region(
    decoder: &mut Decoder<'_>,
    node_cache: &NodeCache,
    allowance: &mut Allowance,
) -> Result<Arc<Region>> {
    let start = decoder.varint()?;
    let generation = decoder.varint()?;
    let born = generation.checked_sub(decoder.varint()?);
    let born = born.ok_or_else(|| decoder.damaged("a region is older than possible"))?;
    let homes = decoder.length(HOMES_MAX)?;
    let page_blocks = decoder.varint_u32()?;
    if homes == 0 || !(1..=PAGE_BLOCKS_MAX).contains(&page_blocks) {
        return Err(decoder.damaged("the number or size of the homes of a region is impossible"));
    }
    let layout = HomeLayout { page_blocks, shadow: node_cache.context().shadow };
    let blocks = layout.home_blocks() * u32::try_from(homes).unwrap_or(0);
    if start.checked_add(u64::from(blocks)).is_none() {
        return Err(decoder.damaged("a region of pages is out of range"));
    }
    allowance.take(12 * blocks as usize + 300);
    let region = Region::open(
        node_cache.storage(),
        Extent::new(start, blocks),
        (Generation(generation), Generation(born)),
        layout,
    );
    region.check_within(node_cache.storage())?;
    Ok(region)
}

impl Structure for Node {
    type About = ();
    type Context = BminusConfig;

    fn decode(bytes: &[u8], (): (), node_cache: &NodeCache) -> Result<Self> {
        decode_node(bytes, node_cache)
    }

    fn empty((): ()) -> Self {
        Self::new(Generation(0), Vec::new(), Vec::new())
    }

    fn heap_bytes(&self) -> u64 {
        Node::heap_bytes(self)
    }

    fn footprint_bytes(&self) -> u64 {
        Node::footprint_bytes(self)
    }

    fn keep(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }
}

impl Parts {
    /// Encodes the directory of a version.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![DIRECTORY_FORMAT];
        put_varint(&mut out, self.view.stamp.0);
        self.view.dead.encode(&mut out);
        self.directory.encode(&mut out, |facts, out| {
            facts.totals.encode(out);
            put_varint(out, u64::from(facts.pages));
            put_varint(out, u64::from(facts.homes));
            put_varint(out, u64::from(facts.large));
            out.extend_from_slice(&facts.sum.to_le_bytes());
        });
        out
    }

    /// Decodes the directory of a version.
    pub fn decode(bytes: &[u8], node_cache: &NodeCache) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "directory of a bminus tree");
        if decoder.u8()? != DIRECTORY_FORMAT {
            return Err(decoder.damaged("unknown format"));
        }
        let stamp = Generation(decoder.varint()?);
        let dead = Arc::new(DeadStamps::decode(&mut decoder)?);
        let mut allowance = Allowance::of(node_cache.storage());
        let directory = Directory::decode(&mut decoder, node_cache, &mut allowance, |decoder| {
            let totals = Totals::decode(decoder)?;
            let (pages, homes) = (decoder.varint_u32()?, decoder.varint_u32()?);
            let (large, sum) = (decoder.varint_u32()?, decoder.u64()?);
            if pages == 0 || homes < pages || u64::from(large) > totals.entries {
                return Err(decoder.damaged("the numbers of a node are impossible"));
            }
            Ok(Facts { totals, pages, homes, large, sum, changed: stamp })
        })?;
        decoder.finish()?;
        Ok(Self { view: View { stamp, dead }, directory: Arc::new(directory) })
    }
}
