//! The leaf of the index: a key, stored once, and the chain of its versions, newest first.
//!
//! ```text
//! record                                        version (8-aligned)
//! offset size                                   offset size
//!      0    8  newest: the newest version            0    8  next: the next older version, or null
//!      8    4  length of the key                     8    8  seqno
//!     12    1  lock: guards changes of the chain    16    4  gone (below)
//!     13    3  unused                               20    4  kind (bits 30, 31), length (0-29)
//!     16    -  the key                              24    -  the value, or a `LargeRef`
//! ```
//!
//! The first version follows the key of its record (8-aligned), so that a new key is one allocation
//! and its reader finds all of it in neighbouring cache lines. Later versions are separate
//! allocations. These are structures in memory, not on disk: native byte order, never copied
//! elsewhere.
//!
//! Chains: a version is linked in the order of seqnos (several inserts of one key may arrive in any
//! order). Then versions that are not needed are unlinked: `older` below `newer` when `newer` is
//! visible to everybody and no snapshot lies in `[older.seqno, newer.seqno)`. An unlinked version
//! is not freed before the arena is, so a reader that stands on it can continue.
//!
//! `gone` of a version records that older ones were unlinked after it: `seqno - gone` is the least
//! seqno among them (0: none were). A reader at `at` with `seqno - gone <= at < seqno` may have
//! needed one of them: it must retry at a newer seqno. Readers below that range continue to
//! versions that snapshots hold; readers at a snapshot are never in that range.
//!
//! Invariants:
//! 1. The key, and every field of a version except `next` and `gone`, never change once the version
//!    is reachable.
//! 2. Seqnos descend along a chain; of equal ones the later insert comes first.
//! 3. `next` and `gone` change under the record's lock. `gone` is stored before the `next` that it
//!    explains, and read after it.
//!
//! Thread-safety: readers take no lock; writers of one key are serialised by its lock.

#![expect(unsafe_code, reason = "an island: records laid out in arena memory")]

use super::super::{Lookup, Pins};
use crate::base::ids::SeqNo;
use crate::base::stream::{LargeRef, Update};
use crate::kernels::prefetch::prefetch_read;
use crate::memtable::arena::{ALIGNMENT, Arena};
use crate::runtime::sync::{AtomicPtr, AtomicU32, Mutex, Ordering};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

/// The head of a record; the key follows.
#[repr(C)]
pub(super) struct Record {
    newest: AtomicPtr<Version>,
    key_bytes: u32,
    lock: Mutex<()>,
}

/// The head of a version; the value follows.
#[repr(C)]
pub(super) struct Version {
    next: AtomicPtr<Version>,
    seqno: SeqNo,
    gone: AtomicU32,
    shape: u32,
}

const KEY_AT: usize = 16;
const VALUE_AT: usize = 24;
const _: () = assert!(size_of::<Record>() == KEY_AT && align_of::<Record>() == ALIGNMENT);
const _: () = assert!(size_of::<Version>() == VALUE_AT && align_of::<Version>() == ALIGNMENT);
const _: () = assert!(align_of::<LargeRef>() <= ALIGNMENT);

const KIND_SHIFT: u32 = 30;
const LENGTH_MASK: u32 = (1 << KIND_SHIFT) - 1;
const PUT: u32 = 0;
const PUT_LARGE: u32 = 1;
const DELETE: u32 = 2;

/// Maximum number of versions that an insert examines for unlinking, so that a key held by many
/// snapshots does not make every insert walk its complete chain.
const PRUNE_STEPS_MAX: usize = 8;

/// Cache line size assumed for prefetching, in bytes.
const LINE_BYTES: usize = 64;

/// Maximum size of one prefetch: the hardware detects longer sequential reads itself.
const REST_BYTES_MAX: usize = 8 * LINE_BYTES;

/// A record of a tree, borrowed from it.
#[derive(Clone, Copy)]
pub struct Entry<'t> {
    record: NonNull<Record>,
    tree: PhantomData<&'t Arena>,
}

