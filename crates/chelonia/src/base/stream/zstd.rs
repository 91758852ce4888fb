//! zstd, by its library in C: only with the feature `zstd`.
//!
//! ```text
//! compressed value    a frame of zstd (RFC 8878) without its first bytes, which follow from the
//!                     length of the value:
//!      4  the magic number
//!      1  the descriptor: one segment, no checksum, no name of a dictionary
//!    1-2  the length of the value
//! ```
//!
//! The library codes with a dictionary that was prepared, which takes 30 to 60 us, and 37 times the
//! memory of the dictionary. So only those of the last dictionaries are kept, for all databases of
//! the process together, however many keyspaces there are. `id` is the name of a dictionary.

#[cfg(feature = "zstd")]
pub use with_library::{check, decode, encode, memory_bytes, prepare, train};
#[cfg(not(feature = "zstd"))]
pub use without_library::{check, decode, encode, memory_bytes, prepare, train};

#[cfg(feature = "zstd")]
mod with_library {
    use crate::base::error::{Error, Result};
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
    use zstd_safe::{CCtx, CDict, DCtx, DDict};

    /// The level of compression. Level 6 takes four times as long for 5% less space.
    const LEVEL: i32 = 3;

    /// Prepared dictionaries that are kept: those used last.
    const PREPARED_MAX: usize = 16;

    /// Bytes of a prepared dictionary, about (measured for one of 4 KB): for encoding and decoding.
    const PREPARED_BYTES: usize = (117 + 31) << 10;

    /// Contexts that are kept for the next value: as many for encoding as for decoding.
    const CONTEXTS_MAX: usize = 4;

    /// Bytes of contexts, about: 84 and 96 KB (measured), each with a frame of up to 33 KB.
    const CONTEXTS_BYTES: usize = (CONTEXTS_MAX * (84 + 96 + 2 * 33)) << 10;

    /// A dictionary made by the library begins so.
    const TRAINED: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

    /// The places of the name of such a dictionary. Zero: frames do not name it.
    const NAME: std::ops::Range<usize> = 4..8;

    /// Kept between values. The lock is held for a look through it.
    static KEPT: Mutex<Kept> =
        Mutex::new(Kept { prepared: Vec::new(), encode: Vec::new(), decode: Vec::new() });

    struct Kept {
        /// The one used last is at the end.
        prepared: Vec<(u64, Arc<Prepared>)>,
        encode: Vec<Scratch<CCtx<'static>>>,
        decode: Vec<Scratch<DCtx<'static>>>,
    }

    /// A dictionary, prepared. For encoding when that is needed first; `None` without memory.
    struct Prepared {
        encode: OnceLock<Option<CDict<'static>>>,
        decode: DDict<'static>,
    }

    /// A context, and space for a frame.
    struct Scratch<C> {
        context: C,
        frame: Vec<u8>,
    }

    /// Always: the library is there.
    pub fn check() -> Result<()> {
        Ok(())
    }

    /// Heap memory with so many dictionaries, in bytes, about, without their own bytes.
    pub fn memory_bytes(dictionaries: usize) -> usize {
        match dictionaries {
            0 => 0,
            _ => CONTEXTS_BYTES + dictionaries.min(PREPARED_MAX) * PREPARED_BYTES,
        }
    }

    /// A dictionary of at most `bytes_max` bytes made of the values in `sample`, which have these
    /// lengths. `None` if they are too few.
    pub fn train(sample: &[u8], lengths: &[usize], bytes_max: usize) -> Option<Vec<u8>> {
        let mut made = vec![0; bytes_max];
        let length = zstd_safe::train_from_buffer(&mut made[..], sample, lengths).ok()?;
        made.truncate(length);
        made.get_mut(NAME)?.fill(0);
        Some(made)
    }

    /// Prepares a dictionary: one made by [`train`], or any bytes. Fails if the library does not
    /// take them.
    pub fn prepare(id: u64, dictionary: &[u8]) -> Result<()> {
        let name = dictionary.get(NAME).unwrap_or(&[]);
        if dictionary.starts_with(&TRAINED) && name != [0; 4] {
            return Err(Error::corrupt("a dictionary for zstd has a name of its own"));
        }
        let refused = || Error::corrupt("the library of zstd does not take a dictionary");
        prepared(id, dictionary).map(drop).ok_or_else(refused)
    }

    /// Appends the compressed form of `value` to `out`. False if there is none.
    pub fn encode(id: u64, dictionary: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(prepared) = prepared(id, dictionary) else { return false };
        let create = || CDict::try_create(dictionary, LEVEL);
        let Some(dictionary) = prepared.encode.get_or_init(create) else { return false };
        let known = kept().encode.pop();
        let Some(mut scratch) = known.or_else(|| Scratch::new(CCtx::try_create())) else {
            return false;
        };
        let Scratch { context, frame } = &mut scratch;
        frame.clear();
        frame.reserve(zstd_safe::compress_bound(value.len()));
        let written = context.compress_using_cdict(frame, value, dictionary);
        let (head, length) = head(value.len());
        let is_coded = written.is_ok() && frame.starts_with(&head[..length]);
        if is_coded {
            out.extend_from_slice(&frame[length..]);
        }
        scratch.keep_in(&mut kept().encode);
        is_coded
    }

