//! The seqno with which a record of one of several logs begins.
//!
//! ```text
//! offset size
//!      0    8  seqno of the first entry
//!      8    .  the record as in the one log of a database (`write/record.rs`): it begins with the
//!              number of its entries, a varint, and they take consecutive seqnos
//! ```

use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::base::ids::SeqNo;

/// Bytes of the seqno at the front of a record.
pub const FIRST_SEQNO_BYTES: usize = 8;

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

    /// The front of a record whose first entry has the seqno `first`.
    #[must_use]
    pub fn front(first: SeqNo) -> [u8; FIRST_SEQNO_BYTES] {
        first.0.to_le_bytes()
    }

    /// Splits the payload of a record into its numbers and the record as in a single log.
    pub fn split(payload: &[u8]) -> Result<(Self, &[u8])> {
        let mut decoder = Decoder::new(payload, "the seqnos of a log record");
        let numbers = Self { first: SeqNo(decoder.u64()?), count: decoder.varint_u32()? };
        let end = numbers.first.0.checked_add(u64::from(numbers.count));
        if numbers.first == SeqNo::ZERO || numbers.count == 0 || end.is_none() {
            return Err(decoder.damaged("seqnos are out of range"));
        }
        Ok((numbers, payload.get(FIRST_SEQNO_BYTES..).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::codec::put_varint;

    fn payload(first: u64, count: u64) -> Vec<u8> {
        let mut payload = Numbers::front(SeqNo(first)).to_vec();
        put_varint(&mut payload, count);
        payload
    }

    #[test]
    fn numbers_come_back_and_nonsense_is_an_error() {
        let numbers = Numbers { first: SeqNo(1 << 40), count: 3 };
        assert_eq!(Numbers::split(&payload(1 << 40, 3)).unwrap(), (numbers, &[3][..]));
        assert_eq!(numbers.last(), SeqNo((1 << 40) + 2));
        for (first, count) in [(0, 1), (1, 0), (u64::MAX, 1), (1, 1 << 32)] {
            assert!(Numbers::split(&payload(first, count)).is_err(), "{first} {count}");
        }
        assert!(Numbers::split(&payload(1, 1)[..8]).is_err());
        assert!(Numbers::split(&payload(1, 1)[..7]).is_err());
    }
}
