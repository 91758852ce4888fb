//! Nodes: the units of an engine's structure, always on disk, and cached in memory.
//!
//! An engine divides its metadata on runs or pages into nodes. A node is written once, as a
//! sequence of bytes over the payloads of consecutive blocks of kind `Engine` in one extent; the
//! rest of the last payload is zero.
//!
//! ```text
//! block    0  checksum, kind (see `storage/block.rs`); bytes 9 to 15 are zero
//!         16  4080 bytes of the node
//!
//! NodeRef  v  first block; v generation; v bytes of the node          (v: a varint)
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | here | the location of a node ([`NodeRef`]), and its bytes in blocks |
//! | `allowance` | limits the memory of a node while it is decoded ([`Allowance`]) |
//! | `node_cache` | the nodes in memory ([`Slot`], [`NodeCache`]) |
//! | `shared_key` | the keys of nodes ([`SharedKey`]) |
//! | `key_codec` | prefix compression of keys in the bytes of nodes |
//! | `key_view` | borrowed views of keys ([`KeyView`]) |
//! | `directory` | the nodes of a tree with one level of them ([`Directory`]) |
//! | `check` | verification of directories and nodes ([`Check`]) |
//! | `root` | the root blob of a tree with one directory ([`DirectoryRoot`]) |
//! | `output` | extents that work on a tree gains and loses ([`Output`]) |
//! | `events` | counters of events |
//! | `pieces` | comparison of keys that are stored in pieces |
//!
//! Each engine defines the content of its nodes ([`Structure`]).

mod allowance;
mod check;
mod directory;
pub mod events;
mod key_codec;
mod key_view;
mod node_cache;
mod output;
mod pieces;
mod root;
mod shared_key;

pub use allowance::{Allowance, list_of};
pub use check::Check;
pub use directory::{Directory, Listed};
pub use key_view::KeyView;
pub use node_cache::{NodeCache, Slot, Structure};
pub use output::{Ledger, Output};
pub use root::DirectoryRoot;
pub use shared_key::{SHARED_MIN, SharedKey, begun_by};

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::{BlockNo, Extent, Generation};
use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::engine::OwnedExtent;
use crate::memory::budget::Use;
use crate::storage::Storage;
use crate::storage::block::{
    BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind, DATA_FILE, expect_kind,
};
use crate::storage::quota::Quota;

/// Maximum size of a node; a larger one is damaged: 256 pivots and their segments with the longest
/// keys.
const NODE_BYTES_MAX: u32 = 64 << 20;

/// The location of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRef {
    /// The blocks.
    pub extent: Extent,
    /// The generation they were sealed with.
    pub generation: Generation,
    /// The bytes of the node in them.
    pub bytes: u32,
}

impl NodeRef {
    /// The number of blocks of a node of this many bytes.
    #[must_use]
    pub fn blocks_for(bytes: u32) -> u32 {
        let payload = u32::try_from(BLOCK_PAYLOAD_BYTES).unwrap_or(u32::MAX);
        bytes.div_ceil(payload)
    }

    /// The extent of the node.
    #[must_use]
    pub fn owned(self) -> OwnedExtent {
        OwnedExtent::structure(self.extent, self.generation)
    }

    /// Appends the encoded reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.extent.start.0);
        put_varint(out, self.generation.0);
        put_varint(out, u64::from(self.bytes));
    }

    /// Decodes the output of [`NodeRef::encode`].
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let start = decoder.varint()?;
        let generation = Generation(decoder.varint()?);
        let bytes = decoder.varint_u32()?;
        if bytes == 0 || bytes > NODE_BYTES_MAX {
            return Err(decoder.damaged("the length of a node is out of bounds"));
        }
        let blocks = Self::blocks_for(bytes);
        if start.checked_add(u64::from(blocks)).is_none_or(|end| end > u64::MAX / BLOCK_BYTES_U64) {
            return Err(decoder.damaged("the location of a node is out of range"));
        }
        Ok(Self { extent: Extent::new(start, blocks), generation, bytes })
    }

    /// Reads the bytes of the node.
    pub fn read(&self, storage: &Storage) -> Result<Vec<u8>> {
        if !storage.holds(self.extent) {
            let error = Error::corrupt("a node lies beyond the data file");
            return Err(error.at(DATA_FILE, self.extent.offset()));
        }
        let first = self.extent.start;
        let mut blocks = vec![0; self.extent.blocks as usize * BLOCK_BYTES];
        let _charge = storage.budget().charge(Use::Work, blocks.len() as u64);
        storage.read_blocks(first, self.generation, &mut blocks)?;
        for (index, block) in blocks.chunks_exact(BLOCK_BYTES).enumerate() {
            expect_kind(block, BlockKind::Engine, BlockNo(first.0 + index as u64))?;
        }
        take_payloads(&mut blocks, self.bytes);
        Ok(blocks)
    }

    /// Writes the bytes of a node to a new extent within `quota`. `allocated` is called with
    /// the extent before anything is written, because it stays allocated if the write fails.
    pub fn write(
        storage: &Storage,
        quota: &Quota<'_>,
        bytes: &[u8],
        allocated: impl FnOnce(NodeRef),
    ) -> Result<NodeRef> {
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= NODE_BYTES_MAX);
        let length = length.ok_or_else(|| Error::internal("a node exceeds its size limit"))?;
        let mut blocks = to_blocks(bytes);
        let _charge = storage.budget().charge(Use::Work, (bytes.len() + blocks.len()) as u64);
        let allocation = storage.allocate(NodeRef::blocks_for(length), quota)?;
        let (extent, generation) = (allocation.extent, allocation.generation);
        let reference = NodeRef { extent, generation, bytes: length };
        allocated(reference);
        storage.write_blocks(extent.start, generation, &mut blocks)?;
        Ok(reference)
    }
}

/// Splits the bytes of a node into blocks, unsealed.
#[must_use]
pub fn to_blocks(bytes: &[u8]) -> Vec<u8> {
    let chunks = bytes.chunks(BLOCK_PAYLOAD_BYTES);
    let mut blocks = vec![0; chunks.len() * BLOCK_BYTES];
    for (chunk, block) in chunks.zip(blocks.chunks_exact_mut(BLOCK_BYTES)) {
        block[8] = BlockKind::Engine as u8;
        block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + chunk.len()].copy_from_slice(chunk);
    }
    blocks
}

/// Assembles the bytes of a node, in the place of its verified blocks.
pub fn take_payloads(blocks: &mut Vec<u8>, bytes: u32) {
    for index in 0..blocks.len() / BLOCK_BYTES {
        let start = index * BLOCK_BYTES;
        let payload = start + BLOCK_HEADER_BYTES..start + BLOCK_BYTES;
        blocks.copy_within(payload, index * BLOCK_PAYLOAD_BYTES);
    }
    blocks.truncate(bytes as usize);
}
