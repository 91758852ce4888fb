//! On-disk encoding of nodes and of the root blob, and how the node cache loads nodes.
//!
//! Block layout: `structure/mod.rs`.
//!
//! ```text
//! node     0    1  format ([`NODE_FORMAT`])
//!          1    1  height
//!          2    4  pivots
//!          6    4  segments
//!         10       segments, then pivots
//!
//! segment      1  flags: bit 0 = another node refers to the run, too
//!                        bit 1 = its first key shares bytes with that of a segment before
//!                                ([`SegmentBase`])
//!              v  with bit 1: how many
//!              v  length of the rest of its first key, then the rest
//!                 its run (`RunRef`)
//!
//! pivot           its key, prefix-compressed against that of the pivot before
//!                 (`structure/key_codec.rs`)
//!              1  child: 0 none, 1 leaf (height 1), 2 node (above)
//!                 leaf: its run (`RunRef`); node: [`NodeRef`], [`Summary`]
//!              v  parts; each: level (1; bit 6 = the totals are estimated), segment (v),
//!                 entries (v), tombstones (v), bytes (v)
//!
//! Summary         leaf totals, buffered totals (three v each), leaves, nodes, segments, pivots (v)
//!
//! root     0    1  format ([`ROOT_FORMAT`])
//!          1    1  height of the root node
//!          2    1  0 = empty tree, nothing follows; 1 = NodeRef, Summary,
//!                  v blocks of all runs, nodes and large values the tree refers to
//! ```
//!
//! `v` is a varint. Decoding trusts nothing: counts are bounded by the remaining bytes before
//! anything is allocated, and those of the invariants 1 to 4 of `node.rs` that can be checked
//! without reading runs are checked.

use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::{BLOCK_BYTES_U64, KEY_BYTES_MAX};
use crate::buffer_tree::node::{
    Child, HEIGHT_MAX, Node, NodeCache, Part, Pivot, ReadCost, Segment, SegmentBase, Summary,
};
use crate::memory::budget::Charge;
use crate::run::{OpenRuns, Run, RunRef, Totals};
use crate::runtime::sync::{Arc, AtomicBool, Ordering};
use crate::structure::{Allowance, NodeRef, SHARED_MIN, SharedKey, Structure, list_of};
use std::collections::BTreeMap;

/// Format byte at the start of every node.
const NODE_FORMAT: u8 = 1;
/// Format byte at the start of every root blob.
const ROOT_FORMAT: u8 = 1;
/// Flag of a segment whose run other nodes refer to as well.
const SEGMENT_SHARED: u8 = 1;
/// Flag of a segment whose first key shares bytes with a preceding one.
const SEGMENT_CONTINUES: u8 = 2;
/// Flag in the level of a part whose totals are estimated.
const PART_ESTIMATED: u8 = 64;
/// Maximum level number, whatever the options.
pub const LEVEL_MAX: u8 = 63;

impl Summary {
    fn encode(&self, out: &mut Vec<u8>) {
        self.leaf.encode(out);
        self.buffered.encode(out);
        let counts = [self.leaves, self.nodes, self.segments, self.pivots];
        counts.into_iter().for_each(|n| put_varint(out, n));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let (leaf, buffered) = (Totals::decode(decoder)?, Totals::decode(decoder)?);
        let mut counts = [0; 4];
        for count in &mut counts {
            *count = u64::from(decoder.varint_u32()?);
        }
        let [leaves, nodes, segments, pivots] = counts;
        Ok(Self { leaf, buffered, leaves, nodes, segments, pivots })
    }
}

