//! zstd, by its library in C: only with the feature `zstd`.
//!
//! ```text
//! compressed value    a frame of zstd (RFC 8878) without its first bytes, which follow from the
//!                     length of the value:
//!      4  the magic number
//!      1  the descriptor: one segment, no checksum, no name of a dictionary
//!    1-2  the length of the value
//! ```

#[cfg(feature = "zstd")]
pub use with_library::{CONTEXTS_BYTES, Coder, check, train};
#[cfg(not(feature = "zstd"))]
pub use without_library::{CONTEXTS_BYTES, Coder, check, train};

#[cfg(feature = "zstd")]
mod with_library {
    use crate::base::error::{Error, Result};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use zstd_safe::{CCtx, CDict, DCtx, DDict};

    /// The level of compression. Level 6 takes four times as long for 5% less space.
    const LEVEL: i32 = 3;

    /// Contexts for coding that are kept for the next value: as many of each kind.
    const KEPT_MAX: usize = 4;

    /// Heap memory of contexts, in bytes, about: 84 and 96 KB (measured), each with space for a
    /// frame of up to 33 KB.
    pub const CONTEXTS_BYTES: usize = (KEPT_MAX * (84 + 96 + 2 * 33)) << 10;

    /// Bytes of a dictionary that is prepared for coding, and for decoding, about (measured for
    /// 4 KB).
    const PREPARED_BYTES: usize = (117 + 31) << 10;

    /// A dictionary made by the library begins so.
    const TRAINED: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];

    /// The places of the name of such a dictionary. Zero: frames do not name it.
    const NAME: std::ops::Range<usize> = 4..8;

    /// Contexts that nobody uses now; they do not depend on dictionaries. The lock is held for a
    /// push or a pop.
    static KEPT: Mutex<Kept> = Mutex::new(Kept { encode: Vec::new(), decode: Vec::new() });

    struct Kept {
        encode: Vec<Scratch<CCtx<'static>>>,
        decode: Vec<Scratch<DCtx<'static>>>,
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

    /// A dictionary of at most `bytes_max` bytes made of the values in `sample`, which have these
    /// lengths. `None` if they are too few.
    pub fn train(sample: &[u8], lengths: &[usize], bytes_max: usize) -> Option<Vec<u8>> {
        let mut made = vec![0; bytes_max];
        let length = zstd_safe::train_from_buffer(&mut made[..], sample, lengths).ok()?;
        made.truncate(length);
        made.get_mut(NAME)?.fill(0);
        Some(made)
    }

    /// A dictionary, prepared.
    pub struct Coder {
        encode: OnceLock<Option<CDict<'static>>>,
        decode: DDict<'static>,
    }

    impl Coder {
        /// Prepares the dictionary with this content: one made by [`train`], or any bytes.
        pub fn new(dictionary: &[u8]) -> Result<Self> {
            let name = dictionary.get(NAME).unwrap_or(&[]);
            if dictionary.starts_with(&TRAINED) && name != [0; 4] {
                return Err(Error::corrupt("a dictionary for zstd has a name of its own"));
            }
            let decode = DDict::try_create(dictionary)
                .ok_or_else(|| Error::corrupt("the library of zstd does not take a dictionary"))?;
            Ok(Self { encode: OnceLock::new(), decode })
        }

        /// Heap memory that it takes, in bytes, about.
        pub fn memory_bytes(&self) -> usize {
            PREPARED_BYTES
        }

        /// See [`super::super::Dictionary::encode`].
        pub fn encode(&self, dictionary: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
            let prepare = || CDict::try_create(dictionary, LEVEL);
            let Some(prepared) = self.encode.get_or_init(prepare) else { return false };
            let Some(mut scratch) = take(|kept| &mut kept.encode, CCtx::try_create) else {
                return false;
            };
            let Scratch { context, frame } = &mut scratch;
            frame.clear();
            frame.reserve(zstd_safe::compress_bound(value.len()));
            let written = context.compress_using_cdict(frame, value, prepared);
            let (head, length) = head(value.len());
            let is_coded = written.is_ok() && frame.starts_with(&head[..length]);
            if is_coded {
                out.extend_from_slice(&frame[length..]);
            }
            keep(|kept| &mut kept.encode, scratch);
            is_coded
        }

        /// See [`super::super::Dictionary::decode`].
        pub fn decode(&self, payload: &[u8], value: &mut [u8]) -> bool {
            let Some(mut scratch) = take(|kept| &mut kept.decode, DCtx::try_create) else {
                return false;
            };
            let Scratch { context, frame } = &mut scratch;
            let (head, length) = head(value.len());
            frame.clear();
            frame.extend_from_slice(&head[..length]);
            frame.extend_from_slice(payload);
            let written = context.decompress_using_ddict(value, frame, &self.decode);
            keep(|kept| &mut kept.decode, scratch);
            written == Ok(value.len())
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

    /// A context that was kept, or a new one; `None` without memory for it.
    fn take<C>(
        list: impl FnOnce(&mut Kept) -> &mut Vec<Scratch<C>>,
        create: impl FnOnce() -> Option<C>,
    ) -> Option<Scratch<C>> {
        let kept = list(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner)).pop();
        kept.or_else(|| create().map(|context| Scratch { context, frame: Vec::new() }))
    }

    /// Keeps a context, unless there are enough.
    fn keep<C>(list: impl FnOnce(&mut Kept) -> &mut Vec<Scratch<C>>, scratch: Scratch<C>) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let list = list(&mut kept);
        if list.len() < KEPT_MAX {
            list.push(scratch);
        }
    }
}

#[cfg(not(feature = "zstd"))]
mod without_library {
    use crate::base::error::{Error, ErrorKind, Result};

    /// There are none.
    pub const CONTEXTS_BYTES: usize = 0;

    /// Nobody has one.
    pub enum Coder {}

    fn missing() -> Error {
        let text = "compression `small` needs zstd, and this program was built without the feature \
                    `zstd` of chelonia: build it with that feature";
        Error::new(ErrorKind::Unsupported, text)
    }

    /// Fails: the library is not there.
    pub fn check() -> Result<()> {
        Err(missing())
    }

    /// Makes nothing.
    pub fn train(_: &[u8], _: &[usize], _: usize) -> Option<Vec<u8>> {
        None
    }

    impl Coder {
        /// Fails: the library is not there.
        pub fn new(_: &[u8]) -> Result<Self> {
            Err(missing())
        }

        /// Never called.
        pub fn memory_bytes(&self) -> usize {
            match *self {}
        }

        /// Never called.
        pub fn encode(&self, _: &[u8], _: &[u8], _: &mut Vec<u8>) -> bool {
            match *self {}
        }

        /// Never called.
        pub fn decode(&self, _: &[u8], _: &mut [u8]) -> bool {
            match *self {}
        }
    }
}
