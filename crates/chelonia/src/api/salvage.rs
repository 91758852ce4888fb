//! Salvage: copies the readable data of a damaged database to a new one.
//!
//! ```text
//!   source (read only)                                   destination (new)
//!     superblock, catalog  -- keyspaces ---------------> the same, with the same options
//!     tree of a keyspace   -- oldest entries first ----> newer ones overwrite older ones
//!     log                  -- record after record -----> the same
//!                          -- an unreadable part ------> entries of its key range so far move to
//!                                                        the keyspace "NAME (suspect)"
//! ```
//!
//! So the keyspaces of the destination have correct values, as far as the trees are concerned, and
//! entries that an unreadable part may have overwritten or deleted are separate. A lost part of the
//! log is reported, but makes no entry suspect: it could have changed any key.
//!
//! Without a superblock or the catalog the blocks cannot be interpreted, and nothing is salvaged.

use crate::admission::governor::Governor;
use crate::api::batch::Batch;
use crate::api::builder::DatabaseBuilder;
use crate::api::database::Database;
use crate::api::keyspace::Keyspace;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{KeyspaceId, SeqNo};
use crate::base::keys::KeyRange;
use crate::base::limits::{KEYSPACE_NAME_BYTES_MAX, MEMORY_BYTES_DEFAULT, SALVAGE_LOSSES_MAX};
use crate::base::logs::LogMark;
use crate::base::stream::{LargeRef, Update};
use crate::engine::Salvaged;
use crate::engines;
use crate::log::{Logs, ReadBack};
use crate::memory::budget::Budget;
use crate::options::keyspace::{KeyspaceOptions, StoredOptions};
use crate::recovery::open;
use crate::runtime::sync::Arc;
use crate::storage::data_file::catalog::CatalogEntry;
use crate::storage::io::Directory;
use crate::storage::io::direct::DirectDirectory;
use crate::storage::{Opened, Storage};
use crate::write::record::Entries;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// Bytes of keys and values per commit.
const BATCH_BYTES: usize = 1 << 20;

/// Copies the readable data of a damaged database to a new one.
///
/// The source is opened read-only. The destination must be outside the source, and an empty
/// directory or absent.
#[must_use]
pub struct Salvage {
    source: PathBuf,
    destination: PathBuf,
    memory: u64,
    #[cfg(any(test, feature = "internals"))]
    directories: Option<(Arc<dyn Directory>, Arc<dyn Directory>)>,
}

/// The result of a [`Salvage`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SalvageReport {
    /// All keyspaces, in the order of their creation.
    pub keyspaces: Vec<SalvagedKeyspace>,
    /// Records of the log that were copied.
    pub log_records: u64,
    /// Unreadable parts of the log. Writes that were only there are missing, and entries that they
    /// overwrote or deleted may have reappeared.
    pub log_damage: Vec<Error>,
}

/// The result for one keyspace.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SalvagedKeyspace {
    /// Its name.
    pub name: String,
    /// Entries in the destination.
    pub entries: u64,
    /// The keyspace of the destination that holds the entries that may be outdated, and their
    /// number. If no further keyspace can be created, they are reported as lost instead.
    pub suspect: Option<(String, u64)>,
    /// The unreadable ranges: the first thousand of them.
    pub losses: Vec<Loss>,
    /// The number of unreadable ranges.
    pub losses_total: u64,
}

/// A range of keys with an unreadable part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// The lower bound.
    pub lower: Bound<Vec<u8>>,
    /// The upper bound.
    pub upper: Bound<Vec<u8>>,
    /// The error, with file and offset.
    pub cause: Error,
}

impl SalvageReport {
    /// Returns whether everything could be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let whole = |keyspace: &SalvagedKeyspace| keyspace.losses_total == 0;
        self.log_damage.is_empty() && self.keyspaces.iter().all(whole)
    }
}

impl Salvage {
    /// Prepares a salvage of the database at `source` to a new one at `destination`.
    pub fn new(source: impl AsRef<Path>, destination: impl AsRef<Path>) -> Self {
        Self {
            source: source.as_ref().to_path_buf(),
            destination: destination.as_ref().to_path_buf(),
            memory: MEMORY_BYTES_DEFAULT,
            #[cfg(any(test, feature = "internals"))]
            directories: None,
        }
    }