/// Encodes `node`. Its child nodes must have been written.
pub fn encode_node(node: &Node) -> Vec<u8> {
    let segments = node.segments();
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    let mut out = vec![NODE_FORMAT, node.height];
    out.extend_from_slice(&count(node.pivots.len()));
    out.extend_from_slice(&count(segments.len()));
    let mut numbers = BTreeMap::new();
    let mut base = SegmentBase::default();
    for (number, segment) in segments.iter().enumerate() {
        numbers.insert(segment.run.reference().extent, number as u64);
        let flags = if segment.shared.load(Ordering::Relaxed) { SEGMENT_SHARED } else { 0 };
        put_segment_key(&mut out, flags, base.key(), &segment.first);
        base.pass(&segment.first);
        segment.run.reference().encode(&mut out);
    }
    let mut before = &SharedKey::LEAST;
    for pivot in &node.pivots {
        pivot.key.encode_after(before, &mut out);
        before = &pivot.key;
        match &pivot.child {
            Child::None => out.push(0),
            Child::Leaf(run) => {
                out.push(1);
                run.reference().encode(&mut out);
            }
            Child::Node(slot, summary) => {
                out.push(2);
                if let Some(reference) = slot.reference() {
                    reference.encode(&mut out);
                }
                summary.encode(&mut out);
            }
        }
        put_varint(&mut out, pivot.parts.len() as u64);
        for part in &pivot.parts {
            out.push(part.level | if part.estimated { PART_ESTIMATED } else { 0 });
            put_varint(&mut out, numbers[&part.segment.run.reference().extent]);
            part.totals.encode(&mut out);
        }
    }
    out
}

/// Appends the flags of a segment and its first key.
fn put_segment_key(out: &mut Vec<u8>, flags: u8, base: &SharedKey, first: &SharedKey) {
    if first.common_prefix(base) < SHARED_MIN {
        out.push(flags);
        put_bytes(out, &first.to_bytes());
    } else {
        out.push(flags | SEGMENT_CONTINUES);
        first.encode_after(base, out);
    }
}

/// Opens the run of a reference in a node.
fn open(node_cache: &NodeCache, reference: RunRef) -> Result<Arc<Run>> {
    node_cache.check_within_file(reference.extent)?;
    Ok(node_cache.context().open(node_cache.storage(), reference))
}

/// Decodes a node that must have this height.
pub fn decode_node(bytes: &[u8], height: u8, node_cache: &NodeCache) -> Result<Node> {
    let mut decoder = Decoder::new(bytes, "node");
    if decoder.u8()? != NODE_FORMAT {
        return Err(decoder.damaged("unknown format"));
    }
    if decoder.u8()? != height {
        return Err(decoder.damaged("the height differs from its parent"));
    }
    let (pivot_count, segment_count) = (decoder.u32()? as usize, decoder.u32()? as usize);
    // Every pivot and every segment takes several bytes.
    if pivot_count == 0 || pivot_count.max(segment_count) > bytes.len() / 4 {
        return Err(decoder.damaged("the number of pivots or segments is zero or too large"));
    }
    let mut allowance = Allowance::of(node_cache.storage());
    let mut segments: Vec<(Arc<Segment>, bool)> = list_of(segment_count);
    let mut base = SegmentBase::default();
    for _ in 0..segment_count {
        allowance.take(size_of::<Segment>() + size_of::<(Arc<Segment>, bool)>());
        let flags = decoder.u8()?;
        if flags & !(SEGMENT_SHARED | SEGMENT_CONTINUES) != 0 {
            return Err(decoder.damaged("a segment has an unknown flag"));
        }
        let first = decode_segment_key(&mut decoder, flags, base.key(), &mut allowance)?;
        base.pass(&first);
        let run = open(node_cache, RunRef::decode(&mut decoder)?)?;
        let shared = AtomicBool::new(flags & SEGMENT_SHARED != 0);
        segments.push((Arc::new(Segment { run, first, shared }), false));
    }
    let mut pivots: Vec<Pivot> = list_of(pivot_count);
    for _ in 0..pivot_count {
        allowance.take(size_of::<Pivot>());
        let key = decode_key(&mut decoder, pivots.last(), &mut allowance)?;
        let child = decode_child(&mut decoder, height, node_cache)?;
        let parts = decode_parts(&mut decoder, &mut segments, &mut allowance)?;
        pivots.push(Pivot::new(key, child, parts, ReadCost::default()));
    }
    decoder.finish()?;
    if segments.iter().any(|(_, used)| !used) {
        return Err(decoder.damaged("no pivot uses a segment"));
    }
    Ok(Node::new(height, pivots))
}

