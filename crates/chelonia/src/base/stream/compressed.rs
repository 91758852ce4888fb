//! Values compressed one by one, with a dictionary of pieces that many of them have.
//!
//! ```text
//! compressed value
//!      v  bytes of the value                                                     (v: a varint)
//!         by the codec of the dictionary: a block of LZ4, which may refer to the dictionary as if
//!         that came just before the value, or a frame of zstd without its head (`zstd.rs`)
//! ```
//!
//! A reader decodes the one value that it wants. Values are small: alone, without a dictionary,
//! a codec finds too little in them that repeats.

use crate::base::bytes::Value;
use crate::base::codec::{get_varint, put_varint};
use crate::base::error::{Error, Result};
use crate::base::limits::LARGE_VALUE_BYTES_MIN;
use crate::base::stream::dictionary::Dictionary;

/// Values below this size stay as they are.
pub const COMPRESSED_VALUE_BYTES_MIN: usize = 32;

/// A compressed value is smaller than the value by at least this fraction of it (1/8): otherwise
/// the time to decode it is not worth the space.
const GAIN_DIVISOR: usize = 8;

impl Dictionary {
    /// Writes the compressed form of `value` to `out`, instead of what is there. False, with
    /// unspecified content of `out`, if the value is to stay as it is.
    pub fn compress(&self, value: &[u8], out: &mut Vec<u8>) -> bool {
        if value.len() < COMPRESSED_VALUE_BYTES_MIN || value.len() >= LARGE_VALUE_BYTES_MIN {
            return false;
        }
        out.clear();
        put_varint(out, value.len() as u64);
        self.encode(value, out) && out.len() <= value.len() - value.len() / GAIN_DIVISOR
    }
}

/// How the values of new runs are stored.
#[derive(Clone, Copy)]
pub enum NewValues<'a> {
    /// As they are.
    Plain,
    /// Compressed with this dictionary; `None`: with that of the first compressed value that comes,
    /// and as they are before.
    Compressed(Option<&'a Dictionary>),
}

/// A compressed value.
#[derive(Clone, Copy)]
pub struct Compressed<'a> {
    payload: &'a [u8],
    dictionary: &'a Dictionary,
}

impl<'a> Compressed<'a> {
    /// The compressed value `payload`. Fails if it says to have a length that none has.
    #[inline]
    pub fn new(payload: &'a [u8], dictionary: &'a Dictionary) -> Result<Self> {
        match get_varint(payload) {
            Some((bytes, _)) if bytes < LARGE_VALUE_BYTES_MIN as u64 => {
                Ok(Self { payload, dictionary })
            }
            _ => Err(Error::corrupt("a compressed value has an impossible length")),
        }
    }

    /// The bytes to store.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The dictionary that it needs.
    #[must_use]
    pub fn dictionary(&self) -> &'a Dictionary {
        self.dictionary
    }

    /// The number of bytes of the value.
    #[inline]
    #[must_use]
    pub fn value_len(&self) -> usize {
        get_varint(self.payload).map_or(0, |(bytes, _)| usize::try_from(bytes).unwrap_or(0))
    }

    /// The value.
    pub fn to_value(self) -> Result<Value> {
        let mut value = Vec::new();
        self.decode(&mut value).map(|()| Value::from(value))
    }

    /// Writes the value to `out`, instead of what is there.
    pub fn decode(&self, out: &mut Vec<u8>) -> Result<()> {
        let damaged = || Error::corrupt("a compressed value does not decode");
        let (bytes, head) = get_varint(self.payload).ok_or_else(damaged)?;
        let bytes = usize::try_from(bytes).map_err(|_| damaged())?;
        out.clear();
        out.resize(bytes, 0);
        let is_whole = self.dictionary.decode(&self.payload[head..], out);
        is_whole.then_some(()).ok_or_else(damaged)
    }
}

impl PartialEq for Compressed<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.dictionary.id() == other.dictionary.id() && self.payload == other.payload
    }
}

impl Eq for Compressed<'_> {}