    /// Sets the memory budget of each of the two databases, in bytes (default 256 MiB).
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// The files of both databases, if not at the paths.
    #[cfg(any(test, feature = "internals"))]
    pub fn directories(
        mut self,
        source: Arc<dyn Directory>,
        destination: Arc<dyn Directory>,
    ) -> Self {
        self.directories = Some((source, destination));
        self
    }

    /// Runs the salvage.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("d");
    /// # use chelonia::{Database, Salvage};
    /// # let copy = directory.path().join("copy");
    /// let database = Database::open(&path)?;
    /// database.keyspace("people", Default::default())?.insert("ada", "analyst")?;
    /// database.close()?;
    /// let report = Salvage::new(&path, &copy).memory(64 << 20).run()?;
    /// assert!(report.is_complete());
    /// assert_eq!(report.keyspaces[0].entries, 1);
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if both superblocks or the catalog are damaged; `NotFound` if there is no
    /// database,
    /// or its creation did not finish; `AlreadyOpen` if the source is open for writing;
    /// `InvalidArgument` if the destination is not empty or is inside the source; otherwise as
    /// opening the source and writing the destination.
    pub fn run(self) -> Result<SalvageReport> {
        let builder = DatabaseBuilder::new(&self.destination).memory(self.memory);
        #[cfg(any(test, feature = "internals"))]
        if let Some((source, destination)) = self.directories {
            let builder = builder.in_directory(destination);
            return salvage(&source, builder, self.memory);
        }
        let source: Arc<dyn Directory> = Arc::new(DirectDirectory::open(&self.source, false)?);
        let is_free = match DirectDirectory::open(&self.destination, false) {
            Ok(destination) => destination.list()?.is_empty(),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        if !is_free {
            let place = self.destination.display();
            let text =
                format!("{place} exists already and is not empty; name a place that is free");
            return Err(Error::invalid(text));
        }
        if is_within(&self.destination, &self.source) {
            let text = "the destination is inside the source, which stays as it is; name a place \
                        outside";
            return Err(Error::invalid(text));
        }
        salvage(&source, builder, self.memory)
    }
}

/// True if `path`, which may not exist yet, is `folder` or inside it.
fn is_within(path: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let existing = path.ancestors().find_map(|part| part.canonicalize().ok());
    existing.is_some_and(|part| part.starts_with(folder))
}

fn salvage(
    directory: &Arc<dyn Directory>,
    destination: DatabaseBuilder,
    memory: u64,
) -> Result<SalvageReport> {
    Governor::check(memory)?;
    let _lock = directory.lock(false, false)?;
    let Opened { storage, superblock, catalog } =
        Storage::open_damaged(&**directory, &Budget::new(memory))?;
    if superblock.catalog.is_none() {
        return Err(open::nothing_to_open(&**directory, open::no_database()));
    }
    let destination = destination.open()?;
    let mut names: BTreeSet<String> =
        catalog.keyspaces.iter().map(|entry| entry.name.clone()).collect();
    let mut rescues = Vec::new();
    // The suspect keyspaces take none of their names.
    for entry in &catalog.keyspaces {
        rescues.push(Rescue::new(&storage, &destination, entry, &mut names)?);
    }
    for (entry, rescue) in catalog.keyspaces.iter().zip(&mut rescues) {
        rescue.tree(entry)?;
    }
    let mut report = SalvageReport::default();
    take_log(&**directory, &storage, superblock.log, &mut rescues, &mut report)?;
    for rescue in rescues {
        report.keyspaces.push(rescue.end()?);
    }
    destination.close()?;
    Ok(report)
}

/// Copies the records of the log.
fn take_log(
    directory: &dyn Directory,
    storage: &Storage,
    mark: LogMark,
    rescues: &mut [Rescue<'_>],
    report: &mut SalvageReport,
) -> Result<()> {
    let (mut seqno, mut failed) = (mark.seqno, None);
    let mut take = |record: ReadBack<'_>| {
        if !record.is_durable && !is_complete(storage, record.payload) {
            return Err(Error::corrupt("the log ends before this record"));
        }
        if failed.is_some() {
            return Ok(());
        }
        report.log_records += 1;
        if let Some(numbers) = record.numbers {
            seqno = SeqNo(numbers.first.0 - 1);
        }
        let mut entries = Entries::new(record.payload)?;
        while let Some(entry) = entries.next_entry()? {
            seqno = seqno.next();
            // Behind damage the seqnos are unknown; then all records are copied in order.
            let counted = record.seqnos_known.then_some(seqno);
            let of = rescues.iter_mut().find(|rescue| rescue.wants(entry.keyspace, counted));
            if let Some(Err(error)) = of.map(|rescue| rescue.update(entry.key, entry.update)) {
                failed = Some(error);
            }
        }
        Ok(())
    };
    match Logs::salvage(directory, storage.salt(), &mark, &mut take) {
        Ok(read) => report.log_damage = read.damage,
        Err(error) => report.log_damage.push(error),
    }
    failed.map_or(Ok(()), Err)
}

/// True if the large values that a record refers to can be read. A record that was not durable may
/// have lost them in a power failure; its commit was not acknowledged then.
fn is_complete(storage: &Storage, payload: &[u8]) -> bool {
    let check = || -> Result<()> {
        let mut entries = Entries::new(payload)?;
        while let Some(entry) = entries.next_entry()? {
            if let Update::PutLarge(large) = entry.update {
                storage.verify_large(&large)?;
            }
        }
        Ok(())
    };
    check().is_ok()
}

/// One keyspace being salvaged.
struct Rescue<'a> {
    storage: &'a Arc<Storage>,
    destination: &'a Database,
    id: KeyspaceId,
    absorbed: SeqNo,
    keyspace: Keyspace,
    suspect_name: String,
    suspect: Option<Keyspace>,
    batch: Batch,
    batch_bytes: usize,
    report: SalvagedKeyspace,
}