/// Decodes the first key of a segment. Older versions wrote all of it.
fn decode_segment_key(
    decoder: &mut Decoder<'_>,
    flags: u8,
    base: &SharedKey,
    allowance: &mut Allowance,
) -> Result<SharedKey> {
    if flags & SEGMENT_CONTINUES != 0 {
        return SharedKey::decode_after(base, decoder, allowance);
    }
    let whole = decoder.bytes(KEY_BYTES_MAX)?;
    let shared = base.common_with(whole);
    allowance.take_key(SharedKey::bytes_after(base, shared, whole.len() - shared))?;
    Ok(SharedKey::after(base, shared, &whole[shared..]))
}

fn decode_key(
    decoder: &mut Decoder<'_>,
    before: Option<&Pivot>,
    allowance: &mut Allowance,
) -> Result<SharedKey> {
    let least = before.map_or(&SharedKey::LEAST, |pivot| &pivot.key);
    let key = SharedKey::decode_after(least, decoder, allowance)?;
    if before.is_some_and(|before| before.key >= key) {
        return Err(decoder.damaged("pivots are out of order"));
    }
    Ok(key)
}

fn decode_child(decoder: &mut Decoder<'_>, height: u8, node_cache: &NodeCache) -> Result<Child> {
    match (decoder.u8()?, height) {
        (0, _) => Ok(Child::None),
        (1, 1) => Ok(Child::Leaf(open(node_cache, RunRef::decode(decoder)?)?)),
        (2, 2..) => {
            let reference = NodeRef::decode(decoder)?;
            let summary = Summary::decode(decoder)?;
            Ok(Child::Node(node_cache.slot_of(reference, height - 1)?, summary))
        }
        _ => Err(decoder.damaged("a child does not fit the height")),
    }
}

fn decode_parts(
    decoder: &mut Decoder<'_>,
    segments: &mut [(Arc<Segment>, bool)],
    allowance: &mut Allowance,
) -> Result<Vec<Part>> {
    let count = decoder.length(decoder.remaining() / 5)?;
    let mut parts: Vec<Part> = list_of(count);
    for _ in 0..count {
        allowance.take(size_of::<Part>());
        let marked = decoder.u8()?;
        let (level, estimated) = (marked & !PART_ESTIMATED, marked & PART_ESTIMATED != 0);
        let number = decoder.length(segments.len().saturating_sub(1))?;
        let totals = Totals::decode(decoder)?;
        let ordered = parts.last().is_none_or(|before| before.level <= level);
        if !ordered || level > LEVEL_MAX {
            return Err(decoder.damaged("levels of a pivot are out of order"));
        }
        let Some((segment, used)) = segments.get_mut(number) else {
            return Err(decoder.damaged("a part refers to a missing segment"));
        };
        let whole = segment.run.reference().totals();
        let fits = totals.entries <= whole.entries && totals.bytes <= whole.bytes;
        if totals.entries == 0 || !fits {
            return Err(decoder.damaged("a part does not fit its segment"));
        }
        *used = true;
        let mut part = Part::new(level, Arc::clone(segment), totals);
        part.estimated = estimated;
        parts.push(part);
    }
    Ok(parts)
}

impl Structure for Node {
    type About = u8;
    type Context = OpenRuns;

    fn decode(bytes: &[u8], height: u8, node_cache: &NodeCache) -> Result<Self> {
        decode_node(bytes, height, node_cache)
    }

    fn empty(_: u8) -> Self {
        Node::empty()
    }

    fn heap_bytes(&self) -> u64 {
        Node::heap_bytes(self)
    }

    fn footprint_bytes(&self) -> u64 {
        let runs = self.runs();
        self.heap_bytes() + runs.map(|run| run.footprint_bytes()).sum::<u64>()
    }

