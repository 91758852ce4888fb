//! The catalog: the list of keyspaces, and the location of the durable state of each.
//!
//! ```text
//! size
//!    1   version of this layout
//!    v   next keyspace id
//!    v   number of keyspaces
//!        for each, in ascending order of id:
//!    v     id
//!    v n   length of the name, the name (UTF-8)
//!    1     number of the engine
//!    v n   length of the options, the options (`options/keyspace.rs`)
//!    v n   length of the root, the root (the engine's own coding)
//!    v     last seqno that the root has absorbed
//! ```
//!
//! `v` is a varint. The bytes are cut into the payloads of consecutive blocks of kind Catalog; the
//! superblock has the extent, its generation and the length. A catalog is never changed in place:
//! each checkpoint writes a new one.
//!
//! Invariants:
//! 1. Ids are unique, ascending, and below the next id; names are unique and within their limit.
//! 2. Decoding trusts nothing: counts and lengths are checked before anything is allocated.

use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::limits::{BLOCK_BYTES, KEYSPACE_NAME_BYTES_MAX, KEYSPACES_MAX};
use crate::storage::block::{
    BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind, DATA_FILE, expect_kind,
};
use crate::storage::data_file::DataFile;
use crate::storage::data_file::superblock::CatalogLocation;
use crate::storage::io::AlignedBuffer;
use std::collections::BTreeSet;

/// The layout written by this build.
const VERSION: u8 = 1;

/// The most bytes of an engine's options.
pub const OPTIONS_BYTES_MAX: usize = 4 << 10;

/// The most bytes of an engine's root.
pub const ROOT_BYTES_MAX: usize = 64 << 10;

/// The most bytes of a catalog: bounds what an open allocates for it.
pub const CATALOG_BYTES_MAX: usize =
    64 + KEYSPACES_MAX * (64 + KEYSPACE_NAME_BYTES_MAX + OPTIONS_BYTES_MAX + ROOT_BYTES_MAX);

/// A keyspace in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogEntry {
    /// The id, never reused for another keyspace.
    pub id: KeyspaceId,
    /// Its name.
    pub name: String,
    /// The number of its engine.
    pub engine: u8,
    /// Its options, in the encoding of the upper layers.
    pub options: Vec<u8>,
    /// Its durable state, in the engine's encoding; empty if there is none yet.
    pub root: Vec<u8>,
    /// Everything up to this seqno is in the root.
    pub absorbed: SeqNo,
}

/// All keyspaces of a database.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Catalog {
    /// The id of the next new keyspace.
    pub next_keyspace: u32,
    /// In ascending order of id.
    pub keyspaces: Vec<CatalogEntry>,
}

impl Catalog {
    /// Encodes the catalog. Fails if a limit is exceeded or an invariant violated.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check().map_err(|reason| {
            Error::new(ErrorKind::Internal, format!("cannot encode the catalog: {reason}"))
        })?;
        let mut out = vec![VERSION];
        put_varint(&mut out, u64::from(self.next_keyspace));
        put_varint(&mut out, self.keyspaces.len() as u64);
        for entry in &self.keyspaces {
            put_varint(&mut out, u64::from(entry.id.0));
            put_bytes(&mut out, entry.name.as_bytes());
            out.push(entry.engine);
            put_bytes(&mut out, &entry.options);
            put_bytes(&mut out, &entry.root);
            put_varint(&mut out, entry.absorbed.0);
        }
        Ok(out)
    }

    /// Decodes a catalog written by [`Catalog::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes, "the catalog");
        if decoder.u8()? != VERSION {
            return Err(decoder.damaged("unknown version"));
        }
        let next_keyspace = decoder.varint_u32()?;
        let count = decoder.length(KEYSPACES_MAX)?;
        let mut keyspaces = Vec::new();
        for _ in 0..count {
            keyspaces.push(decode_entry(&mut decoder)?);
        }
        decoder.finish()?;
        let catalog = Self { next_keyspace, keyspaces };
        catalog.check().map_err(|reason| decoder.damaged(reason))?;
        Ok(catalog)
    }

    /// Checks the invariants and limits.
    fn check(&self) -> Result<(), &'static str> {
        if self.keyspaces.len() > KEYSPACES_MAX {
            return Err("too many keyspaces");
        }
        if !self.keyspaces.is_sorted_by(|a, b| a.id < b.id) {
            return Err("keyspace ids are not ascending");
        }
        if self.keyspaces.last().is_some_and(|last| last.id.0 >= self.next_keyspace) {
            return Err("keyspace id is not below the next id");
        }
        let names: BTreeSet<&str> = self.keyspaces.iter().map(|e| e.name.as_str()).collect();
        if names.len() != self.keyspaces.len() {
            return Err("two keyspaces have the same name");
        }
        let fits = |entry: &CatalogEntry| {
            (1..=KEYSPACE_NAME_BYTES_MAX).contains(&entry.name.len())
                && entry.options.len() <= OPTIONS_BYTES_MAX
                && entry.root.len() <= ROOT_BYTES_MAX
        };
        if !self.keyspaces.iter().all(fits) {
            return Err("name, options or root exceeds its limit");
        }
        Ok(())
    }
}

