//! The drive: every block of 4 KiB that is written, compressed by zlib, and the blocks it stores.
//!
//! Blocks that do not shrink are stored as they are. A block that is written again takes the place
//! of its earlier content; one that is trimmed (a hole, a removed or shortened file) takes nothing.

use flate2::{Compress, Compression, FlushCompress, Status};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The unit of the drive.
pub const BLOCK: usize = 4096;

/// The same as a number of bytes in a file.
pub const BLOCK_BYTES: u64 = 4096;

/// The same as a size of a stored block.
const BLOCK_SIZE: u16 = 4096;

/// The level of zlib; that of the paper's drive is not known.
const LEVEL: u32 = 6;

/// The use of a block, as in equation 1 of the paper on B-minus-trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The write-ahead log.
    Log,
    /// Records, with indexes and filters beside them.
    Pages,
    /// Everything that says where those are: nodes above runs, page tables, manifests.
    Rest,
}

impl Class {
    /// All of them, in the order of reports.
    pub const ALL: [Class; 3] = [Class::Log, Class::Pages, Class::Rest];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Class::Log => "log",
            Class::Pages => "pages",
            Class::Rest => "rest",
        }
    }

    /// That of a file with this name, for all stores that are measured here.
    pub fn of_file(name: &str) -> Self {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        let is_log = name.starts_with("log-") || name.starts_with("WiredTigerLog");
        match extension {
            _ if is_log => Class::Log,
            Some("log") => Class::Log,
            Some("sst" | "wt" | "mdb") => Class::Pages,
            None if name == OUR_DATA => Class::Pages,
            _ => Class::Rest,
        }
    }
}

/// The name of Chelonia's data file.
const OUR_DATA: &str = "data";

/// The first blocks of Chelonia's data file are its superblock.
const SUPERBLOCKS: u64 = 2;

/// Where a block of Chelonia's data file has its kind, and the kinds that are not content: parts of
/// nodes and of the catalog (`storage/block.rs`).
const KIND_AT: usize = 8;
const STRUCTURE: [u8; 2] = [7, 8];

/// Bytes as given to the drive, and as written by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    /// In whole blocks.
    pub logical: u64,
    /// Compressed.
    pub physical: u64,
}

impl Bytes {
    fn since(self, start: Bytes) -> Self {
        let logical = self.logical.saturating_sub(start.logical);
        Self { logical, physical: self.physical.saturating_sub(start.physical) }
    }

    fn to_json(self) -> Value {
        json!({ "logical_bytes": self.logical, "physical_bytes": self.physical })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_u64();
        Some(Self { logical: number("logical_bytes")?, physical: number("physical_bytes")? })
    }
}

/// Bytes that a drive has written, by class, and that it stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Written, in the order of [`Class::ALL`].
    pub written: [Bytes; 3],
    /// Stored now.
    pub stored: Bytes,
}

impl Totals {
    /// The bytes written since `start`, and those stored now.
    pub fn since(self, start: Totals) -> Self {
        let written = std::array::from_fn(|at| self.written[at].since(start.written[at]));
        Self { written, stored: self.stored }
    }

    /// Of all classes together.
    pub fn all(self) -> Bytes {
        self.written.into_iter().fold(Bytes::default(), |sum, one| Bytes {
            logical: sum.logical + one.logical,
            physical: sum.physical + one.physical,
        })
    }

    /// As JSON.
    pub fn to_json(self) -> Value {
        let [log, pages, rest] = self.written.map(Bytes::to_json);
        json!({ "log": log, "pages": pages, "rest": rest, "stored": self.stored.to_json() })
    }

    /// Reads [`Totals::to_json`].
    pub fn from_json(value: &Value) -> Option<Self> {
        let bytes = |name: &str| Bytes::from_json(value.get(name)?);
        let [log, pages, rest] = Class::ALL.map(|class| bytes(class.name()));
        Some(Self { written: [log?, pages?, rest?], stored: bytes("stored")? })
    }
}

#[derive(Default)]
struct Counter {
    logical: AtomicU64,
    physical: AtomicU64,
}

impl Counter {
    fn add(&self, physical: u64) {
        self.logical.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
        self.physical.fetch_add(physical, Ordering::Relaxed);
    }

    fn remove(&self, physical: u64) {
        self.logical.fetch_sub(BLOCK_BYTES, Ordering::Relaxed);
        self.physical.fetch_sub(physical, Ordering::Relaxed);
    }

    fn bytes(&self) -> Bytes {
        let logical = self.logical.load(Ordering::Relaxed);
        Bytes { logical, physical: self.physical.load(Ordering::Relaxed) }
    }
}

/// The drive. Thread-safe.
#[derive(Default)]
pub struct Device {
    written: [Counter; 3],
    stored: Counter,
}

/// The stored blocks of a file: their compressed sizes, 0 for a block that is not stored.
pub struct Content {
    class: Class,
    is_our_data: bool,
    sizes: Mutex<Vec<u16>>,
}