    fn keep(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }
}

/// Contents of a root blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootBlob {
    /// Height of the root node.
    pub height: u8,
    /// The root node; `None` for an empty tree.
    pub reference: Option<NodeRef>,
    /// Totals of the root node and everything below.
    pub summary: Summary,
    /// Number of blocks of everything the tree refers to.
    pub disk_blocks: u64,
}

impl RootBlob {
    /// Encodes the blob.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ROOT_FORMAT, self.height, u8::from(self.reference.is_some())];
        if let Some(reference) = self.reference {
            reference.encode(&mut out);
            self.summary.encode(&mut out);
            put_varint(&mut out, self.disk_blocks);
        }
        out
    }

    /// Decodes a blob.
    pub fn decode(blob: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(blob, "root of a buffer tree");
        if decoder.u8()? != ROOT_FORMAT {
            return Err(decoder.damaged("unknown format"));
        }
        let height = decoder.u8()?;
        if height == 0 || height > HEIGHT_MAX {
            return Err(decoder.damaged("the height is out of bounds"));
        }
        let mut root =
            Self { height, reference: None, summary: Summary::default(), disk_blocks: 0 };
        match decoder.u8()? {
            0 if height == 1 => {}
            1 => {
                root.reference = Some(NodeRef::decode(&mut decoder)?);
                root.summary = Summary::decode(&mut decoder)?;
                root.disk_blocks = decoder.varint()?;
                if root.disk_blocks > u64::MAX / BLOCK_BYTES_U64 / 2 {
                    return Err(decoder.damaged("the block count exceeds the maximum of a file"));
                }
            }
            _ => return Err(decoder.damaged("the empty flag is neither 0 nor 1")),
        }
        decoder.finish()?;
        Ok(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Storage;

    #[test]
    fn first_keys_of_segments_come_back_in_the_form_of_either_version() {
        let (storage, _directory) = Storage::testing(64 << 20);
        let long = vec![7; 50_000];
        let keys = [&[][..], &long[..40_000], &[1], &long, &long[..63], &long[..64], &[9; 100]];
        let (mut now, mut before) = (Vec::new(), Vec::new());
        let mut base = SegmentBase::default();
        for key in keys {
            let first = SharedKey::whole(key);
            put_segment_key(&mut now, SEGMENT_SHARED, base.key(), &first);
            before.push(0);
            put_bytes(&mut before, key);
            base.pass(&first);
        }
        assert!(now.len() < 51_000 && before.len() > 90_000, "{} {}", now.len(), before.len());
        for bytes in [&now, &before] {
            let mut decoder = Decoder::new(bytes, "test");
            let mut allowance = Allowance::of(&storage);
            let mut base = SegmentBase::default();
            for key in keys {
                let flags = decoder.u8().unwrap();
                let first =
                    decode_segment_key(&mut decoder, flags, base.key(), &mut allowance).unwrap();
                assert_eq!(first, *key);
                base.pass(&first);
            }
            decoder.finish().unwrap();
        }
    }

    #[test]
    fn a_segment_cannot_begin_with_more_than_there_is() {
        let (storage, _directory) = Storage::testing(64 << 20);
        let base = SharedKey::whole(&[7; 100]);
        let decode = |shared: u64, rest: usize| {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, shared);
            put_bytes(&mut bytes, &vec![7; rest]);
            let mut decoder = Decoder::new(&bytes, "test");
            let mut allowance = Allowance::of(&storage);
            decode_segment_key(&mut decoder, SEGMENT_CONTINUES, &base, &mut allowance)
        };
        assert_eq!(decode(100, KEY_BYTES_MAX - 100).unwrap().len(), KEY_BYTES_MAX);
        assert!(decode(100, KEY_BYTES_MAX - 99).is_err());
        assert!(decode(101, 1).is_err() && decode(u64::MAX, 0).is_err());
        assert_eq!(decode(0, 0).unwrap(), SharedKey::LEAST);
    }
}
