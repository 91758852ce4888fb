//! The memory layout of one cached record in a slab.
//!
//! ```text
//!   0          4           6             8      9       12
//!   | keyspace | key bytes | value bytes | heat | 0 0 0 | key | value | -> multiple of 4
//! ```
//!
//! Everything except the heat is immutable once written. The *heat* is the number of walks of the
//! queue that the record survives; a use raises it by one, up to [`HEAT_MAX`].

#![expect(unsafe_code, reason = "an island: records are read from the raw memory of slabs")]

use crate::base::ids::KeyspaceId;
use crate::kernels::prefetch::prefetch_read;
use crate::runtime::sync::{AtomicU8, Ordering};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Maximum heat.
pub(super) const HEAT_MAX: u8 = 3;

/// Alignment of records.
pub(super) const ALIGNMENT: usize = 4;

#[repr(C)]
struct Head {
    keyspace: u32,
    key_bytes: u16,
    value_bytes: u16,
    heat: AtomicU8,
    zeros: [u8; 3],
}

const HEAD_BYTES: usize = size_of::<Head>();

const _: () = assert!(HEAD_BYTES == 12 && align_of::<Head>() == ALIGNMENT);

/// The bytes that a record takes in a slab.
pub(super) fn bytes_of(key: &[u8], value: &[u8]) -> usize {
    (HEAD_BYTES + key.len() + value.len()).next_multiple_of(ALIGNMENT)
}

/// A record that is not written any more, for the lifetime `'g`.
#[derive(Clone, Copy)]
pub(super) struct Record<'g> {
    address: NonNull<u8>,
    life: PhantomData<&'g Head>,
}

impl<'g> Record<'g> {
    /// Writes a record.
    ///
    /// # Safety
    /// The [`bytes_of`] the record at `address`, a multiple of [`ALIGNMENT`], are the caller's
    /// alone now, and nobody writes them as long as `'g`. Key and value have less than 64 KiB each.
    pub unsafe fn write(
        address: NonNull<u8>,
        keyspace: KeyspaceId,
        key: &[u8],
        value: &[u8],
        heat: u8,
    ) -> Self {
        let short = |bytes: &[u8]| u16::try_from(bytes.len()).expect("a record is short");
        let head = Head {
            keyspace: keyspace.0,
            key_bytes: short(key),
            value_bytes: short(value),
            heat: AtomicU8::new(heat),
            zeros: [0; 3],
        };
        // SAFETY: the caller gives the memory, aligned and long enough, to this call alone.
        unsafe {
            address.cast::<Head>().write(head);
            let bytes = address.add(HEAD_BYTES);
            bytes.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            bytes.add(key.len()).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        }
        Self { address, life: PhantomData }
    }

    /// The record at `address`.
    ///
    /// # Safety
    /// [`Record::write`] was called with it, that is visible to this thread, and the memory is not
    /// given to anybody else as long as `'g`.
    pub unsafe fn at(address: NonNull<u8>) -> Self {
        Self { address, life: PhantomData }
    }

    /// Its address.
    pub fn address(self) -> NonNull<u8> {
        self.address
    }

    fn head(self) -> &'g Head {
        // SAFETY: a record's head was written before the record was made, is changed only through
        // its atomic, and stays as long as `'g`.
        unsafe { self.address.cast::<Head>().as_ref() }
    }

    fn bytes(self, from: usize, count: usize) -> &'g [u8] {
        // SAFETY: key and value follow the head, with the lengths that it says, and stay as long as
        // `'g` without being written.
        unsafe {
            let start = self.address.add(HEAD_BYTES + from);
            NonNull::slice_from_raw_parts(start, count).as_ref()
        }
    }

    /// The keyspace of the record.
    pub fn keyspace(self) -> KeyspaceId {
        KeyspaceId(self.head().keyspace)
    }

    /// The key.
    pub fn key(self) -> &'g [u8] {
        self.bytes(0, usize::from(self.head().key_bytes))
    }

    /// The value.
    pub fn value(self) -> &'g [u8] {
        let head = self.head();
        self.bytes(usize::from(head.key_bytes), usize::from(head.value_bytes))
    }

    /// The bytes that it takes in a slab.
    pub fn slab_bytes(self) -> usize {
        bytes_of(self.key(), self.value())
    }

    /// Number of walks that it survives.
    pub fn heat(self) -> u8 {
        self.head().heat.load(Ordering::Relaxed)
    }

    /// Raises the heat after a use. Written only if that changes it, so that the cache lines of hot
    /// records stay shared between processors.
    #[inline]
    pub fn warm(self) {
        let heat = self.heat();
        if heat < HEAT_MAX {
            self.head().heat.store(heat + 1, Ordering::Relaxed);
        }
    }

    /// Prefetches its first three lines: all of a record of typical size.
    #[inline]
    pub fn prefetch(self) {
        let first = self.address.as_ptr();
        prefetch_read(first);
        prefetch_read(first.wrapping_add(64));
        prefetch_read(first.wrapping_add(128));
    }
}
