//! The commands, except the tour.
//!
//! A command that does not write opens the database read-only; only `put` and `import` create a
//! database.
//!
//! | file | commands |
//! | --- | --- |
//! | `entries` | `put`, `get`, `delete`, `scan`, `count` |
//! | `transfer`, `losses` | `import`, `export`; counts of input that was not stored as it was |
//! | `inspect`, `tune` | `stats`, `checkpoint`, `keyspaces`, `drop`; `tune` |
//! | `backup` | `backup` |
//! | `damage`, `dump` | `verify`, `salvage`; `dump` |
//! | `patience` | `--wait` |
//!
//! To add a command: a variant of `Command`, with its help, in `arguments.rs`; an arm of `run` in
//! `main.rs`; a function here; a test in `crates/chelonia-cli/tests/program/main.rs` or a module of
//! it.

pub mod backup;
pub mod damage;
pub mod dump;
pub mod entries;
pub mod inspect;
mod losses;
mod patience;
pub mod transfer;
pub mod tune;

use crate::arguments::{Bounds, Place, Target};
use crate::failure::{Context, Failure, Result};
use crate::text::Form;
use chelonia::{Database, Error, ErrorKind, Iter, Keyspace, KeyspaceOptions, limits};
use std::ops::Bound;

/// How a command opens a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It must exist and is not changed.
    Read,
    /// It must exist.
    Write,
    /// It is created if it does not exist.
    Create,
}

/// Opens the database; waits for it if requested.
pub fn open(place: &Place, purpose: Purpose) -> Result<Database> {
    let attempt = || {
        Database::builder(&place.path)
            .memory(place.memory.unwrap_or(limits::MEMORY_BYTES_DEFAULT))
            .read_only(purpose == Purpose::Read)
            .create(purpose == Purpose::Create)
            .open()
    };
    patience::until_free(&place.path, place.patience.wait, attempt)
        .context(place.path.display().to_string())
}

/// Opens the database and the keyspace, which must exist for a delete.
fn open_keyspace(target: &Target, purpose: Purpose) -> Result<(Database, Keyspace)> {
    let database = open(&target.place, purpose)?;
    let name = &target.keyspace;
    let place = target.place.path.display().to_string();
    if purpose != Purpose::Create {
        check_there_is(&database, name).context(place.clone())?;
    }
    let options = KeyspaceOptions::new();
    let options = target.engine.map_or(options.clone(), |engine| options.engine(engine));
    let options = target.compression.map_or(options.clone(), |one| options.compression(one));
    let keyspace = database.keyspace(name, options).context(place)?;
    Ok((database, keyspace))
}

/// Most names of keyspaces in an error.
const LISTED_MAX: usize = 10;

/// Fails if there is no keyspace of this name.
fn check_there_is(database: &Database, name: &String) -> chelonia::Result<()> {
    let names = database.keyspaces();
    if names.contains(name) {
        return Ok(());
    }
    let listed: Vec<String> =
        names.iter().take(LISTED_MAX).map(|name| format!("{name:?}")).collect();
    let more = match names.len() - listed.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let rest = match listed.is_empty() {
        true => "the database has none yet".to_owned(),
        false => format!("there are {}{more}; choose one with --keyspace", listed.join(", ")),
    };
    Err(Error::new(ErrorKind::NotFound, format!("there is no keyspace {name:?}: {rest}")))
}

/// Parses a key or value of the command line.
fn argument(form: Form, argument: &std::ffi::OsStr) -> Result<Vec<u8>> {
    form.read_argument(argument).map_err(Failure::Usage)
}

/// The entries within `bounds`.
fn entries(keyspace: &Keyspace, bounds: &Bounds, form: Form) -> Result<Iter> {
    if let Some(prefix) = &bounds.prefix {
        return Ok(keyspace.prefix(argument(form, prefix)?));
    }
    let from = bounds.from.as_deref().map(|key| argument(form, key)).transpose()?;
    let to = bounds.to.as_deref().map(|key| argument(form, key)).transpose()?;
    let lower = from.map_or(Bound::Unbounded, Bound::Included);
    let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
    Ok(keyspace.range::<Vec<u8>, _>((lower, upper)))
}
