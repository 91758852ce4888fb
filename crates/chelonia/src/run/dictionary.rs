//! The dictionary of a run's compressed values: one block, the last of the run.
//!
//! ```text
//! offset size
//!      0   16  block header; kind Dictionary, bytes 12 to 15 zero, and
//!      9    1  codec: 0 LZ4, 1 zstd
//!     10    2  bytes of the dictionary
//!     16       the dictionary; the rest is zero
//! ```
//!
//! Each run has a copy, so that no other block is needed to read it. Merges pass compressed values
//! on as they are if the new run has the same dictionary.

use crate::base::codec::Decoder;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Codec, Dictionary, DictionaryId};
use crate::storage::block::{BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, BlockKind};

const KIND: usize = 8;
const CODEC: usize = 9;
const LENGTH: usize = 10;

/// The longest dictionary.
pub const DICTIONARY_BYTES_MAX: usize = BLOCK_PAYLOAD_BYTES;

/// The block of a dictionary.
pub fn encode(dictionary: &Dictionary) -> Result<Vec<u8>> {
    let bytes = dictionary.bytes();
    let too_long = || Error::internal("a dictionary is longer than a block");
    let length = u16::try_from(bytes.len()).map_err(|_| too_long())?;
    let mut block = vec![0; BLOCK_BYTES];
    block[KIND] = BlockKind::Dictionary as u8;
    block[CODEC] = dictionary.codec().number();
    block[LENGTH..LENGTH + 2].copy_from_slice(&length.to_le_bytes());
    let place = block.get_mut(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + bytes.len());
    place.ok_or_else(too_long)?.copy_from_slice(bytes);
    Ok(block)
}

/// The dictionary in a block, whose kind was checked. Fails unless it has this name.
pub fn decode(block: &[u8], name: DictionaryId) -> Result<Dictionary> {
    let mut decoder = Decoder::new(block, "a dictionary");
    decoder.take(CODEC)?;
    let codec = decoder.u8()?;
    let length = usize::from(decoder.u16()?);
    decoder.take(BLOCK_HEADER_BYTES - LENGTH - 2)?;
    let bytes = decoder.take(length)?.to_vec();
    let codec = Codec::from_number(codec).ok_or_else(|| {
        let text = "the values of a run are compressed in a newer way";
        Error::new(ErrorKind::Unsupported, text)
    })?;
    let dictionary = Dictionary::new(codec, bytes)?;
    if dictionary.id() != name {
        return Err(decoder.damaged("it is not the one that the run was written with"));
    }
    Ok(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_come_back_and_others_are_refused() {
        for length in [0, 1, 500, DICTIONARY_BYTES_MAX] {
            let dictionary = Dictionary::lz4(vec![7; length]);
            let block = encode(&dictionary).unwrap();
            assert_eq!(decode(&block, dictionary.id()).unwrap().bytes(), dictionary.bytes());
            assert!(decode(&block, DictionaryId(dictionary.id().0 ^ 1)).is_err());
            let mut long = block.clone();
            long[LENGTH..LENGTH + 2].copy_from_slice(&4081_u16.to_le_bytes());
            assert!(decode(&long, dictionary.id()).is_err());
        }
        assert!(encode(&Dictionary::lz4(vec![7; DICTIONARY_BYTES_MAX + 1])).is_err());
    }

    #[test]
    fn the_codec_is_stored() {
        let dictionary = Dictionary::new(Codec::Zstd, vec![7; 500]).unwrap();
        let mut block = encode(&dictionary).unwrap();
        let decoded = decode(&block, dictionary.id()).unwrap();
        assert_eq!((decoded.codec(), decoded.bytes()), (Codec::Zstd, dictionary.bytes()));
        block[CODEC] = Codec::Lz4.number();
        assert_eq!(decode(&block, dictionary.id()).err().unwrap().kind(), ErrorKind::Corrupt);
        block[CODEC] = 2;
        assert_eq!(decode(&block, dictionary.id()).err().unwrap().kind(), ErrorKind::Unsupported);
    }
}
