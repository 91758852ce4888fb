//! On-disk encoding of nodes and of the directory that lists them, and how the node cache loads
//! nodes. Block layout of both: `structure/mod.rs`; root blob: `structure/root.rs`.
//!
//! ```text
//! node     0    1  format ([`NODE_FORMAT`])
//!          1    4  tables
//!          5       tables
//!
//! table           its first bound, prefix-compressed against the last one of the table before
//!                 (`structure/key_codec.rs`); its last bound, against its first
//!                 its run (`RunRef`)
//!              v  entries that are not live (0: all of the run is live, nothing follows)
//!              v  tombstones and v bytes of these
//!              v  large values that are not live
//!
//! directory 0   1  format ([`DIRECTORY_FORMAT`])
//!          1    v  sequences of level 0
//!               v  number of them, the oldest, that are being merged into level 1
//!               v  levels below level 0
//!                  sequences: those of level 0, newest first, then the levels
//!
//! sequence     v  nodes
//!                 nodes; each: v length of its first key, then that key; `NodeRef`; `Totals`;
//!              v  tables
//! ```
//!
//! Bounds of tables are keys, or shorter than keys (`bounds.rs`); older versions wrote keys. `v` is
//! a varint. Decoding trusts nothing: counts are bounded by the remaining bytes before anything is
//! allocated, and the invariants of `table.rs` that can be checked without reading runs are
//! checked.

use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::engines::autumn::merge::garnering::LEVELS_MAX;
use crate::engines::autumn::table::{Listed, NODE_TABLES_MAX, Node, NodeCache, Sequence, Table};
use crate::memory::budget::Charge;
use crate::run::{OpenRuns, RunRef, Totals};
use crate::structure::{Allowance, NodeRef, SharedKey, Structure, list_of};

/// Format byte at the start of every node.
const NODE_FORMAT: u8 = 1;
/// Format byte at the start of every directory.
const DIRECTORY_FORMAT: u8 = 1;
/// Maximum number of sequences in level 0.
pub(super) const LEVEL0_MAX: usize = 1 << 16;

/// Encodes `node`.
pub(super) fn encode_node(node: &Node) -> Vec<u8> {
    let count = u32::try_from(node.tables.len()).unwrap_or(u32::MAX);
    let mut out = vec![NODE_FORMAT];
    out.extend_from_slice(&count.to_le_bytes());
    let mut before = &SharedKey::LEAST;
    for table in &node.tables {
        table.first.encode_after(before, &mut out);
        table.last.encode_after(&table.first, &mut out);
        before = &table.last;
        let reference = table.run.reference();
        reference.encode(&mut out);
        let mut dead = table.run.reference().totals();
        dead -= table.live;
        put_varint(&mut out, dead.entries);
        if dead.entries > 0 {
            put_varint(&mut out, dead.tombstones);
            put_varint(&mut out, dead.bytes);
            put_varint(&mut out, table.large_skipped);
        }
    }
    out
}

/// Decodes a node.
pub(super) fn decode_node(bytes: &[u8], node_cache: &NodeCache) -> Result<Node> {
    let mut decoder = Decoder::new(bytes, "node");
    if decoder.u8()? != NODE_FORMAT {
        return Err(decoder.damaged("unknown format"));
    }
    let count = decoder.u32()? as usize;
    if count == 0 || count > NODE_TABLES_MAX {
        return Err(decoder.damaged("the number of tables is zero or over the limit"));
    }
    let mut allowance = Allowance::of(node_cache.storage());
    let mut tables: Vec<Table> = list_of(count);
    for _ in 0..count {
        allowance.take(size_of::<Table>());
        let before = tables.last().map(|table| &table.last);
        let least = before.unwrap_or(&SharedKey::LEAST);
        let first = SharedKey::decode_after(least, &mut decoder, &mut allowance)?;
        let last = SharedKey::decode_after(&first, &mut decoder, &mut allowance)?;
        if before.is_some_and(|before| *before >= first) || first > last {
            return Err(decoder.damaged("tables are out of order"));
        }
        let reference = RunRef::decode(&mut decoder)?;
        node_cache.check_within_file(reference.extent)?;
        let run = node_cache.context().open(node_cache.storage(), reference);
        let mut table = Table::whole(run, first, last);
        let dead = decoder.varint()?;
        if dead > 0 {
            let dead =
                Totals { entries: dead, tombstones: decoder.varint()?, bytes: decoder.varint()? };
            let whole = table.live;
            let fits = dead.entries < whole.entries
                && dead.tombstones <= whole.tombstones
                && dead.bytes <= whole.bytes;
            if !fits {
                return Err(decoder.damaged("a table has more dead entries than entries"));
            }
            table.live -= dead;
            table.large_skipped = decoder.varint()?;
            if table.large_skipped > dead.entries - dead.tombstones.min(dead.entries) {
                return Err(decoder.damaged("a table has more dead large values than dead entries"));
            }
        }
        tables.push(table);
    }
    decoder.finish()?;
    Ok(Node::new(tables))
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
        self.heap_bytes() + self.tables.iter().map(|it| it.run.footprint_bytes()).sum::<u64>()
    }

    fn keep(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }
}

