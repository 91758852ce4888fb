//! `put`, `get`, `delete`, `scan`, `count`: single entries and ranges.

use super::{Purpose, argument, entries, open_keyspace};
use crate::arguments::{Count, Delete, Get, Put, Scan};
use crate::descriptors;
use crate::failure::{Failure, Result};
use crate::formats::Format;
use crate::output::output;
use chelonia::limits::VALUE_BYTES_MAX;
use serde_json::json;
use std::io::{self, Read, Write};

/// `put`
pub fn put(arguments: &Put) -> Result<()> {
    let form = arguments.spelling.form();
    let key = argument(form, &arguments.key)?;
    let value = match &arguments.value {
        Some(value) => argument(form, value)?,
        None => standard_input()?,
    };
    let (database, keyspace) = open_keyspace(&arguments.target, Purpose::Create)?;
    keyspace.insert(key, value)?;
    Ok(database.close()?)
}

/// Reads standard input to its end, at most one byte more than a value may have.
fn standard_input() -> Result<Vec<u8>> {
    let mut value = Vec::new();
    if descriptors::is_closed(descriptors::INPUT) {
        return Err(Failure::io("standard input", descriptors::closed()));
    }
    let read = io::stdin().lock().take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::io("standard input", error))?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Failure::usage(format!("a value has at most {VALUE_BYTES_MAX} bytes")));
    }
    Ok(value)
}

/// `get`
pub fn get(arguments: &Get) -> Result<()> {
    let form = arguments.spelling.form();
    let key = argument(form, &arguments.key)?;
    let (_database, keyspace) = open_keyspace(&arguments.target, Purpose::Read)?;
    let Some(value) = keyspace.get(&key)? else {
        let (key, keyspace) = (form.write(&key), &arguments.target.keyspace);
        return Err(Failure::no(format!("there is no key \"{key}\" in keyspace {keyspace:?}")));
    };
    let mut out = output();
    if arguments.raw {
        out.write_all(&value)?;
    } else if arguments.json {
        Format::Jsonl.write(&mut out, form, &key, &value)?;
    } else {
        writeln!(out, "{}", form.write(&value))?;
    }
    Ok(out.flush()?)
}

/// `delete`
pub fn delete(arguments: &Delete) -> Result<()> {
    let form = arguments.spelling.form();
    let keys: Result<Vec<Vec<u8>>> = arguments.keys.iter().map(|key| argument(form, key)).collect();
    let keys = keys?;
    let (database, keyspace) = open_keyspace(&arguments.target, Purpose::Write)?;
    let mut batch = database.batch();
    for key in keys {
        batch.remove(&keyspace, key);
    }
    batch.commit()?;
    Ok(database.close()?)
}

/// `scan`
pub fn scan(arguments: &Scan) -> Result<()> {
    let form = arguments.spelling.form();
    let (_database, keyspace) = open_keyspace(&arguments.target, Purpose::Read)?;
    let found = entries(&keyspace, &arguments.bounds, form)?;
    let format = if arguments.json { Format::Jsonl } else { Format::Tsv };
    let mut out = output();
    let (limit, reverse) = (arguments.limit.unwrap_or(u64::MAX), arguments.reverse);
    if arguments.keys {
        for_each(found.keys(), reverse, limit, |key| Ok(format.write_key(&mut out, form, &key)?))?;
    } else {
        for_each(found, reverse, limit, |(key, value)| {
            Ok(format.write(&mut out, form, &key, &value)?)
        })?;
    }
    Ok(out.flush()?)
}

/// Calls `show` for up to `limit` items of `found`, from the end if `reverse`.
fn for_each<T>(
    mut found: impl DoubleEndedIterator<Item = chelonia::Result<T>>,
    reverse: bool,
    limit: u64,
    mut show: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    for _ in 0..limit {
        let next = if reverse { found.next_back() } else { found.next() };
        let Some(item) = next else { break };
        show(item?)?;
    }
    Ok(())
}

/// `count`
pub fn count(arguments: &Count) -> Result<()> {
    let (_database, keyspace) = open_keyspace(&arguments.target, Purpose::Read)?;
    let mut count = 0_u64;
    for key in entries(&keyspace, &arguments.bounds, arguments.spelling.form())?.keys() {
        key?;
        count += 1;
    }
    let mut out = output();
    if arguments.json {
        writeln!(out, "{}", json!({ "count": count }))?;
    } else {
        writeln!(out, "{count}")?;
    }
    Ok(out.flush()?)
}