    /// Writes the value that `payload` is the compressed form of to `value`, which has its length.
    /// False if it is not the form of such a value.
    pub fn decode(id: u64, dictionary: &[u8], payload: &[u8], value: &mut [u8]) -> bool {
        let Some(prepared) = prepared(id, dictionary) else { return false };
        let known = kept().decode.pop();
        let Some(mut scratch) = known.or_else(|| Scratch::new(DCtx::try_create())) else {
            return false;
        };
        let Scratch { context, frame } = &mut scratch;
        let (head, length) = head(value.len());
        frame.clear();
        frame.extend_from_slice(&head[..length]);
        frame.extend_from_slice(payload);
        let written = context.decompress_using_ddict(value, frame, &prepared.decode);
        scratch.keep_in(&mut kept().decode);
        written == Ok(value.len())
    }

    /// The dictionary, prepared, and kept for the next value.
    fn prepared(id: u64, dictionary: &[u8]) -> Option<Arc<Prepared>> {
        if let Some(known) = kept().known(id) {
            return Some(known);
        }
        // Without the lock: another thread may prepare it too.
        let decode = DDict::try_create(dictionary)?;
        let prepared = Arc::new(Prepared { encode: OnceLock::new(), decode });
        let mut kept = kept();
        if kept.known(id).is_none() {
            kept.prepared.push((id, Arc::clone(&prepared)));
        }
        if kept.prepared.len() > PREPARED_MAX {
            kept.prepared.remove(0);
        }
        Some(prepared)
    }

    fn kept() -> MutexGuard<'static, Kept> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl Kept {
        /// The prepared dictionary with this name, which was used last from now on.
        fn known(&mut self, id: u64) -> Option<Arc<Prepared>> {
            let place = self.prepared.iter().rposition(|(other, _)| *other == id)?;
            self.prepared[place..].rotate_left(1);
            self.prepared.last().map(|(_, known)| Arc::clone(known))
        }
    }

    impl<C> Scratch<C> {
        fn new(context: Option<C>) -> Option<Self> {
            context.map(|context| Self { context, frame: Vec::new() })
        }

        fn keep_in(self, list: &mut Vec<Self>) {
            if list.len() < CONTEXTS_MAX {
                list.push(self);
            }
        }
    }

    /// The first bytes of the frame of a value of `length` bytes, and how many they are.
    fn head(length: usize) -> ([u8; 7], usize) {
        const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
        const ONE_SEGMENT: u8 = 0x20;
        const TWO_BYTES: u8 = 0x40;
        let mut head = [0; 7];
        head[..4].copy_from_slice(&MAGIC);
        match u8::try_from(length) {
            Ok(length) => {
                head[4..6].copy_from_slice(&[ONE_SEGMENT, length]);
                (head, 6)
            }
            Err(_) => {
                head[4] = ONE_SEGMENT | TWO_BYTES;
                let [low, high, ..] = (length - 256).to_le_bytes();
                head[5..].copy_from_slice(&[low, high]);
                (head, 7)
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn any_number_of_dictionaries_codes_and_few_are_kept() {
            let value = vec![b'v'; 300];
            for round in 0..2 {
                for number in 0..4 * PREPARED_MAX as u64 {
                    let (id, dictionary) = (!number, number.to_le_bytes());
                    let (mut payload, mut decoded) = (Vec::new(), vec![0; value.len()]);
                    assert!(encode(id, &dictionary, &value, &mut payload));
                    assert!(decode(id, &dictionary, &payload, &mut decoded));
                    assert_eq!(decoded, value, "round {round}");
                    assert!(kept().prepared.len() <= PREPARED_MAX);
                }
            }
            assert_eq!(memory_bytes(0), 0);
            assert_eq!(memory_bytes(1000), memory_bytes(PREPARED_MAX));
        }
    }
}

#[cfg(not(feature = "zstd"))]
mod without_library {
    use crate::base::error::{Error, ErrorKind, Result};

    /// Fails: the library is not there.
    pub fn check() -> Result<()> {
        let text = "compression `small` needs zstd, and this program was built without the feature \
                    `zstd` of chelonia: build it with that feature";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Nothing is kept.
    pub fn memory_bytes(_: usize) -> usize {
        0
    }

    /// Makes nothing.
    pub fn train(_: &[u8], _: &[usize], _: usize) -> Option<Vec<u8>> {
        None
    }

    /// Fails: the library is not there. So there is no dictionary for the functions below.
    pub fn prepare(_: u64, _: &[u8]) -> Result<()> {
        check()
    }

    /// Never called.
    pub fn encode(_: u64, _: &[u8], _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }

    /// Never called.
    pub fn decode(_: u64, _: &[u8], _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}