impl std::fmt::Debug for Compressed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, id) = (self.payload.len(), self.dictionary.id());
        write!(f, "Compressed({} bytes in {bytes}, {id:?})", self.value_len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::stream::Codec;

    /// Numbers that look random.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0 >> 33
        }
    }

    fn value(numbers: &mut Numbers) -> Vec<u8> {
        let number = numbers.next() % 100_000;
        let tail = "x".repeat(usize::try_from(numbers.next() % 300).unwrap());
        format!(r#"{{"identifier":{number},"kind":"measurement","unit":"kelvin"}}{tail}"#).into()
    }

    #[test]
    fn values_come_back_and_small_ones_need_the_dictionary() {
        for codec in Codec::ALL {
            let mut numbers = Numbers(1);
            let dictionary = Dictionary::new(codec, value(&mut numbers)).unwrap();
            let (mut payload, mut decoded) = (Vec::new(), Vec::new());
            for _ in 0..2000 {
                let value = value(&mut numbers);
                assert!(dictionary.compress(&value, &mut payload), "all have the same names");
                assert!(payload.len() < value.len() * 7 / 8);
                let compressed = Compressed::new(&payload, &dictionary).unwrap();
                assert_eq!(compressed.value_len(), value.len());
                compressed.decode(&mut decoded).unwrap();
                assert_eq!(decoded, value);
            }
            let noise: Vec<u8> = (0..500).map(|_| numbers.next().to_le_bytes()[0]).collect();
            assert!(!dictionary.compress(&noise, &mut payload));
            assert!(!dictionary.compress(&[b'x'; 31], &mut payload));
            assert!(!dictionary.compress(&vec![b'x'; LARGE_VALUE_BYTES_MIN], &mut payload));
            assert!(dictionary.compress(&vec![b'x'; LARGE_VALUE_BYTES_MIN - 1], &mut payload));
        }
    }

    #[test]
    fn values_of_every_size_are_compressed() {
        for codec in Codec::ALL {
            let dictionary = Dictionary::new(codec, Vec::new()).unwrap();
            let (mut payload, mut decoded) = (Vec::new(), Vec::new());
            for length in (32..600).chain([4_000, 16_000, 30_000, 32_767]) {
                let value = vec![b'x'; length];
                assert!(dictionary.compress(&value, &mut payload), "{codec:?} {length}");
                Compressed::new(&payload, &dictionary).unwrap().decode(&mut decoded).unwrap();
                assert_eq!(decoded, value);
            }
        }
    }

    #[test]
    fn a_dictionary_belongs_to_its_codec() {
        let of = |codec, bytes: &[u8]| Dictionary::new(codec, bytes.to_vec());
        assert_ne!(of(Codec::Lz4, b"same").unwrap().id(), of(Codec::Zstd, b"same").unwrap().id());
        // The head of a dictionary that the library of zstd has made, and nothing behind it.
        assert!(of(Codec::Zstd, b"\x37\xa4\x30\xec\0\0\0\0").is_err());
        assert!(of(Codec::Zstd, b"\x37\xa4\x30\xec").is_err());
    }

    #[test]
    fn damaged_values_and_other_dictionaries_give_errors_or_other_values_of_the_same_size() {
        Codec::ALL.into_iter().for_each(damage);
    }

    fn damage(codec: Codec) {
        let mut numbers = Numbers(2);
        let dictionary = Dictionary::new(codec, value(&mut numbers)).unwrap();
        let other = Dictionary::new(codec, value(&mut numbers)).unwrap();
        assert_ne!(dictionary.id(), other.id());
        let (mut payload, mut decoded) = (Vec::new(), Vec::new());
        assert!(dictionary.compress(&value(&mut numbers), &mut payload));
        for place in 0..payload.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xf0, 0xff] {
                let mut damaged = payload.clone();
                damaged[place] = byte;
                for dictionary in [&dictionary, &other] {
                    let Ok(compressed) = Compressed::new(&damaged, dictionary) else { continue };
                    if compressed.decode(&mut decoded).is_ok() {
                        assert_eq!(decoded.len(), compressed.value_len());
                    }
                }
            }
        }
        for end in 0..payload.len() {
            if let Ok(cut) = Compressed::new(&payload[..end], &dictionary) {
                assert!(cut.decode(&mut decoded).is_err());
            }
        }
    }
}
