//! The dictionaries in memory: one copy of each, however many runs have it.

use crate::base::error::Result;
use crate::base::limits::BLOCK_BYTES;
use crate::base::stream::{Codec, Dictionary, DictionaryId};
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::{Arc, Mutex};
use std::collections::BTreeMap;

/// Dictionaries by name. Those that nobody uses are removed when others are added.
pub struct Dictionaries {
    table: Mutex<Table>,
    making: Mutex<()>,
}

struct Table {
    known: BTreeMap<DictionaryId, Dictionary>,
    /// Table length at which unused dictionaries are removed.
    prune_at: usize,
    charge: Charge,
}

impl Dictionaries {
    /// Creates an empty table.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        let charge = budget.charge(Use::Metadata, 0);
        Self {
            table: Mutex::new(Table { known: BTreeMap::new(), prune_at: 8, charge }),
            making: Mutex::new(()),
        }
    }

    /// The dictionary `name`; calls `load` if it is not in memory.
    pub fn get(
        &self,
        name: DictionaryId,
        load: impl FnOnce() -> Result<Dictionary>,
    ) -> Result<Dictionary> {
        if let Some(known) = self.table.lock().known.get(&name) {
            return Ok(known.clone());
        }
        // Loaded without the lock: another thread may load it too.
        load().map(|loaded| self.share(loaded))
    }

    /// Calls `make`, which takes much memory for a moment, for one dictionary at a time.
    pub fn make<T>(&self, make: impl FnOnce() -> T) -> T {
        let _one_at_a_time = self.making.lock();
        make()
    }

    /// The copy of `dictionary` that all use.
    #[must_use]
    pub fn share(&self, dictionary: Dictionary) -> Dictionary {
        let mut table = self.table.lock();
        let shared = table.known.entry(dictionary.id()).or_insert(dictionary).clone();
        if table.known.len() > table.prune_at {
            table.known.retain(|_, known| !known.is_alone());
            table.prune_at = 2 * table.known.len() + 8;
        }
        let bytes = memory_bytes(&table.known);
        table.charge.resize(bytes as u64);
        shared
    }
}

/// Heap memory of these dictionaries, in bytes, about.
fn memory_bytes(known: &BTreeMap<DictionaryId, Dictionary>) -> usize {
    let count = |codec| known.values().filter(|one| one.codec() == codec).count();
    let coding: usize = Codec::ALL.map(|codec| codec.memory_bytes(count(codec))).iter().sum();
    coding + known.len() * BLOCK_BYTES
}
