//! The seqnos with which a record of one of several logs begins.
//!
//! ```text
//! offset size
//!      0    8  seqno of the first entry
//!      8    4  number of entries, which take consecutive seqnos; at least 1
//!     12    .  the record as in the one log of a database (`write/record.rs`)
//! ```

use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::base::ids::SeqNo;

/// Bytes of the seqnos at the front of a record.
pub const NUMBERS_BYTES: usize = 12;

/// Seqnos of the entries of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// That of the first.
    pub first: SeqNo,
    /// How many there are.
    pub count: u32,
}

impl Numbers {
    /// The last seqno.
    #[must_use]
    pub fn last(self) -> SeqNo {
        SeqNo(self.first.0 + u64::from(self.count) - 1)
    }

    /// Encodes the numbers.
    #[must_use]
    pub fn encode(self) -> [u8; NUMBERS_BYTES] {
        let mut bytes = [0; NUMBERS_BYTES];
        bytes[..8].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Splits the payload of a record into its numbers and the rest.
    pub fn split(payload: &[u8]) -> Result<(Self, &[u8])> {
        let mut decoder = Decoder::new(payload, "the seqnos of a log record");
        let numbers = Self { first: SeqNo(decoder.u64()?), count: decoder.u32()? };
        let end = numbers.first.0.checked_add(u64::from(numbers.count));
        if numbers.first == SeqNo::ZERO || numbers.count == 0 || end.is_none() {
            return Err(decoder.damaged("seqnos are out of range"));
        }
        Ok((numbers, payload.get(NUMBERS_BYTES..).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_nonsense_is_an_error() {
        let numbers = Numbers { first: SeqNo(1 << 40), count: 3 };
        let mut payload = numbers.encode().to_vec();
        payload.push(9);
        assert_eq!(Numbers::split(&payload).unwrap(), (numbers, &[9][..]));
        assert_eq!(numbers.last(), SeqNo((1 << 40) + 2));
        for (first, count) in [(0, 1), (1, 0), (u64::MAX, 1)] {
            let bytes = Numbers { first: SeqNo(first), count }.encode();
            assert!(Numbers::split(&bytes).is_err(), "{first} {count}");
        }
        assert!(Numbers::split(&payload[..11]).is_err());
    }
}