impl<'a> Rescue<'a> {
    fn new(
        storage: &'a Arc<Storage>,
        destination: &'a Database,
        entry: &CatalogEntry,
        names: &mut BTreeSet<String>,
    ) -> Result<Self> {
        let options = StoredOptions::decode(&entry.options)?;
        let keyspace = destination.keyspace(&entry.name, KeyspaceOptions::as_stored(&options))?;
        let suspect_name = free_name(&entry.name, names);
        Ok(Self {
            storage,
            destination,
            id: entry.id,
            absorbed: entry.absorbed,
            keyspace,
            suspect_name,
            suspect: None,
            batch: destination.batch(),
            batch_bytes: 0,
            report: SalvagedKeyspace { name: entry.name.clone(), ..SalvagedKeyspace::default() },
        })
    }

    /// Copies the entries of the data file.
    fn tree(&mut self, entry: &CatalogEntry) -> Result<()> {
        if entry.root.is_empty() {
            return Ok(());
        }
        let stored = StoredOptions::decode(&entry.options)?;
        let context = stored.context(self.storage, 0);
        match engines::open(&context, Some(entry.root.as_slice())) {
            Ok(engine) => engine.version().salvage(self),
            Err(error) => self.lost(KeyRange::all(), error),
        }
    }

    /// True if an entry of the log with this seqno, if known, is not in the tree.
    fn wants(&self, keyspace: KeyspaceId, seqno: Option<SeqNo>) -> bool {
        self.id == keyspace && seqno.is_none_or(|seqno| seqno > self.absorbed)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.insert(&self.keyspace, key, value);
        self.settle(key, key.len() + value.len())
    }

