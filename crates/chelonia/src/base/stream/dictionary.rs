//! Dictionaries: pieces that many values of a keyspace have, with which each is compressed alone.

use crate::base::checksum::checksum;
use crate::base::error::Result;
use crate::base::stream::zstd;
use lz4_flex::block;
use std::sync::Arc;

/// The name of a dictionary, made of its content and codec: two with the same name are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DictionaryId(pub u64);

/// The seed of names; the number of the codec is added.
const SEED: u64 = 0x6469_6374;

/// How values are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// Blocks of LZ4.
    Lz4,
    /// Frames of zstd, without their headers.
    Zstd,
}

impl Codec {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// The number on disk.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Lz4 => 0,
            Self::Zstd => 1,
        }
    }

    /// The codec with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.number() == number)
    }

    /// Heap memory for coding with so many dictionaries, in bytes, about.
    #[must_use]
    pub fn memory_bytes(self, dictionaries: usize) -> usize {
        match self {
            Self::Lz4 => 0,
            Self::Zstd => zstd::memory_bytes(dictionaries),
        }
    }

    /// Fails if this build of the library lacks it.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Lz4 => Ok(()),
            Self::Zstd => zstd::check(),
        }
    }
}

/// A dictionary. Clones share its content.
#[derive(Clone)]
pub struct Dictionary {
    id: DictionaryId,
    content: Arc<Content>,
}

struct Content {
    codec: Codec,
    bytes: Vec<u8>,
}

impl Dictionary {
    /// Creates the dictionary with this content. Fails if this build of the library lacks the
    /// codec, or if the codec does not take the content.
    pub fn new(codec: Codec, bytes: Vec<u8>) -> Result<Self> {
        let dictionary = Self::unchecked(codec, bytes);
        match codec {
            Codec::Lz4 => {}
            Codec::Zstd => zstd::prepare(dictionary.id.0, dictionary.bytes())?,
        }
        Ok(dictionary)
    }

    /// Creates a dictionary for LZ4.
    #[must_use]
    pub fn lz4(bytes: Vec<u8>) -> Self {
        Self::unchecked(Codec::Lz4, bytes)
    }

    fn unchecked(codec: Codec, bytes: Vec<u8>) -> Self {
        let id = DictionaryId(checksum(&bytes, SEED + u64::from(codec.number())));
        Self { id, content: Arc::new(Content { codec, bytes }) }
    }

    /// True if nobody else has its content.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.content) == 1
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> DictionaryId {
        self.id
    }

    /// Its content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.content.bytes
    }

    /// How it compresses.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.content.codec
    }

    /// Appends the compressed form of `value` to `out`. False, with unspecified content behind what
    /// `out` had, if there is none.
    pub(super) fn encode(&self, value: &[u8], out: &mut Vec<u8>) -> bool {
        match self.content.codec {
            Codec::Lz4 => {
                let before = out.len();
                out.resize(before + block::get_maximum_output_size(value.len()), 0);
                let space = &mut out[before..];
                let written = block::compress_into_with_dict(value, space, &self.content.bytes);
                written.is_ok_and(|bytes| {
                    out.truncate(before + bytes);
                    true
                })
            }
            Codec::Zstd => zstd::encode(self.id.0, &self.content.bytes, value, out),
        }
    }

    /// Writes the value of which `payload` is the compressed form to `value`, which has its length.
    /// False, with unspecified content of `value`, if it is not the form of a value of this length.
    pub(super) fn decode(&self, payload: &[u8], value: &mut [u8]) -> bool {
        match self.content.codec {
            Codec::Lz4 => {
                let written = block::decompress_into_with_dict(payload, value, &self.content.bytes);
                written.is_ok_and(|bytes| bytes == value.len())
            }
            Codec::Zstd => zstd::decode(self.id.0, &self.content.bytes, payload, value),
        }
    }
}
