//! Copy-on-write file content in memory, in shared blocks: cheap to clone.
//!
//! Invariants:
//! 1. A block that is absent, or lies past the last one, is zeros.
//! 2. Bytes past `size` may hold what was written there; they count again if only the size grows.
//!    [`Sparse::set_size`] clears what lies past the new size.

use crate::base::limits::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::runtime::sync::Arc;

type Block = [u8; BLOCK_BYTES];

/// Sparse content with a size.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    blocks: Vec<Option<Arc<Block>>>,
    size: u64,
}

/// A piece of a range that lies within one block.
struct Piece {
    block: usize,
    within: usize,
    bytes: usize,
}

/// The pieces of `bytes` bytes at `offset`, in order.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes {
            return None;
        }
        let at = offset + done as u64;
        let within = usize::try_from(at % BLOCK_BYTES_U64).unwrap_or(0);
        let length = (BLOCK_BYTES - within).min(bytes - done);
        done += length;
        Some(Piece { block: index(at / BLOCK_BYTES_U64), within, bytes: length })
    })
}

/// A count of blocks as an index; larger ones were refused by the directory.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Sparse {
    /// Content that is exactly `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut sparse = Self::default();
        sparse.write(0, bytes);
        sparse.size = bytes.len() as u64;
        sparse
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies out the bytes at `offset`, regardless of the size.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut rest = buffer;
        for piece in pieces(offset, rest.len()) {
            let (part, after) = rest.split_at_mut(piece.bytes);
            match self.blocks.get(piece.block).and_then(Option::as_ref) {
                Some(block) => part.copy_from_slice(&block[piece.within..][..piece.bytes]),
                None => part.fill(0),
            }
            rest = after;
        }
    }

    /// Copies `bytes` to `offset`; the size stays.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len()) {
            let (part, after) = rest.split_at(piece.bytes);
            self.block(piece.block)[piece.within..][..piece.bytes].copy_from_slice(part);
            rest = after;
        }
    }

    /// Zeros a range; the size stays.
    pub fn clear(&mut self, offset: u64, bytes: u64) {
        let held = self.blocks.len() as u64 * BLOCK_BYTES_U64;
        let end = offset.saturating_add(bytes).min(held);
        let length = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
        for piece in pieces(offset, length) {
            if piece.bytes == BLOCK_BYTES {
                self.blocks[piece.block] = None;
            } else if self.blocks[piece.block].is_some() {
                self.block(piece.block)[piece.within..][..piece.bytes].fill(0);
            }
        }
    }

    /// Sets the size, and zeros the bytes past it.
    pub fn set_size(&mut self, size: u64) {
        self.clear(size, u64::MAX);
        self.blocks.truncate(index(size.div_ceil(BLOCK_BYTES_U64)));
        self.size = size;
    }

    /// Sets the size if it is smaller.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// The bytes up to the size.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; index(self.size)];
        self.read(0, &mut bytes);
        bytes
    }

    fn block(&mut self, number: usize) -> &mut Block {
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        let block = self.blocks[number].get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
        Arc::make_mut(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rng::Rng;

    #[test]
    fn it_is_a_byte_vector() {
        let mut rng = Rng::new(5);
        let (mut sparse, mut model) = (Sparse::default(), Vec::<u8>::new());
        for _ in 0..2_000 {
            let offset = usize::try_from(rng.below(20_000)).unwrap();
            let bytes = usize::try_from(rng.below(9_000)).unwrap();
            let before = sparse.clone();
            let model_before = model.clone();
            match rng.below(8) {
                0 => {
                    sparse.set_size(offset as u64);
                    model.resize(offset, 0);
                }
                1 | 2 => {
                    sparse.clear(offset as u64, bytes as u64);
                    let end = (offset + bytes).min(model.len());
                    model[offset.min(end)..end].fill(0);
                }
                _ => {
                    let mut content = vec![0; bytes];
                    rng.fill(&mut content);
                    sparse.write(offset as u64, &content);
                    sparse.grow((offset + bytes) as u64);
                    model.resize(model.len().max(offset + bytes), 0);
                    model[offset..offset + bytes].copy_from_slice(&content);
                }
            }
            assert_eq!(sparse.to_bytes(), model);
            assert_eq!(before.to_bytes(), model_before);
        }
    }
}