/// A version of a record, borrowed from its tree.
#[derive(Clone, Copy)]
pub struct VersionRef<'t> {
    version: NonNull<Version>,
    tree: PhantomData<&'t Arena>,
}

impl<'t> Entry<'t> {
    /// Writes a record with one version into the arena, not yet visible to other threads.
    pub(super) fn create(arena: &'t Arena, key: &[u8], update: Update<'_>, seqno: SeqNo) -> Self {
        let version_at = (KEY_AT + key.len()).next_multiple_of(ALIGNMENT);
        let place = arena.entry(version_at + VALUE_AT + value_bytes(update));
        let key_bytes = u32::try_from(key.len()).expect("the arena refuses longer keys");
        let record = place.cast::<Record>();
        // SAFETY: the arena gave `version_at + VALUE_AT + value_bytes(update)` bytes, 8-aligned,
        // to us alone: head, key and version lie within, the version 8-aligned too.
        unsafe {
            let version = place.add(version_at);
            write_version(version, update, seqno);
            place.add(KEY_AT).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            record.write(Record {
                newest: AtomicPtr::new(version.cast::<Version>().as_ptr()),
                key_bytes,
                lock: Mutex::new(()),
            });
        }
        Self { record, tree: PhantomData }
    }

    /// The entry at `record`.
    ///
    /// # Safety
    /// `record` was made by [`Entry::create`] in an arena that outlives `'t`, and reached the
    /// caller by a release store and an acquire load, or on its own thread.
    #[inline]
    pub(super) unsafe fn from_raw(record: NonNull<Record>) -> Self {
        Self { record, tree: PhantomData }
    }

    /// Its address, for [`Entry::from_raw`].
    #[inline]
    pub(super) fn raw(self) -> NonNull<Record> {
        self.record
    }