fn decode_entry(decoder: &mut Decoder<'_>) -> Result<CatalogEntry> {
    let id = KeyspaceId(decoder.varint_u32()?);
    let name = decoder.bytes(KEYSPACE_NAME_BYTES_MAX)?;
    let name = std::str::from_utf8(name).map_err(|_| decoder.damaged("a name is not UTF-8"))?;
    let engine = decoder.u8()?;
    let options = decoder.bytes(OPTIONS_BYTES_MAX)?.to_vec();
    let root = decoder.bytes(ROOT_BYTES_MAX)?.to_vec();
    let absorbed = SeqNo(decoder.varint()?);
    Ok(CatalogEntry { id, name: name.to_owned(), engine, options, root, absorbed })
}

/// `bytes` cut into the payloads of blocks that are ready to be sealed.
#[must_use]
pub fn to_blocks(bytes: &[u8]) -> AlignedBuffer {
    let count = bytes.len().div_ceil(BLOCK_PAYLOAD_BYTES);
    let mut blocks = AlignedBuffer::new(count * BLOCK_BYTES);
    for (block, piece) in blocks.chunks_mut(BLOCK_BYTES).zip(bytes.chunks(BLOCK_PAYLOAD_BYTES)) {
        block[8] = BlockKind::Catalog as u8;
        block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + piece.len()].copy_from_slice(piece);
    }
    blocks
}

/// Reads the catalog at the superblock's location.
pub fn read(file: &DataFile, location: &CatalogLocation) -> Result<Catalog> {
    let place = location.extent.offset();
    let length = location.bytes as usize;
    let count = location.extent.blocks as usize;
    if length > CATALOG_BYTES_MAX || count != length.div_ceil(BLOCK_PAYLOAD_BYTES) {
        return Err(Error::corrupt("catalog length does not match its extent").at(DATA_FILE, place));
    }
    let mut blocks = AlignedBuffer::new(count * BLOCK_BYTES);
    file.read_blocks(location.extent.start, location.generation, &mut blocks)?;
    let mut bytes = Vec::with_capacity(count * BLOCK_PAYLOAD_BYTES);
    for (number, block) in (location.extent.start.0..).zip(blocks.chunks_exact(BLOCK_BYTES)) {
        expect_kind(block, BlockKind::Catalog, crate::base::ids::BlockNo(number))?;
        bytes.extend_from_slice(&block[BLOCK_HEADER_BYTES..]);
    }
    bytes.truncate(length);
    Catalog::decode(&bytes).map_err(|error| error.at(DATA_FILE, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    fn entry(id: u32, name: &str) -> CatalogEntry {
        let (options, root) = (vec![1, 2, 3], vec![9; 200]);
        let absorbed = SeqNo(u64::from(id) << 33);
        CatalogEntry {
            id: KeyspaceId(id),
            name: name.to_owned(),
            engine: 1,
            options,
            root,
            absorbed,
        }
    }

    fn sample() -> Catalog {
        Catalog {
            next_keyspace: 8,
            keyspaces: vec![entry(0, "default"), entry(7, "\u{e9}t\u{e9}")],
        }
    }

    #[test]
    fn a_catalog_comes_back() {
        for catalog in [Catalog::default(), sample()] {
            assert_eq!(Catalog::decode(&catalog.encode().unwrap()).unwrap(), catalog);
        }
    }

    #[test]
    fn broken_catalogs_are_refused_both_ways() {
        let break_and_check = |change: fn(&mut Catalog)| {
            let mut catalog = sample();
            change(&mut catalog);
            assert_eq!(catalog.encode().unwrap_err().kind(), ErrorKind::Internal);
        };
        break_and_check(|c| c.keyspaces[1].id = KeyspaceId(0));
        break_and_check(|c| c.keyspaces[1].id = KeyspaceId(8));
        break_and_check(|c| c.keyspaces.swap(0, 1));
        break_and_check(|c| c.keyspaces[1].name = "default".to_owned());
        break_and_check(|c| c.keyspaces[1].name.clear());
        break_and_check(|c| c.keyspaces[1].name = "x".repeat(KEYSPACE_NAME_BYTES_MAX + 1));
        break_and_check(|c| c.keyspaces[0].options = vec![0; OPTIONS_BYTES_MAX + 1]);
        break_and_check(|c| c.keyspaces[0].root = vec![0; ROOT_BYTES_MAX + 1]);
        // The same id or name twice, as bytes: decode rejects what encode refuses to write.
        let good = sample().encode().unwrap();
        let mut bytes = good.clone();
        let second_id = good.iter().rposition(|byte| *byte == 7).unwrap();
        bytes[second_id] = 0;
        assert_eq!(Catalog::decode(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn hostile_bytes_never_panic_and_what_decodes_is_sound() {
        let good = sample().encode().unwrap();
        for end in 0..good.len() {
            assert!(Catalog::decode(&good[..end]).is_err());
        }
        let mut rng = Rng::new(7);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(3) {
                let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
                bytes[at] = rng.next_u64().to_le_bytes()[0];
            }
            if let Ok(catalog) = Catalog::decode(&bytes) {
                catalog.encode().unwrap();
            }
        }
        let mut noise = vec![0; 300];
        for _ in 0..5_000 {
            rng.fill(&mut noise);
            noise[0] = VERSION;
            if let Ok(catalog) = Catalog::decode(&noise) {
                catalog.encode().unwrap();
            }
        }
    }
}
