//! The blocked Bloom filter: all bits of a key in one line.
//!
//! The upper half of the hash chooses the line, the lower half the bits in it
//! ([`crate::kernels::bloom`]).

use super::{LINES_PER_BLOCK, line, line_mut, line_of, low_half};
use crate::base::checksum::KeyHash;
use crate::kernels::bloom as kernel;

#[inline]
pub fn may_contain(blocks: u32, probes: u8, block: &[u8], hash: KeyHash) -> bool {
    let index = line_of(hash, blocks) % LINES_PER_BLOCK;
    match line(block, index) {
        Some(line) => kernel::contains(line, low_half(hash.0), u32::from(probes)),
        None => true,
    }
}

pub fn build(blocks: u32, probes: u8, hashes: &[u64], out: &mut [u8]) {
    for hash in hashes {
        let hash = KeyHash(*hash);
        if let Some(line) = line_mut(out, line_of(hash, blocks)) {
            kernel::insert(line, low_half(hash.0), u32::from(probes));
        }
    }
}