    #[inline]
    fn head(self) -> &'t Record {
        // SAFETY: by `from_raw` the record was written and lives for `'t`; it changes in its
        // atomics and its lock only.
        unsafe { self.record.as_ref() }
    }

    /// The key.
    #[inline]
    pub fn key(self) -> &'t [u8] {
        let length = self.head().key_bytes as usize;
        // SAFETY: `length` bytes of key follow the head (`create`), and never change.
        unsafe { NonNull::slice_from_raw_parts(self.record.cast().add(KEY_AT), length).as_ref() }
    }

    /// The newest version.
    #[inline]
    fn newest(self) -> *mut Version {
        self.head().newest.load(Ordering::Acquire)
    }

    /// The newest version at or before `at`, for a reader whose `at` may be unprotected.
    #[inline]
    pub fn lookup(self, at: SeqNo) -> Found<'t> {
        let mut place = self.newest();
        while let Some(version) = NonNull::new(place) {
            let version = VersionRef { version, tree: PhantomData };
            let head = version.head();
            if head.seqno <= at {
                return Found::Version(version);
            }
            // The order of these loads matters: invariant 3.
            place = head.next.load(Ordering::Acquire);
            if head.has_lost(at) {
                return Found::Pruned;
            }
        }
        Found::Absent
    }

    /// The linked versions, newest first.
    pub fn versions(self) -> impl Iterator<Item = VersionRef<'t>> {
        let mut place = self.newest();
        std::iter::from_fn(move || {
            let version = VersionRef { version: NonNull::new(place)?, tree: PhantomData };
            place = version.head().next.load(Ordering::Acquire);
            Some(version)
        })
    }

    /// Prefetches the lines that a reader of this entry touches first.
    #[inline]
    pub fn prefetch(self) {
        let place = self.record.as_ptr().cast::<u8>().cast_const();
        prefetch_read(place);
        prefetch_read(place.wrapping_add(LINE_BYTES));
    }

    /// Prefetches the part of the newest version that [`Entry::prefetch`] left out, once its lines
    /// have arrived: the rest of the value, or the version if it is a separate allocation.
    #[inline]
    pub fn prefetch_rest(self) {
        let Some(version) = NonNull::new(self.newest()) else { return };
        let version = VersionRef { version, tree: PhantomData };
        let start = version.version.addr().get();
        let come = (self.record.addr().get() & !(LINE_BYTES - 1)) + 2 * LINE_BYTES;
        let has_come = self.record.addr().get() < start && start + VALUE_AT <= come;
        let (first, end) = if has_come {
            (come, start + VALUE_AT + value_bytes(version.update()))
        } else {
            (start, start + 3 * LINE_BYTES)
        };
        let end = end.min(first + REST_BYTES_MAX);
        let place = version.version.as_ptr().cast::<u8>().cast_const();
        for line in (first..end).step_by(LINE_BYTES) {
            prefetch_read(place.with_addr(line));
        }
    }

    /// Writes a version into the arena and links it.
    pub(super) fn overwrite(
        self,
        arena: &'t Arena,
        update: Update<'_>,
        seqno: SeqNo,
        pins: &dyn Pins,
        unlinked: &mut dyn FnMut(LargeRef),
    ) {
        let version = arena.entry(VALUE_AT + value_bytes(update));
        // SAFETY: the arena gave as many bytes as are written, 8-aligned, to us alone.
        unsafe { write_version(version, update, seqno) };
        let version = VersionRef { version: version.cast(), tree: PhantomData };
        self.link(version, pins, unlinked);
    }

    /// Links the version of a record that [`Entry::create`] wrote for the same key but that could
    /// not be inserted into the index, because another thread's record came first. Only its version
    /// is used.
    pub(super) fn adopt(
        self,
        other: Entry<'t>,
        pins: &dyn Pins,
        unlinked: &mut dyn FnMut(LargeRef),
    ) {
        debug_assert!(self.key() == other.key(), "versions belong to one key");
        if let Some(version) = NonNull::new(other.newest()) {
            self.link(VersionRef { version, tree: PhantomData }, pins, unlinked);
        }
    }

    /// Links a version that is not yet visible to other threads, and unlinks versions that are no
    /// longer needed.
    fn link(self, new: VersionRef<'t>, pins: &dyn Pins, unlinked: &mut dyn FnMut(LargeRef)) {
        let head = self.head();
        let _held = head.lock.lock();
        let mut link = &head.newest;
        let mut after = link.load(Ordering::Acquire);
        while let Some(version) = NonNull::new(after) {
            let version = VersionRef { version, tree: PhantomData }.head();
            if version.seqno <= new.seqno() {
                break;
            }
            link = &version.next;
            after = link.load(Ordering::Acquire);
        }
        new.head().next.store(after, Ordering::Relaxed);
        link.store(new.version.as_ptr(), Ordering::Release);
        self.prune(pins, unlinked);
    }

    /// Unlinks versions that are not needed. The caller holds the record's lock.
    fn prune(self, pins: &dyn Pins, unlinked: &mut dyn FnMut(LargeRef)) {
        let visible = pins.visible();
        let mut versions = self.versions().take(PRUNE_STEPS_MAX);
        let Some(mut newer) = versions.find(|version| version.seqno() <= visible) else { return };
        for older in versions {
            let (head, below) = (newer.head(), older.head());
            let first_gone = below.seqno.0 - u64::from(below.gone.load(Ordering::Relaxed));
            let needed = pins.any_in(below.seqno, head.seqno);
            match u32::try_from(head.seqno.0 - first_gone) {
                Ok(gone) if !needed => {
                    head.gone.store(gone, Ordering::Release);
                    head.next.store(below.next.load(Ordering::Acquire), Ordering::Release);
                    if let Update::PutLarge(large) = older.update() {
                        unlinked(large);
                    }
                }
                // Needed, or too old for `gone` to encode.
                _ => newer = older,
            }
        }
    }
}