/// All sequences of a tree, and how many are being merged into level 1.
#[derive(Default)]
pub(super) struct Directory {
    /// The sequences of level 0, newest first.
    pub level0: Vec<Sequence>,
    /// Number of level-0 sequences, the oldest ones, that are being merged into level 1.
    pub sinking: usize,
    /// The levels, from level 1 on.
    pub levels: Vec<Sequence>,
}

impl Directory {
    /// Encodes a directory.
    pub fn encode<'s>(
        level0: impl ExactSizeIterator<Item = &'s Sequence>,
        sinking: usize,
        levels: impl ExactSizeIterator<Item = &'s Sequence>,
    ) -> Vec<u8> {
        let mut out = vec![DIRECTORY_FORMAT];
        for number in [level0.len(), sinking, levels.len()] {
            put_varint(&mut out, number as u64);
        }
        for sequence in level0.chain(levels) {
            put_varint(&mut out, sequence.nodes.len() as u64);
            for node in &sequence.nodes {
                put_bytes(&mut out, &node.first.to_bytes());
                if let Some(reference) = node.slot.reference() {
                    reference.encode(&mut out);
                }
                node.totals.encode(&mut out);
                put_varint(&mut out, u64::from(node.tables));
            }
        }
        out
    }

    /// Decodes a directory.
    pub fn decode(bytes: &[u8], node_cache: &NodeCache) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "directory of an autumn tree");
        if decoder.u8()? != DIRECTORY_FORMAT {
            return Err(decoder.damaged("unknown format"));
        }
        // Each sequence takes at least one byte.
        let level0 = decoder.length(bytes.len().min(LEVEL0_MAX))?;
        let sinking = decoder.length(level0)?;
        let levels = decoder.length(bytes.len().min(LEVELS_MAX))?;
        let mut read = |count: usize| -> Result<Vec<Sequence>> {
            (0..count).map(|_| decode_sequence(&mut decoder, node_cache)).collect()
        };
        let directory = Self { level0: read(level0)?, sinking, levels: read(levels)? };
        if sinking > 0 && levels == 0 {
            return Err(decoder.damaged("level-0 sequences are sinking, but there is no level 1"));
        }
        if directory.level0.iter().any(Sequence::is_empty) {
            return Err(decoder.damaged("a sequence of level 0 has no nodes"));
        }
        decoder.finish()?;
        Ok(directory)
    }
}

fn decode_sequence(decoder: &mut Decoder<'_>, node_cache: &NodeCache) -> Result<Sequence> {
    let count = decoder.length(decoder.remaining() / 8)?;
    let mut nodes: Vec<Listed> = list_of(count);
    let mut allowance = Allowance::of(node_cache.storage());
    for _ in 0..count {
        let first = decoder.bytes(KEY_BYTES_MAX)?;
        allowance.take(size_of::<Listed>() + first.len());
        let first = SharedKey::whole(first);
        let before = nodes.last().map_or(&SharedKey::LEAST, |before| &before.first);
        if !nodes.is_empty() && *before >= first {
            return Err(decoder.damaged("nodes of a level are out of order"));
        }
        let first = first.beside(before);
        let slot = node_cache.slot_of(NodeRef::decode(decoder)?, ())?;
        let totals = Totals::decode(decoder)?;
        let tables = decoder.varint_u32()?;
        if tables == 0 || tables as usize > NODE_TABLES_MAX || totals.entries < u64::from(tables) {
            return Err(decoder.damaged("the table count of a node is zero or over the limit"));
        }
        nodes.push(Listed { first, slot, totals, tables });
    }
    Ok(Sequence::new(nodes))
}
