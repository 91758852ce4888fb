//! The keyspaces of a database: how they are found, created, dropped and given other options.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::KeyspaceId;
use crate::base::limits::{KEYSPACE_NAME_BYTES_MAX, KEYSPACES_MAX};
use crate::engine::LiveOptions;
use crate::options::compression::Compression;
use crate::options::keyspace::KeyspaceOptions;
use crate::recovery::open::new_keyspace;
use crate::runtime::sync::{Arc, Ordering};
use crate::state::core::{Change, Core};
use crate::state::keyspace::KeyspaceCore;

/// The keyspaces of an open database.
#[derive(Clone, Copy)]
pub struct KeyspaceSet<'a> {
    core: &'a Core,
}

impl<'a> KeyspaceSet<'a> {
    /// The keyspaces of the database that `core` belongs to.
    pub fn new(core: &'a Core) -> Self {
        Self { core }
    }

    /// The names of all keyspaces, in order.
    pub fn names(self) -> Vec<String> {
        self.core.keyspaces.read().keys().cloned().collect()
    }

    /// The keyspace of this name; it is created if there is none and the database is writable.
    pub fn open(self, name: &str, options: &KeyspaceOptions) -> Result<Arc<KeyspaceCore>> {
        self.core.health.check_read()?;
        if let Some(existing) = self.existing(name, options)? {
            return Ok(existing);
        }
        if self.core.read_only {
            return Err(no_keyspace(name));
        }
        let _change = self.core.keyspaces_change.lock();
        if let Some(existing) = self.existing(name, options)? {
            return Ok(existing);
        }
        self.create(name, options).map_err(|error| self.core.locate(error))
    }

    /// Drops a keyspace, durably.
    pub fn drop(self, name: &str) -> Result<()> {
        self.drop_durably(name).map_err(|error| self.core.locate(error))
    }

    /// The checkpoint distance that a keyspace acts on, in bytes.
    pub fn checkpoint_distance(self, keyspace: &KeyspaceCore) -> u64 {
        let asked = keyspace.distance.load(Ordering::Relaxed);
        self.core.governor.checkpoint_distance(asked, keyspace.density())
    }

    /// Requests a checkpoint distance of `bytes`; `None` to follow the budget.
    pub fn set_checkpoint_distance(
        self,
        keyspace: &KeyspaceCore,
        bytes: Option<u64>,
    ) -> Result<()> {
        self.core.check_write()?;
        keyspace.check_exists()?;
        if bytes == Some(0) {
            return Err(Error::invalid("checkpoint_distance is 0; it must be at least 1"));
        }
        self.request_distance(keyspace, bytes.unwrap_or(0));
        self.core.counters.options_changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Changes options of the engine of a keyspace.
    pub fn set_live_options(self, keyspace: &KeyspaceCore, options: LiveOptions) -> Result<()> {
        self.core.check_write()?;
        keyspace.check_exists()?;
        keyspace.set_live_options(options)?;
        self.core.counters.options_changed.store(true, Ordering::Relaxed);
        self.core.signals.wake_flush();
        Ok(())
    }

    /// Changes how the values of new runs of a keyspace are stored.
    pub fn set_compression(self, keyspace: &KeyspaceCore, compression: Compression) -> Result<()> {
        self.core.check_write()?;
        keyspace.check_exists()?;
        keyspace.set_compression(compression)?;
        self.core.counters.options_changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Requests a distance, 0 to follow the budget.
    fn request_distance(self, keyspace: &KeyspaceCore, bytes: u64) {
        keyspace.distance.store(bytes, Ordering::Relaxed);
        let effective = self.core.governor.usual_distance(bytes);
        keyspace.engine.set_checkpoint_distance(effective);
    }

    /// An existing keyspace, given the options that may change after its creation.
    fn existing(self, name: &str, options: &KeyspaceOptions) -> Result<Option<Arc<KeyspaceCore>>> {
        let Some(keyspace) = self.core.keyspaces.read().get(name).cloned() else {
            return Ok(None);
        };
        options.check_existing(&keyspace.stored, name)?;
        let before = keyspace.stored_options();
        if let Some(live) = options.engine.and_then(|engine| engine.live()) {
            keyspace.set_live_options(live)?;
        }
        if let Some(compression) = options.compression {
            keyspace.set_compression(compression)?;
        }
        if let Some(distance) = options.checkpoint_distance {
            self.request_distance(&keyspace, distance);
        }
        if keyspace.stored_options() != before {
            self.core.counters.options_changed.store(true, Ordering::Relaxed);
        }
        Ok(Some(keyspace))
    }

    /// Creates a keyspace and makes the catalog with it durable. Called under the lock
    /// `keyspaces_change`.
    fn create(self, name: &str, options: &KeyspaceOptions) -> Result<Arc<KeyspaceCore>> {
        let core = self.core;
        core.check_write()?;
        if name.is_empty() || name.len() > KEYSPACE_NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a keyspace's name must have from 1 to {KEYSPACE_NAME_BYTES_MAX} bytes"
            )));
        }
        if core.keyspaces.read().len() >= KEYSPACES_MAX {
            return Err(Error::invalid(format!(
                "there are {KEYSPACES_MAX} keyspaces already, which is the limit"
            )));
        }
        let stored = options.for_new()?;
        let mut state = core.checkpoint.lock();
        let id = KeyspaceId(state.next_keyspace);
        let absorbed = core.visibility.visible();
        let keyspace = new_keyspace(core, id, name.to_owned(), stored, None, absorbed)?;
        state.next_keyspace += 1;
        core.checkpoint_change(&mut state, Change::Create(Arc::clone(&keyspace)))?;
        core.set_space_factors(Some(&keyspace));
        core.keyspaces.write().insert(name.to_owned(), Arc::clone(&keyspace));
        Ok(keyspace)
    }

    /// Makes the catalog without the keyspace durable, then releases its space.
    fn drop_durably(self, name: &str) -> Result<()> {
        let core = self.core;
        core.check_write()?;
        let _change = core.keyspaces_change.lock();
        let mut state = core.checkpoint.lock();
        let Some(keyspace) = core.keyspaces.read().get(name).cloned() else {
            return Err(no_keyspace(name));
        };
        core.checkpoint_change(&mut state, Change::Drop(keyspace.id))?;
        {
            // No commit is between its place in the log and the memtable here.
            let _commit = core.commit.lock();
            core.keyspaces.write().remove(name);
            keyspace.dropped.store(true, Ordering::Release);
        }
        drop(state);
        core.set_space_factors(None);
        // Its iterators stay valid, but no list of keyspaces leads to them any more.
        keyspace.history.holders().iter().for_each(|standing| standing.close_cursors());
        core.refresh_backlog();
        core.reclaim_dropped(&keyspace)
    }
}

fn no_keyspace(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no keyspace {name:?}"))
}
