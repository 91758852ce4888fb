//! The writes of a transaction: the last update of each key, and how to take updates back.

use crate::base::bytes::{Key, Value};
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::keys::KeyRange;
use crate::base::limits::BATCH_BYTES_MAX;
use crate::memory::budget::{Budget, Charge, Use};
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use crate::write::writes::{Write, Writes, counted_bytes};
use std::collections::{BTreeMap, btree_map};

/// Bytes that are charged to the budget at a time.
const STEP_BYTES: u64 = 4 << 10;

/// Memory of an update beside its key and value.
const UPDATE_EXTRA_BYTES: usize = 112;

/// The updates of one keyspace; a key without a value is removed.
pub type KeyUpdates = BTreeMap<Key, Option<Value>>;

/// The updates of a transaction.
pub struct Updates {
    keyspaces: Vec<(Arc<KeyspaceCore>, KeyUpdates)>,
    /// The number of updates, and their bytes as those of a batch are counted.
    len: usize,
    size: usize,
    /// Memory of keys and values, here and in `undo`.
    bytes: usize,
    charge: Charge,
    /// For each update since the first savepoint, oldest first, the one that it replaced.
    undo: Vec<Undo>,
    savepoints: Vec<usize>,
}

/// The update of a key before another one.
struct Undo {
    /// Index of the keyspace.
    keyspace: usize,
    key: Key,
    before: Option<Option<Value>>,
}

impl Updates {
    /// Creates an empty set.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            keyspaces: Vec::new(),
            len: 0,
            size: 0,
            bytes: 0,
            charge: budget.charge(Use::Metadata, STEP_BYTES),
            undo: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    /// True if nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of updates.
    pub fn count(&self) -> usize {
        self.len
    }

    /// The keyspaces, in the order of [`Write::keyspace`].
    pub fn keyspaces(&self) -> Vec<&Arc<KeyspaceCore>> {
        self.keyspaces.iter().map(|(core, _)| core).collect()
    }

    /// Adds an update, in place of an earlier one of the same key. Fails if all of them would be
    /// over the limit of a batch; nothing is changed then.
    pub fn set(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let index = self.index_of(keyspace);
        let before = self.keyspaces[index].1.get(key);
        let replaced = before.map_or(0, |value| counted_bytes(key, value.as_deref()));
        let size = self.size - replaced + counted_bytes(key, value);
        if size > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a transaction of {size} bytes is over the limit of {BATCH_BYTES_MAX} \
                 (BATCH_BYTES_MAX)"
            )));
        }
        let key = Key::copy_from(key);
        let before = self.replace(index, &key, Some(value.map(Value::copy_from)));
        if !self.savepoints.is_empty() {
            self.bytes += memory_of(&key, before.as_ref());
            self.undo.push(Undo { keyspace: index, key, before });
        }
        if self.bytes as u64 > self.charge.bytes() {
            self.charge.resize((self.bytes as u64).next_multiple_of(STEP_BYTES));
        }
        Ok(())
    }

    /// The update of a key; `None` if there is none.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&Option<Value>> {
        self.of(keyspace)?.get(key)
    }

    /// The updates in a range, which is not empty.
    pub fn range(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
    ) -> Option<btree_map::Range<'_, Key, Option<Value>>> {
        let bound = |bound: &std::ops::Bound<Vec<u8>>| bound.as_ref().map(|key| key.clone());
        let bounds = (bound(&range.lower), bound(&range.upper));
        let bounds = (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice));
        Some(self.of(keyspace)?.range::<[u8], _>(bounds))
    }

    /// Remembers this state; returns the number of states remembered before.
    pub fn save(&mut self) -> usize {
        self.savepoints.push(self.undo.len());
        self.savepoints.len() - 1
    }

    /// The number of states that can be gone back to.
    pub fn saved(&self) -> usize {
        self.savepoints.len()
    }

    /// Goes back to the remembered state `number`, and forgets those after it.
    pub fn go_back(&mut self, number: usize) {
        let Some(length) = self.savepoints.get(number).copied() else { return };
        self.savepoints.truncate(number + 1);
        while self.undo.len() > length {
            let Some(Undo { keyspace, key, before }) = self.undo.pop() else { break };
            self.bytes -= memory_of(&key, before.as_ref());
            self.replace(keyspace, &key, before);
        }
    }

    fn of(&self, keyspace: KeyspaceId) -> Option<&KeyUpdates> {
        let found = self.keyspaces.iter().find(|(core, _)| core.id == keyspace);
        found.map(|(_, updates)| updates)
    }

    fn index_of(&mut self, keyspace: &Arc<KeyspaceCore>) -> usize {
        let known = self.keyspaces.iter().position(|(core, _)| core.id == keyspace.id);
        known.unwrap_or_else(|| {
            self.keyspaces.push((Arc::clone(keyspace), KeyUpdates::new()));
            self.keyspaces.len() - 1
        })
    }

    /// Replaces the update of `key` by another one, or by none; returns it.
    fn replace(
        &mut self,
        keyspace: usize,
        key: &Key,
        update: Option<Option<Value>>,
    ) -> Option<Option<Value>> {
        if let Some(value) = &update {
            self.len += 1;
            self.size += counted_bytes(key, value.as_deref());
            self.bytes += memory_of(key, Some(value));
        }
        let updates = &mut self.keyspaces[keyspace].1;
        let before = match update {
            Some(value) => updates.insert(key.clone(), value),
            None => updates.remove(&key[..]),
        };
        if let Some(value) = &before {
            self.len -= 1;
            self.size -= counted_bytes(key, value.as_deref());
            self.bytes -= memory_of(key, Some(value));
        }
        before
    }
}

/// Memory of an update, or of what it replaced.
fn memory_of(key: &[u8], update: Option<&Option<Value>>) -> usize {
    let value = update.and_then(Option::as_ref).map_or(0, |value| value.len());
    key.len() + value + UPDATE_EXTRA_BYTES
}

impl<'a> Writes<'a> for &'a Updates {
    fn len(self) -> usize {
        self.len
    }

    fn iter(self) -> impl Iterator<Item = Write<'a>> {
        self.keyspaces.iter().enumerate().flat_map(|(keyspace, (_, updates))| {
            let write = move |(key, value): (&'a Key, &'a Option<Value>)| Write {
                keyspace,
                key,
                value: value.as_deref(),
            };
            updates.iter().map(write)
        })
    }
}
