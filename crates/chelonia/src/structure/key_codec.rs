//! Prefix compression of keys in the bytes of a node.
//!
//! ```text
//! key          v  bytes that it shares with the key against which it is compressed
//!              v  length of the rest, then the rest                          (v: a varint)
//! ```

use super::allowance::Allowance;
use super::shared_key::SharedKey;
use crate::base::codec::{Decoder, put_bytes, put_varint};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;

impl SharedKey {
    /// Appends the key, prefix-compressed against `before`.
    pub fn encode_after(&self, before: &Self, out: &mut Vec<u8>) {
        let shared = self.common_prefix(before);
        put_varint(out, shared as u64);
        put_bytes(out, &self.suffix(shared));
    }

    /// Decodes the output of [`SharedKey::encode_after`]; counts its memory before it is allocated.
    pub fn decode_after(
        before: &Self,
        decoder: &mut Decoder<'_>,
        allowance: &mut Allowance,
    ) -> Result<Self> {
        let shared = decoder.length(before.len())?;
        let rest = decoder.bytes(KEY_BYTES_MAX - shared)?;
        allowance.take_key(Self::bytes_after(before, shared, rest.len()))?;
        Ok(Self::after(before, shared, rest))
    }
}
