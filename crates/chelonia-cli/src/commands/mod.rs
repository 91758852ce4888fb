//! The commands, but for the tour.
//!
//! A command opens the database read-only unless it writes; only `put` and `import` make one that
//! is not there.

pub mod damage;
pub mod dump;
pub mod entries;
pub mod inspect;
mod losses;
mod patience;
pub mod transfer;

use crate::arguments::{Bounds, Place, Target};
use crate::failure::{Context, Failure, Result};
use crate::text::Form;
use chelonia::{Database, Error, ErrorKind, Iter, Keyspace, KeyspaceOptions, limits};
use std::ops::Bound;

/// What a command does to a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It must exist and stays as it is.
    Read,
    /// It must exist.
    Write,
    /// It is made if it is not there.
    Create,
}

/// Opens the database, when it is free.
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

/// Opens the database and the keyspace; to delete from a keyspace it must exist.
fn open_keyspace(target: &Target, purpose: Purpose) -> Result<(Database, Keyspace)> {
    let database = open(&target.place, purpose)?;
    let name = &target.keyspace;
    let place = target.place.path.display().to_string();
    if purpose == Purpose::Write && !database.keyspaces().contains(name) {
        let text = format!("there is no keyspace {name:?}");
        return Err(Failure::Store(place, Error::new(ErrorKind::NotFound, text)));
    }
    let options = KeyspaceOptions::new();
    let options = target.engine.map_or(options.clone(), |engine| options.engine(engine));
    let keyspace = database.keyspace(name, options).context(place)?;
    Ok((database, keyspace))
}

/// Reads a key or value of the command line.
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
