//! On-disk encoding of nodes and of the directory. Block layout of both: `structure/mod.rs`; root
//! blob: `structure/root.rs`; groups: `pages/group.rs`.
//!
//! ```text
//! node     0    1  format ([`NODE_FORMAT`])
//!          1    v  groups
//!                  groups; each: its first bound, prefix-compressed against that of the group
//!                  before (`structure/key_codec.rs`); the group
//!
//! directory 0   1  format ([`DIRECTORY_FORMAT`])
//!          1    v  staged memtables; v those of them that are being swept;
//!               v  length of the key below which they are swept, that key
//!                  memtables, newest first; each: v runs; each run: v length and bytes of the
//!                  first key, the same of the last key, `RunRef`, v large values swept
//!                  nodes (`structure/directory.rs`), with the facts: `Totals`; v groups; v pages
//! ```
//!
//! `v` is a varint. Decoding trusts nothing: counts are bounded by the remaining bytes before
//! anything is allocated, and the invariants of `node.rs` are checked.

use super::node::{Directory, Facts, Item, NODE_GROUPS_MAX, Node, NodeCache};
use super::staged::{Staged, Table};
use super::version::Parts;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::memory::budget::Charge;
use crate::pages::{Group, SLOTS_MAX};
use crate::run::{OpenRuns, RunRef, Totals};
use crate::runtime::sync::Arc;
use crate::structure::{Allowance, SharedKey, Structure, list_of};

/// Format byte at the start of every node.
const NODE_FORMAT: u8 = 1;
/// Format byte at the start of every directory.
const DIRECTORY_FORMAT: u8 = 1;
/// Maximum number of staged memtables.
pub(super) const STAGED_MAX: usize = 1 << 16;

/// Encodes `node`.
pub(super) fn encode_node(node: &Node) -> Vec<u8> {
    let mut out = vec![NODE_FORMAT];
    put_varint(&mut out, node.items.len() as u64);
    let mut before = &SharedKey::LEAST;
    for item in &node.items {
        item.first.encode_after(before, &mut out);
        item.group.encode(&mut out);
        before = &item.first;
    }
    out
}

/// Decodes a node.
pub(super) fn decode_node(bytes: &[u8], node_cache: &NodeCache) -> Result<Node> {
    let mut decoder = Decoder::new(bytes, "node");
    if decoder.u8()? != NODE_FORMAT {
        return Err(decoder.damaged("unknown format"));
    }
    let count = decoder.length(NODE_GROUPS_MAX)?;
    if count == 0 {
        return Err(decoder.damaged("there are no groups"));
    }
    let mut allowance = Allowance::of(node_cache.storage());
    let mut items: Vec<Item> = list_of(count);
    for _ in 0..count {
        allowance.take(size_of::<Item>() + size_of::<Group>());
        let before = items.last().map(|item| &item.first);
        let least = before.unwrap_or(&SharedKey::LEAST);
        let first = SharedKey::decode_after(least, &mut decoder, &mut allowance)?;
        if before.is_some_and(|before| *before >= first) {
            return Err(decoder.damaged("groups are out of order"));
        }
        let group = Group::decode(&mut decoder, &first, node_cache.storage(), &mut allowance)?;
        items.push(Item { first, group: Arc::new(group) });
    }
    decoder.finish()?;
    Ok(Node::new(items))
}

impl Structure for Node {
    type About = ();
    type Context = OpenRuns;

    fn decode(bytes: &[u8], (): (), node_cache: &NodeCache) -> Result<Self> {
        decode_node(bytes, node_cache)
    }

    fn empty((): ()) -> Self {
        Self::new(Vec::new())
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
        put_varint(&mut out, self.staged.len() as u64);
        put_varint(&mut out, self.sinking as u64);
        put_bytes(&mut out, &self.swept_to.to_bytes());
        for staged in &self.staged {
            put_varint(&mut out, staged.tables.len() as u64);
            for table in &staged.tables {
                put_bytes(&mut out, &table.first.to_bytes());
                put_bytes(&mut out, &table.last.to_bytes());
                table.run.reference().encode(&mut out);
                put_varint(&mut out, table.large_skipped);
            }
        }
        self.directory.encode(&mut out, |facts, out| {
            facts.totals.encode(out);
            put_varint(out, u64::from(facts.groups));
            put_varint(out, u64::from(facts.pages));
        });
        out
    }

    /// Decodes the directory of a version.
    pub fn decode(bytes: &[u8], node_cache: &NodeCache) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "directory of a treeline tree");
        if decoder.u8()? != DIRECTORY_FORMAT {
            return Err(decoder.damaged("unknown format"));
        }
        // Each memtable takes at least one byte.
        let count = decoder.length(bytes.len().min(STAGED_MAX))?;
        let sinking = decoder.length(count)?;
        let swept_to = SharedKey::whole(decoder.bytes(KEY_BYTES_MAX)?);
        if sinking == 0 && swept_to.len() > 0 {
            return Err(decoder.damaged("nothing is swept, but up to a key"));
        }
        let mut allowance = Allowance::of(node_cache.storage());
        let mut staged = list_of(count);
        for _ in 0..count {
            let tables = decode_staged(&mut decoder, node_cache, &mut allowance)?;
            staged.push(Staged::new(tables, node_cache.storage().budget()));
        }
        let directory = Directory::decode(&mut decoder, node_cache, &mut allowance, decode_facts)?;
        decoder.finish()?;
        let mut parts = Self { staged, sinking, swept_to, ..Self::default() };
        parts.set_directory(directory);
        Ok(parts)
    }
}

fn decode_staged(
    decoder: &mut Decoder<'_>,
    node_cache: &NodeCache,
    allowance: &mut Allowance,
) -> Result<Vec<Table>> {
    let count = decoder.length(decoder.remaining() / 8)?;
    let mut tables: Vec<Table> = list_of(count);
    for _ in 0..count {
        let (first, last) = (decoder.bytes(KEY_BYTES_MAX)?, decoder.bytes(KEY_BYTES_MAX)?);
        allowance.take(size_of::<Table>() + first.len() + last.len());
        let in_order = tables.last().is_none_or(|before| before.last < *first);
        if !in_order || first > last {
            return Err(decoder.damaged("staged runs are out of order"));
        }
        let (first, last) = (SharedKey::whole(first), SharedKey::whole(last));
        let reference = RunRef::decode(decoder)?;
        node_cache.check_within_file(reference.extent)?;
        let run = node_cache.context().open(node_cache.storage(), reference);
        let large_skipped = decoder.varint()?;
        if large_skipped > reference.entries {
            return Err(decoder.damaged("a run has more large values than entries"));
        }
        tables.push(Table { large_skipped, ..Table::new(run, first, last) });
    }
    if tables.is_empty() {
        return Err(decoder.damaged("a staged memtable has no runs"));
    }
    Ok(tables)
}

fn decode_facts(decoder: &mut Decoder<'_>) -> Result<Facts> {
    let totals = Totals::decode(decoder)?;
    let (groups, pages) = (decoder.varint_u32()?, decoder.varint_u32()?);
    let possible = (1..=NODE_GROUPS_MAX).contains(&(groups as usize))
        && (groups as usize..=NODE_GROUPS_MAX * SLOTS_MAX).contains(&(pages as usize))
        && totals.entries >= u64::from(pages);
    if !possible {
        return Err(decoder.damaged("the number of groups or pages of a node is impossible"));
    }
    Ok(Facts { totals, groups, pages })
}
