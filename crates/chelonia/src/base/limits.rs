//! The user-visible limits of the store, and the units that they are related to, each with its
//! reason. Bounds of a single part are constants of that part.
//!
//! ```
//! use chelonia::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
//! # let directory = tempfile::tempdir().unwrap();
//! # let database = chelonia::Database::open(directory.path().join("d"))?;
//! # let people = database.keyspace("people", Default::default())?;
//! people.insert(vec![0; KEY_BYTES_MAX], "the longest key")?;
//! assert!(people.insert(vec![0; KEY_BYTES_MAX + 1], "").is_err());
//! assert!(people.insert("", vec![0; VALUE_BYTES_MAX + 1]).is_err());
//! # Ok::<(), chelonia::Error>(())
//! ```

use std::time::Duration;

/// The unit of I/O, of checksums and of caching, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// [`BLOCK_BYTES`] as `u64`, for offset arithmetic.
pub(crate) const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;

/// The sector size at which the crash model tears writes, in bytes: the smallest unit that a device
/// writes atomically.
pub(crate) const SECTOR_BYTES: usize = 512;

/// The longest key, in bytes (64 KiB). The empty key is an ordinary key.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// The longest value, in bytes (64 MiB).
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Values of at least this many bytes live in an extent of their own, and merges move a reference
/// to it: below, half a block of padding would cost more than copying the value does.
pub const LARGE_VALUE_BYTES_MIN: usize = 32 << 10;

/// The most bytes of a batch: keys, values shorter than [`LARGE_VALUE_BYTES_MIN`], and
/// [`BATCH_ENTRY_BYTES`] for each entry ([`crate::Batch::size`]). Half of the write share of the
/// smallest memory budget.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// The bytes that a batch entry counts besides its key and value: about the overhead of the log and
/// a memtable, so that many small entries cannot exceed the memory budget.
pub const BATCH_ENTRY_BYTES: usize = 64;

/// How often [`crate::Database::transact`] runs a transaction that has conflicts.
pub const TRANSACTION_ATTEMPTS_MAX: u32 = 100;

/// The smallest memory budget of a database, in bytes (32 MiB).
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// The default memory budget of a database, in bytes (256 MiB).
pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// The default target duration of one full scrub: 14 days, so that bit rot is found while backups
/// of a few weeks still hold the damaged data.
pub const SCRUB_INTERVAL_DEFAULT: Duration = Duration::from_hours(14 * 24);

/// The most damaged places that a salvage reports for one keyspace; all are counted.
pub const SALVAGE_LOSSES_MAX: usize = 1000;

/// The most findings of a verification that are kept; all are counted.
pub const VERIFY_FINDINGS_MAX: usize = 1000;

/// The most findings of scrubbing that are kept; all are counted.
pub const SCRUB_FINDINGS_MAX: usize = 16;

/// The unit in which memory moves between memtables, cache and merge work, in bytes. It is larger
/// than the largest entry of a memtable.
pub(crate) const SLAB_BYTES: usize = 256 << 10;

/// The most bytes of a keyspace's name (UTF-8, not empty).
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The most keyspaces of a database.
pub const KEYSPACES_MAX: usize = 1024;

/// The most logs of a database whose threads have logs of their own.
pub const LOGS_MAX: usize = 16;

/// The longest entry that is stored inside a run or a memtable: a key and a value that is not
/// large.
pub(crate) const INLINE_ENTRY_BYTES_MAX: usize = KEY_BYTES_MAX + LARGE_VALUE_BYTES_MIN;

const _: () = assert!(SLAB_BYTES >= 2 * INLINE_ENTRY_BYTES_MAX);
const _: () = assert!(SLAB_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
const _: () = assert!(LARGE_VALUE_BYTES_MIN < VALUE_BYTES_MAX);
const _: () = assert!((BATCH_BYTES_MAX as u64) * 4 <= MEMORY_BYTES_MIN);
const _: () = assert!(MEMORY_BYTES_MIN <= MEMORY_BYTES_DEFAULT);

/// The least ratio between the sizes of the last two levels of an LSM-tree.
pub const SIZE_RATIO_MIN: u32 = 2;

/// The largest of these ratios.
pub const SIZE_RATIO_MAX: u32 = 32;

/// The default size ratio of a keyspace.
pub const SIZE_RATIO_DEFAULT: u32 = 5;

/// The least scaling of the ratios of an LSM-tree's levels, in percent.
pub const SCALING_PERCENT_MIN: u32 = 20;

/// The default scaling of a keyspace, in percent.
pub const SCALING_PERCENT_DEFAULT: u32 = 80;