    /// The value of `key` is certain now.
    fn settle(&mut self, key: &[u8], bytes: usize) -> Result<()> {
        if let Some(suspect) = &self.suspect {
            self.batch.remove(suspect, key);
        }
        self.batch_bytes += bytes;
        if self.batch_bytes >= BATCH_BYTES { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        self.batch.commit()
    }

    fn put_large(&mut self, key: &[u8], large: &LargeRef) -> Result<()> {
        match self.storage.read_large(large) {
            Ok(value) => self.put(key, &value),
            Err(error) => {
                let only = Bound::Included(key.to_vec());
                self.lost(KeyRange { lower: only.clone(), upper: only }, error)
            }
        }
    }

    /// Moves the entries of these keys to the suspect keyspace. If that cannot be created they are
    /// lost: returns the cause.
    fn doubt(&mut self, keys: &KeyRange) -> Result<Option<Error>> {
        self.commit()?;
        let range = (keys.lower.clone(), keys.upper.clone());
        let mut no_place = None;
        for entry in self.keyspace.range(range) {
            let (key, value) = entry?;
            if self.suspect.is_none() && no_place.is_none() {
                match self.destination.keyspace(&self.suspect_name, KeyspaceOptions::new()) {
                    Ok(suspect) => self.suspect = Some(suspect),
                    // The limit on keyspaces is reached.
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                        no_place = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(suspect) = &self.suspect {
                self.batch.insert(suspect, &key, &value);
            }
            self.batch.remove(&self.keyspace, &key);
            self.batch_bytes += key.len() + value.len();
            if self.batch_bytes >= BATCH_BYTES {
                self.commit()?;
            }
        }
        self.commit()?;
        Ok(no_place)
    }

    fn report(&mut self, keys: KeyRange, cause: Error) {
        self.report.losses_total += 1;
        if self.report.losses.len() < SALVAGE_LOSSES_MAX {
            self.report.losses.push(Loss { lower: keys.lower, upper: keys.upper, cause });
        }
    }

    /// Ends the salvage of this keyspace.
    fn end(mut self) -> Result<SalvagedKeyspace> {
        self.commit()?;
        self.report.entries = count(&self.keyspace)?;
        if let Some(suspect) = &self.suspect {
            match count(suspect)? {
                0 => self.destination.drop_keyspace(&self.suspect_name)?,
                entries => self.report.suspect = Some((self.suspect_name, entries)),
            }
        }
        Ok(self.report)
    }
}

impl Salvaged for Rescue<'_> {
    fn update(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        match update {
            Update::Put(value) => self.put(key, value),
            Update::PutCompressed(value) => {
                let mut decoded = Vec::new();
                value.decode(&mut decoded)?;
                self.put(key, &decoded)
            }
            Update::PutLarge(large) => self.put_large(key, &large),
            Update::Delete => {
                self.batch.remove(&self.keyspace, key);
                self.settle(key, key.len())
            }
        }
    }

    fn lost(&mut self, keys: KeyRange, cause: Error) -> Result<()> {
        let no_place = self.doubt(&keys)?;
        self.report(keys.clone(), cause);
        if let Some(cause) = no_place {
            self.report(keys, cause);
        }
        Ok(())
    }
}

/// A free name for the keyspace of suspect entries of `name`.
fn free_name(name: &str, names: &mut BTreeSet<String>) -> String {
    let mut number = 1;
    loop {
        let suffix = match number {
            1 => " (suspect)".to_owned(),
            _ => format!(" (suspect {number})"),
        };
        let room = KEYSPACE_NAME_BYTES_MAX - suffix.len();
        let end = (0..=room.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        let free = format!("{}{suffix}", &name[..end.unwrap_or(0)]);
        if names.insert(free.clone()) {
            return free;
        }
        number += 1;
    }
}

fn count(keyspace: &Keyspace) -> Result<u64> {
    keyspace.iter().try_fold(0, |count, entry| entry.map(|_| count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspect_entries_have_a_keyspace_of_their_own() {
        let mut names = BTreeSet::from(["a".to_owned(), "a (suspect)".to_owned()]);
        assert_eq!(free_name("b", &mut names), "b (suspect)");
        assert_eq!(free_name("a", &mut names), "a (suspect 2)");
        let long = "\u{e9}".repeat(KEYSPACE_NAME_BYTES_MAX / 2);
        assert!(free_name(&long, &mut names).len() <= KEYSPACE_NAME_BYTES_MAX);
    }
}
