//! The writes of a transaction: the last update of each key, and how to take updates back.

use crate::api::transaction::memory::Memory;
use crate::base::bytes::{Key, Value};
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::keys::KeyRange;
use crate::base::limits::BATCH_BYTES_MAX;
use crate::memory::budget::Budget;
use crate::runtime::sync::Arc;
use crate::state::keyspace::KeyspaceCore;
use crate::write::writes::{Write, Writes, counted_bytes};
use std::collections::{BTreeMap, btree_map};

/// Memory of an update beside its key and value.
const UPDATE_EXTRA_BYTES: usize = 112;

/// The updates of one keyspace; a key without a value is removed.
pub type KeyUpdates = BTreeMap<Key, Option<Value>>;

/// The updates of a transaction.
pub struct Updates {
    /// One may have none, after they were taken back.
    keyspaces: Vec<(Arc<KeyspaceCore>, KeyUpdates)>,
    /// The number of updates, and their bytes as those of a batch are counted.
    len: usize,
    size: usize,
    /// Of keys and values, here and in `undo`.
    memory: Memory,
    /// For each update since the first savepoint, oldest first, the one that it replaced.
    undo: Vec<Undo>,
    /// The number of each savepoint, and the length of `undo` at that time.
    savepoints: Vec<(u64, usize)>,
    next_savepoint: u64,
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
            memory: Memory::new(budget),
            undo: Vec::new(),
            savepoints: Vec::new(),
            next_savepoint: 0,
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

    /// The keyspaces with updates, in the order of [`Write::keyspace`].
    pub fn keyspaces(&self) -> Vec<&Arc<KeyspaceCore>> {
        self.written().map(|(core, _)| core).collect()
    }

    /// Adds an update, in place of an earlier one of the same key. Fails if all of them would be
    /// over the limit of a batch, or take too much memory; nothing is changed then.
    pub fn set(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let before = self.get(keyspace.id, key);
        let replaced = before.map_or(0, |value| counted_bytes(key, value.as_deref()));
        let size = self.size - replaced + counted_bytes(key, value);
        if size > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a transaction of {size} bytes is over the limit of {BATCH_BYTES_MAX} \
                 (BATCH_BYTES_MAX)"
            )));
        }
        let (freed, can_undo) = (memory_of(key, before), !self.savepoints.is_empty());
        let undo = if can_undo { freed.max(UPDATE_EXTRA_BYTES) } else { 0 };
        self.memory.add(key.len() + value.map_or(0, <[u8]>::len) + UPDATE_EXTRA_BYTES + undo)?;
        self.memory.remove(freed);
        let (index, key) = (self.index_of(keyspace), Key::copy_from(key));
        let before = self.replace(index, &key, Some(value.map(Value::copy_from)));
        if can_undo {
            self.undo.push(Undo { keyspace: index, key, before });
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
        let bounds =
            (range.lower.as_ref().map(Vec::as_slice), range.upper.as_ref().map(Vec::as_slice));
        Some(self.of(keyspace)?.range::<[u8], _>(bounds))
    }

    /// Remembers this state; returns its number, which no other one has.
    pub fn save(&mut self) -> u64 {
        let number = self.next_savepoint;
        self.next_savepoint += 1;
        self.savepoints.push((number, self.undo.len()));
        number
    }

    /// Goes back to the remembered state `number`, and forgets those after it; false if it was
    /// forgotten.
    pub fn go_back(&mut self, number: u64) -> bool {
        let Some(place) = self.savepoints.iter().position(|(saved, _)| *saved == number) else {
            return false;
        };
        self.savepoints.truncate(place + 1);
        let length = self.savepoints[place].1;
        while self.undo.len() > length {
            let Some(Undo { keyspace, key, before }) = self.undo.pop() else { break };
            let kept = memory_of(&key, before.as_ref());
            let undone = self.replace(keyspace, &key, before);
            // The update that was kept to go back counts as one again.
            let undo = kept.max(UPDATE_EXTRA_BYTES) - kept;
            self.memory.remove(memory_of(&key, undone.as_ref()) + undo);
        }
        true
    }

    fn written(&self) -> impl Iterator<Item = &(Arc<KeyspaceCore>, KeyUpdates)> {
        self.keyspaces.iter().filter(|(_, updates)| !updates.is_empty())
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

    /// Replaces the update of `key` by another one, or by none; returns it. The caller counts
    /// memory.
    fn replace(
        &mut self,
        keyspace: usize,
        key: &Key,
        update: Option<Option<Value>>,
    ) -> Option<Option<Value>> {
        if let Some(value) = &update {
            self.len += 1;
            self.size += counted_bytes(key, value.as_deref());
        }
        let updates = &mut self.keyspaces[keyspace].1;
        let before = match update {
            Some(value) => updates.insert(key.clone(), value),
            None => updates.remove(&key[..]),
        };
        if let Some(value) = &before {
            self.len -= 1;
            self.size -= counted_bytes(key, value.as_deref());
        }
        before
    }
}

/// Memory of an update; 0 of none.
fn memory_of(key: &[u8], update: Option<&Option<Value>>) -> usize {
    let of = |value: &Option<Value>| value.as_ref().map_or(0, |value| value.len());
    update.map_or(0, |value| key.len() + of(value) + UPDATE_EXTRA_BYTES)
}

impl<'a> Writes<'a> for &'a Updates {
    fn len(self) -> usize {
        self.len
    }

    fn iter(self) -> impl Iterator<Item = Write<'a>> {
        self.written().enumerate().flat_map(|(keyspace, (_, updates))| {
            let write = move |(key, value): (&'a Key, &'a Option<Value>)| Write {
                keyspace,
                key,
                value: value.as_deref(),
            };
            updates.iter().map(write)
        })
    }
}