/// Result of [`Entry::lookup`].
pub enum Found<'t> {
    /// No version at or before the seqno.
    Absent,
    /// This version.
    Version(VersionRef<'t>),
    /// The version may have been unlinked.
    Pruned,
}

impl<'t> From<Found<'t>> for Lookup<'t> {
    #[inline]
    fn from(found: Found<'t>) -> Self {
        match found {
            Found::Absent => Lookup::Absent,
            Found::Version(version) => Lookup::Found(version.update(), version.seqno()),
            Found::Pruned => Lookup::Pruned,
        }
    }
}

impl Version {
    /// True if a version that a reader at `at < self.seqno` needs may have been unlinked.
    #[inline]
    fn has_lost(&self, at: SeqNo) -> bool {
        let gone = self.gone.load(Ordering::Acquire);
        gone != 0 && at.0 >= self.seqno.0 - u64::from(gone)
    }
}

impl<'t> VersionRef<'t> {
    /// The version at `version`.
    ///
    /// # Safety
    /// It belongs to a record as [`Entry::from_raw`] asks for.
    #[inline]
    pub(super) unsafe fn from_raw(version: NonNull<Version>) -> Self {
        Self { version, tree: PhantomData }
    }

    /// Its address, for [`VersionRef::from_raw`].
    #[inline]
    pub(super) fn raw(self) -> NonNull<Version> {
        self.version
    }

    #[inline]
    fn head(self) -> &'t Version {
        // SAFETY: a reachable version was written before it was linked with release order, lives
        // for `'t`, and changes in its atomics only.
        unsafe { self.version.as_ref() }
    }

    /// Its seqno.
    #[inline]
    pub fn seqno(self) -> SeqNo {
        self.head().seqno
    }

    /// Its update.
    #[inline]
    pub fn update(self) -> Update<'t> {
        let shape = self.head().shape;
        // SAFETY: the value follows the head (`write_version`), and never changes: `length` bytes
        // of it or a `LargeRef`, as the kind says, the latter aligned as the version is.
        unsafe {
            let value = self.version.cast::<u8>().add(VALUE_AT);
            match shape >> KIND_SHIFT {
                PUT => {
                    let length = (shape & LENGTH_MASK) as usize;
                    Update::Put(NonNull::slice_from_raw_parts(value, length).as_ref())
                }
                PUT_LARGE => Update::PutLarge(value.cast::<LargeRef>().read()),
                _ => Update::Delete,
            }
        }
    }
}

/// Size of the value after the head of a version.
fn value_bytes(update: Update<'_>) -> usize {
    match update {
        Update::Put(value) => value.len(),
        Update::PutCompressed(_) => unreachable!("only streams of runs have compressed values"),
        Update::PutLarge(_) => size_of::<LargeRef>(),
        Update::Delete => 0,
    }
}

/// Writes a version as a separate allocation.
///
/// # Safety
/// `VALUE_AT + value_bytes(update)` bytes from `place` on, 8-aligned, belong to the caller alone.
unsafe fn write_version(place: NonNull<u8>, update: Update<'_>, seqno: SeqNo) {
    // SAFETY: both arms write `value_bytes(update)` bytes behind the head, within what is ours.
    let shape = unsafe {
        let value = place.add(VALUE_AT);
        match update {
            Update::Put(bytes) => {
                value.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
                let length = u32::try_from(bytes.len()).expect("the arena refuses longer values");
                (PUT << KIND_SHIFT) | length
            }
            Update::PutCompressed(_) => unreachable!("only streams of runs have compressed values"),
            Update::PutLarge(large) => {
                value.cast::<LargeRef>().write(large);
                PUT_LARGE << KIND_SHIFT
            }
            Update::Delete => DELETE << KIND_SHIFT,
        }
    };
    let (next, gone) = (AtomicPtr::new(null_mut()), AtomicU32::new(0));
    // SAFETY: the head is within what is ours.
    unsafe { place.cast::<Version>().write(Version { next, seqno, gone, shape }) };
}
