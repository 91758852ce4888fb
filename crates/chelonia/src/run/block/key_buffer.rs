//! Keys of a sorted block, assembled from prefix, head and tail.

use super::Entry;
use super::search::SortedBlock;
use crate::kernels::heads::HEAD_BYTES;

/// Growth step of key buffers, in bytes.
const KEY_STEP_BYTES: usize = 4096;

/// A key assembled from prefix, head and tail; its memory is reused.
#[derive(Debug, Default)]
pub struct KeyBuffer {
    bytes: Vec<u8>,
    len: usize,
}

impl KeyBuffer {
    /// The key.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Heap bytes held.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Sets the prefix to that of `block`; call it before the first [`KeyBuffer::set`] in a block.
    pub fn set_prefix(&mut self, block: &SortedBlock<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(block.prefix());
        self.len = self.bytes.len();
    }

    /// Sets the key to that of entry `index` of the block whose prefix was set; `entry` describes
    /// it.
    #[inline]
    pub fn set(&mut self, block: &SortedBlock<'_>, index: usize, entry: &Entry) {
        let prefix = block.layout().prefix_len();
        let tail = &block.bytes()[entry.tail..entry.payload];
        // The complete head is written even where the key ends within it.
        let room = prefix + HEAD_BYTES + tail.len();
        if self.bytes.len() < room {
            // Many sources of a merge may hold a long key each, so none doubles its capacity.
            if self.bytes.capacity() < room {
                self.bytes.reserve_exact(room.next_multiple_of(KEY_STEP_BYTES) - self.bytes.len());
            }
            self.bytes.resize(room, 0);
        }
        let (head, rest) = self.bytes[prefix..].split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&block.head(index).to_be_bytes());
        rest[..tail.len()].copy_from_slice(tail);
        self.len = prefix + entry.rest_len;
    }
}
