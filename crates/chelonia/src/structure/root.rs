//! The root blob of a tree whose nodes are listed in one directory.
//!
//! ```text
//! offset size
//!      0    1  format
//!      1    1  0 = empty tree, nothing follows; 1 = what follows
//!           v  `NodeRef` of the directory
//!           v  blocks of everything that the tree refers to     (v: varints)
//! ```

use super::NodeRef;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES_U64;
use crate::storage::Storage;
use crate::storage::block::DATA_FILE;

/// Format byte at the start of the blob.
const FORMAT: u8 = 1;

/// Location of the directory, and number of blocks of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryRoot {
    /// `None` for an empty tree.
    pub directory: Option<NodeRef>,
    /// Number of blocks of everything the tree refers to.
    pub disk_blocks: u64,
}

impl DirectoryRoot {
    /// Encodes the blob.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT, u8::from(self.directory.is_some())];
        if let Some(directory) = self.directory {
            directory.encode(&mut out);
            put_varint(&mut out, self.disk_blocks);
        }
        out
    }

    /// Decodes the blob of `what`, and the directory that it refers to. A tree without a blob is
    /// empty.
    pub fn open<D: Default>(
        blob: Option<&[u8]>,
        what: &'static str,
        storage: &Storage,
        decode: impl FnOnce(&[u8]) -> Result<D>,
    ) -> Result<(Self, D)> {
        let root = blob.map_or_else(|| Ok(Self::default()), |blob| Self::decode(blob, what))?;
        let Some(place) = root.directory else { return Ok((root, D::default())) };
        let directory = decode(&place.read(storage)?);
        let directory = directory.map_err(|error| error.at(DATA_FILE, place.extent.offset()))?;
        Ok((root, directory))
    }

    /// Decodes the blob of `what`, for errors.
    pub fn decode(blob: &[u8], what: &'static str) -> Result<Self> {
        let mut decoder = Decoder::new(blob, what);
        if decoder.u8()? != FORMAT {
            return Err(decoder.damaged("unknown format"));
        }
        let root = match decoder.u8()? {
            0 => Self::default(),
            1 => {
                let directory = Some(NodeRef::decode(&mut decoder)?);
                Self { directory, disk_blocks: decoder.varint()? }
            }
            _ => return Err(decoder.damaged("the empty flag is neither 0 nor 1")),
        };
        if root.disk_blocks > u64::MAX / BLOCK_BYTES_U64 / 2 {
            return Err(decoder.damaged("the block count exceeds the maximum of a file"));
        }
        decoder.finish()?;
        Ok(root)
    }
}