impl Content {
    /// Of a file with this name.
    pub fn new(name: &str) -> Self {
        let (class, is_our_data) = (Class::of_file(name), name == OUR_DATA);
        Self { class, is_our_data, sizes: Mutex::default() }
    }

    fn class_of(&self, number: u64, block: &[u8; BLOCK]) -> Class {
        let is_structure = number < SUPERBLOCKS || STRUCTURE.contains(&block[KIND_AT]);
        if self.is_our_data && is_structure { Class::Rest } else { self.class }
    }
}

impl Device {
    /// Writes block `number` of a file.
    pub fn write(&self, file: &Content, number: u64, block: &[u8; BLOCK]) {
        let size = compressed(block);
        self.written[file.class_of(number, block) as usize].add(size.into());
        let Ok(at) = usize::try_from(number) else { return };
        let mut sizes = file.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() <= at {
            sizes.resize(at + 1, 0);
        }
        self.replace(&mut sizes[at], size);
    }

    /// Trims the blocks of a file from `first` to `end`, not included.
    pub fn trim(&self, file: &Content, first: u64, end: u64) {
        let mut sizes = file.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(sizes.len());
        let range = at(first)..at(end).max(at(first));
        sizes[range].iter_mut().for_each(|size| self.replace(size, 0));
    }

    fn replace(&self, stored: &mut u16, size: u16) {
        if *stored > 0 {
            self.stored.remove((*stored).into());
        }
        if size > 0 {
            self.stored.add(size.into());
        }
        *stored = size;
    }

    /// The bytes written so far, and those stored.
    pub fn totals(&self) -> Totals {
        let written = std::array::from_fn(|at| self.written[at].bytes());
        Totals { written, stored: self.stored.bytes() }
    }
}

/// The bytes that a block takes on the drive.
fn compressed(block: &[u8; BLOCK]) -> u16 {
    thread_local! {
        static ZLIB: RefCell<(Compress, [u8; BLOCK])> =
            RefCell::new((Compress::new(Compression::new(LEVEL), true), [0; BLOCK]));
    }
    ZLIB.with_borrow_mut(|(zlib, out)| {
        zlib.reset();
        match zlib.compress(block, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => u16::try_from(zlib.total_out()).unwrap_or(BLOCK_SIZE),
            // It does not fit into less than a block.
            _ => BLOCK_SIZE,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::random::mix;

    fn block(random_bytes: usize) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        for (at, byte) in block[..random_bytes].iter_mut().enumerate() {
            *byte = mix(at as u64).to_le_bytes()[0];
        }
        block
    }

    #[test]
    fn blocks_take_about_what_is_random_in_them_and_nothing_once_trimmed() {
        let (device, file) = (Device::default(), Content::new("000042.sst"));
        device.write(&file, 0, &block(0));
        device.write(&file, 3, &block(1000));
        device.write(&file, 4, &block(BLOCK));
        let [log, pages, rest] = device.totals().written;
        assert_eq!((log, rest), (Bytes::default(), Bytes::default()));
        assert_eq!(pages.logical, 3 * BLOCK_BYTES);
        assert!((5090..5300).contains(&pages.physical), "{}", pages.physical);
        assert_eq!(device.totals().stored, pages);
        // Written again, a block is stored once.
        device.write(&file, 4, &block(10));
        let stored = device.totals().stored;
        assert!(stored.physical < 1300 && stored.logical == 3 * BLOCK_BYTES, "{stored:?}");
        device.trim(&file, 0, u64::MAX);
        assert_eq!(device.totals().stored, Bytes::default());
        assert_eq!(device.totals().all().logical, 4 * BLOCK_BYTES);
    }

    #[test]
    fn classes_follow_from_names_and_kinds() {
        for (name, class) in [
            ("log-0001", Class::Log),
            ("000007.log", Class::Log),
            ("WiredTigerLog.0000000001", Class::Log),
            ("000008.sst", Class::Pages),
            ("chelonia.wt", Class::Pages),
            ("data", Class::Pages),
            ("MANIFEST-000004", Class::Rest),
            ("LOG", Class::Rest),
        ] {
            assert_eq!(Class::of_file(name), class, "{name}");
        }
        let data = Content::new("data");
        let mut node = block(100);
        node[KIND_AT] = STRUCTURE[0];
        assert_eq!(data.class_of(9, &node), Class::Rest);
        node[KIND_AT] = 1;
        assert_eq!(data.class_of(9, &node), Class::Pages);
        assert_eq!(data.class_of(1, &node), Class::Rest);
    }

    #[test]
    fn totals_come_back() {
        let (device, file) = (Device::default(), Content::new("log-0"));
        let start = device.totals();
        device.write(&file, 1, &block(9));
        let totals = device.totals().since(start);
        assert_eq!(Totals::from_json(&totals.to_json()), Some(totals));
        assert_eq!(Totals::from_json(&json!({})), None);
    }
}
