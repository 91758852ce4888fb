//! bf-tree: a B-tree whose leaves have small pages for hot records in a circular buffer, by direct
//! I/O.
//!
//! Its log is off: it has no level between no log and a log that each insert waits a millisecond
//! for (and whose segment it rewrites), so its results are not comparable in durability. A settle
//! does nothing: pages are written when they leave the buffer.

use crate::failure::{Failure, Result};
use crate::kinds::Durability;
use crate::stores::{Entries, Facts, Session, Settled, Store, StoreOptions, bytes_of};
use crate::workload::values::VALUE_BYTES_MIN;
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use std::time::Duration;

/// No record is smaller: values have as many bytes. The largest pages need such a bound.
const RECORD_BYTES_MIN: usize = VALUE_BYTES_MIN;

/// Pages of leaves; the smallest that holds the records is taken.
const LEAF_BYTES: [usize; 4] = [4096, 8192, 16_384, 32_768];

struct Tree {
    tree: BfTree,
    buffer_bytes: usize,
    leaf_bytes: usize,
    key_bytes_max: usize,
    record_bytes_max: usize,
}

/// Makes a new tree.
pub fn open(options: &StoreOptions) -> Result<Box<dyn Store>> {
    if options.durability == Durability::Sync {
        return Err(Failure::usage(
            "--durability: bf-tree runs without its log here; allowed are memory and process, and \
             its settings say `log off`",
        ));
    }
    // The greatest power of two that fits: it takes no other.
    let buffer_bytes = match options.memory.checked_ilog2() {
        Some(exponent) => bytes_of(1 << exponent)?,
        None => return Err(Failure::usage("--memory: more than nothing")),
    };
    let record_bytes_max = options.key_bytes_max + options.value_bytes_max;
    let config = |leaf_bytes: usize| {
        let mut config = Config::new(options.path.join("data.bftree"), buffer_bytes);
        config
            .storage_backend(StorageBackend::StdDirect)
            .leaf_page_size(leaf_bytes)
            .cb_max_key_len(options.key_bytes_max)
            .cb_min_record_size(RECORD_BYTES_MIN)
            .cb_max_record_size(record_bytes_max);
        config
    };
    let fitting = LEAF_BYTES.into_iter().find(|bytes| is_valid(&config(*bytes)));
    let Some(leaf_bytes) = fitting else {
        return Err(match config(LEAF_BYTES[3]).validate() {
            Ok(()) => Failure::usage("--value-size: bf-tree takes less"),
            Err(error) => Failure::usage(format!("bf-tree takes no such sizes: {error:?}")),
        });
    };
    let tree = BfTree::with_config(config(leaf_bytes), None)
        .map_err(|error| Failure::failed("open", format!("{error:?}")))?;
    let key_bytes_max = options.key_bytes_max;
    Ok(Box::new(Tree { tree, buffer_bytes, leaf_bytes, key_bytes_max, record_bytes_max }))
}

/// True if a tree can be made so.
fn is_valid(config: &Config) -> bool {
    config.validate().is_ok()
}

impl Store for Tree {
    fn facts(&self) -> Facts {
        let settings = vec![
            ("log", "off: not comparable in durability".to_owned()),
            ("circular_buffer", format!("{} bytes, a power of two", self.buffer_bytes)),
            ("leaf_page", format!("{} bytes", self.leaf_bytes)),
            ("records", format!("{RECORD_BYTES_MIN} to {} bytes", self.record_bytes_max)),
            ("key_max", format!("{} bytes", self.key_bytes_max)),
            ("data", "O_DIRECT (StdDirect)".to_owned()),
            ("settle", "nothing: pages are written when they leave the buffer".to_owned()),
        ];
        Facts { version: env!("BF_TREE_VERSION").to_owned(), settings, commit_every: 1 }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(TreeSession { tree: &self.tree, buffer: vec![0; self.record_bytes_max] }))
    }

    fn settle(&self, _limit: Duration) -> Result<Settled> {
        Ok(Settled::Done)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The tree copies what it reads into a buffer of the caller.
struct TreeSession<'a> {
    tree: &'a BfTree,
    buffer: Vec<u8>,
}

impl Session for TreeSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(Failure::failed("insert", why)),
        }
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.tree.delete(key);
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        match self.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(bytes) => {
                value.extend_from_slice(&self.buffer[..bytes_of(u64::from(bytes))?]);
                Ok(true)
            }
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(false),
            LeafReadResult::InvalidKey => Err(Failure::failed("get", "it takes no such key")),
        }
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let mut found = self
            .tree
            .scan_with_count(from, count, ScanReturnField::KeyAndValue)
            .map_err(|error| Failure::failed("scan", format!("{error:?}")))?;
        while let Some((key_bytes, value_bytes)) = found.next(&mut self.buffer) {
            let (key, rest) = self.buffer.split_at(key_bytes);
            entries.push(key, &rest[..value_bytes]);
        }
        Ok(())
    }
}
