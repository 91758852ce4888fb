//! Owned byte strings handed to callers: [`Key`] and [`Value`].
//!
//! Both are views into one shared allocation, so a scan makes one allocation per record.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

macro_rules! owned_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            buffer: Arc<[u8]>,
            start: u32,
            end: u32,
        }

        impl $name {
            /// A copy of `bytes`.
            #[must_use]
            pub fn copy_from(bytes: &[u8]) -> Self {
                Self { buffer: Arc::from(bytes), start: 0, end: length(bytes.len()) }
            }

            /// The bytes.
            ///
            /// ```
            /// let value = chelonia::Value::copy_from(b"analyst");
            /// assert_eq!(value.as_slice(), b"analyst");
            /// assert!(value.starts_with(b"ana")); // It dereferences to its bytes.
            /// ```
            #[must_use]
            pub fn as_slice(&self) -> &[u8] {
                &self.buffer[self.start as usize..self.end as usize]
            }
        }

        impl Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl From<&[u8]> for $name {
            fn from(bytes: &[u8]) -> Self {
                Self::copy_from(bytes)
            }
        }

        impl From<Vec<u8>> for $name {
            fn from(bytes: Vec<u8>) -> Self {
                let end = length(bytes.len());
                Self { buffer: Arc::from(bytes), start: 0, end }
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(bytes: $name) -> Vec<u8> {
                bytes.as_slice().to_vec()
            }
        }

        #[cfg(feature = "bytes")]
        impl From<$name> for ::bytes::Bytes {
            /// Converts without copying the bytes; the result owns them. Needs the feature `bytes`.
            ///
            /// ```
            /// # let directory = tempfile::tempdir().unwrap();
            /// # let database = chelonia::Database::open(directory.path().join("d"))?;
            /// # let people = database.keyspace("people", Default::default())?;
            /// people.insert("ada", vec![7; 1 << 20])?;
            /// let value = people.get("ada")?.unwrap();
            /// let address = value.as_ptr();
            /// let bytes = bytes::Bytes::from(value);
            /// assert_eq!((bytes.len(), bytes.as_ptr()), (1 << 20, address));
            /// # Ok::<(), chelonia::Error>(())
            /// ```
            fn from(bytes: $name) -> Self {
                Self::from_owner(bytes)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "b\"{}\"", self.as_slice().escape_ascii())
            }
        }

        impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for $name {
            fn eq(&self, other: &T) -> bool {
                self.as_slice() == other.as_ref()
            }
        }

        impl PartialEq<$name> for [u8] {
            fn eq(&self, other: &$name) -> bool {
                self == other.as_slice()
            }
        }

        impl<const N: usize> PartialEq<$name> for [u8; N] {
            fn eq(&self, other: &$name) -> bool {
                self == other.as_slice()
            }
        }

        impl PartialEq<$name> for Vec<u8> {
            fn eq(&self, other: &$name) -> bool {
                self == other.as_slice()
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.as_slice().cmp(other.as_slice())
            }
        }

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.as_slice().hash(state);
            }
        }
    };
}

owned_bytes! {
    /// A key returned by the store: cheap to clone, owned, dereferences to its bytes.
    Key
}

owned_bytes! {
    /// A value returned by the store: cheap to clone, owned, dereferences to its bytes. Holding one
    /// pins its own bytes and those of the key that an iterator returned with it, and nothing else
    /// of the store.
    Value
}

impl Value {
    /// Creates a value of `bytes` bytes, written by `fill`, in one allocation.
    pub(crate) fn filled(
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> crate::base::error::Result<()>,
    ) -> crate::base::error::Result<Self> {
        let mut buffer = zeros(bytes);
        let end = length(bytes);
        fill(Arc::make_mut(&mut buffer))?;
        Ok(Self { buffer, start: 0, end })
    }
}

/// Creates a key and a value that share one allocation.
#[must_use]
pub fn pair(key: &[u8], value: &[u8]) -> (Key, Value) {
    let mut buffer = zeros(key.len() + value.len());
    let (front, back) = Arc::make_mut(&mut buffer).split_at_mut(key.len());
    front.copy_from_slice(key);
    back.copy_from_slice(value);
    let (middle, end) = (length(key.len()), length(buffer.len()));
    let key = Key { buffer: Arc::clone(&buffer), start: 0, end: middle };
    (key, Value { buffer, start: middle, end })
}

/// Zeros in one unshared allocation: an iterator of known length is collected in place.
fn zeros(bytes: usize) -> Arc<[u8]> {
    std::iter::repeat_n(0, bytes).collect()
}

/// Keys and values are bounded far below 4 GiB ([`crate::base::limits`]).
fn length(len: usize) -> u32 {
    u32::try_from(len).expect("keys and values are limited to 64 MiB")
}

#[cfg(all(test, feature = "bytes"))]
mod tests {
    use super::*;
    use ::bytes::Bytes;

    #[test]
    fn bytes_have_the_same_address_and_outlive_the_value() {
        let (key, value) = pair(b"ada", b"analyst");
        let (key_at, value_at) = (key.as_ptr(), value.as_ptr());
        let (kept, key, value) = (value.clone(), Bytes::from(key), Bytes::from(value));
        assert_eq!((key.as_ptr(), value.as_ptr()), (key_at, value_at));
        drop(kept);
        assert_eq!((&key[..], &value[3..]), (&b"ada"[..], &b"lyst"[..]));
        let large = Value::filled(4 << 20, |bytes| {
            bytes.fill(7);
            Ok(())
        });
        let large = large.unwrap();
        let address = large.as_ptr();
        let large = Bytes::from(large);
        assert_eq!((large.as_ptr(), large.len(), large[large.len() - 1]), (address, 4 << 20, 7));
        assert!(Bytes::from(Value::copy_from(b"")).is_empty());
    }
}
