//! Real input: files of this machine as path -> content, and content hash -> path.
//!
//! Each file is one atomic batch over both keyspaces. Then everything is read back, by key and by
//! range in both directions, and compared with the model.

use super::model::{Compared, Digest, Model};
use super::report::{Report, Row, Stopwatch};
use super::{Limits, open};
use crate::failure::{Context, Failure, Result};
use crate::output::{bytes, counted, grouped};
use chelonia::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use chelonia::{Database, Keyspace, KeyspaceOptions};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that hold what programs made, not people.
const SKIPPED_FOLDERS: [&str; 2] = ["target", ".git"];

/// Keys of one `multi_get`.
const GROUP: usize = 64;

/// The stored files and what they should be.
pub struct Files {
    /// The database.
    pub database: Database,
    /// Path -> content.
    pub files: Keyspace,
    /// Content hash -> path.
    pub hashes: Keyspace,
    /// What `files` should hold.
    pub model: Model,
    /// What `hashes` should hold.
    pub hash_model: Model,
}

/// Opens the database and its two keyspaces.
pub fn open_files(path: &Path, memory: u64) -> Result<(Database, Keyspace, Keyspace)> {
    let database = open(path, memory)?;
    let files = database.keyspace("files", KeyspaceOptions::default())?;
    let hashes = database.keyspace("hashes", KeyspaceOptions::default())?;
    Ok((database, files, hashes))
}

/// The folder to store if none was named: the sources that cargo keeps, else a checkout.
pub fn default_source() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let registry = home.map(|home| home.join("registry").join("src"));
    if let Some(registry) = registry.filter(|path| path.is_dir()) {
        return registry;
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if checkout.is_dir() { checkout } else { PathBuf::from(".") }
}

/// The files below `source`, in the order of their paths, as far as the limits go.
struct Found {
    /// Path on disk, and key.
    files: Vec<(PathBuf, Vec<u8>)>,
    bytes: u64,
    is_capped: bool,
    /// Folders that could not be read.
    closed: u64,
}

fn find(source: &Path, limits: Limits) -> Result<Found> {
    let failed = |error| Failure::io(source.display().to_string(), error);
    if std::fs::metadata(source).map_err(failed)?.is_dir() {
        std::fs::read_dir(source).map_err(failed)?;
    }
    let mut found = Found { files: Vec::new(), bytes: 0, is_capped: false, closed: 0 };
    // A stack of what is still to be visited, the next one last.
    let mut waiting = vec![source.to_path_buf()];
    while let Some(path) = waiting.pop() {
        // A link is followed only if it is what the user named.
        let is_source = path == source;
        let metadata = if is_source { path.metadata() } else { std::fs::symlink_metadata(&path) };
        let Ok(metadata) = metadata else { continue };
        if metadata.is_dir() {
            let is_skipped = path.file_name().is_some_and(|name| {
                SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped) && !is_source
            });
            if is_skipped {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(&path) else {
                found.closed += 1;
                continue;
            };
            let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort_unstable_by(|a, b| b.cmp(a));
            waiting.extend(paths);
        } else if metadata.is_file() {
            let key = path.strip_prefix(source).unwrap_or(&path).as_os_str().as_bytes().to_vec();
            let size = metadata.len();
            if key.len() > KEY_BYTES_MAX || size > VALUE_BYTES_MAX as u64 {
                continue;
            }
            if found.files.len() >= limits.files || found.bytes + size > limits.bytes {
                found.is_capped = true;
                break;
            }
            found.bytes += size;
            found.files.push((path, key));
        }
    }
    if found.files.is_empty() {
        return Err(Failure::usage(format!("there are no files below {}", source.display())));
    }
    Ok(found)
}

/// Stores the files below `source`.
pub fn store(
    path: &Path,
    memory: u64,
    source: &Path,
    limits: Limits,
    report: &mut Report,
) -> Result<Files> {
    let found = find(source, limits)?;
    let count = found.files.len();
    report.say(format!(
        "Storing {}{} ({}) below {}; at most {} and {}",
        if found.is_capped { "the first " } else { "" },
        counted(count as u64, "file", "files"),
        bytes(found.bytes),
        source.display(),
        counted(limits.files as u64, "file", "files"),
        bytes(limits.bytes),
    ))?;
    let (database, files, hashes) = open_files(path, memory)?;
    let mut stored =
        Files { database, files, hashes, model: Model::default(), hash_model: Model::default() };
    let bar = report.bar(count as u64);
    let (mut written, mut passed_over) = (Compared::default(), found.closed);
    let watch = Stopwatch::start();
    for (path, key) in &found.files {
        bar.inc(1);
        // A file may go or be closed to us; what is stored is what counts.
        let content = std::fs::read(path).ok();
        let Some(content) = content.filter(|content| content.len() <= VALUE_BYTES_MAX) else {
            passed_over += 1;
            continue;
        };
        let hash = Digest::of(&content).key();
        let mut batch = stored.database.batch();
        batch.insert(&stored.files, key, &content).insert(&stored.hashes, &hash, key);
        batch.commit().context(format!("storing {}", path.display()))?;
        stored.model.insert(key, &content);
        stored.hash_model.insert(&hash, key);
        written.add(key, &content);
        written.bytes += (hash.len() + key.len()) as u64;
    }
    bar.finish_and_clear();
    if written.count == 0 {
        let text = format!("none of the files below {} can be read", source.display());
        return Err(Failure::usage(text));
    }
    let mut row = Row::new("files stored, a batch each", written.count, written.bytes, watch);
    row.write_amplification = Some(stored.database.stats().write_amplification);
    report.add(row)?;
    if passed_over > 0 {
        let passed_over = grouped(passed_over);
        report.say(format!("  passed over, as they could not be read: {passed_over}"))?;
    }
    Ok(stored)
}

/// Reads every key back.
pub fn read_back(stored: &Files, report: &mut Report) -> Result<()> {
    let bar = report.bar(stored.model.len() as u64);
    let mut compared = Compared::default();
    let watch = Stopwatch::start();
    for key in stored.model.keys() {
        let value = stored.files.get(key)?;
        stored.model.check("reading a file back", key, value.as_deref())?;
        compared.add(key, value.as_deref().unwrap_or_default());
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.add(Row::new("files read back", compared.count, compared.bytes, watch))?;

    let keys: Vec<&[u8]> = stored.hash_model.keys().collect();
    let mut compared = Compared::default();
    let watch = Stopwatch::start();
    for group in keys.chunks(GROUP) {
        let values = stored.hashes.multi_get(group.iter())?;
        if values.len() != group.len() {
            return Err(Failure::no("MISMATCH: multi_get gave another number of values than keys"));
        }
        for (key, value) in group.iter().zip(values) {
            stored.hash_model.check("reading a hash back", key, value.as_deref())?;
            compared.add(key, value.as_deref().unwrap_or_default());
        }
    }
    report.add(Row::new("hashes read back, 64 at a time", compared.count, compared.bytes, watch))
}

/// Scans every top folder by prefix and everything at once, in both directions.
pub fn scan(stored: &Files, report: &mut Report) -> Result<()> {
    let folder = |key: &[u8]| {
        let end = key.iter().position(|byte| *byte == b'/');
        end.map_or_else(|| key.to_vec(), |end| key[..=end].to_vec())
    };
    let folders: BTreeSet<Vec<u8>> = stored.model.keys().map(folder).collect();
    for is_reverse in [false, true] {
        let mut compared = Compared::default();
        let watch = Stopwatch::start();
        for prefix in &folders {
            let after = successor(prefix);
            let end = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let range = (Bound::Included(prefix.as_slice()), end);
            let found = stored.files.prefix(prefix);
            let (model, what) = (&stored.model, "scanning a prefix");
            compared.extend(if is_reverse {
                model.check_backward(what, range, found.rev())?
            } else {
                model.check_forward(what, range, found)?
            });
        }
        let what = if is_reverse { "scanned by prefix, in reverse" } else { "scanned by prefix" };
        report.add(Row::new(what, compared.count, compared.bytes, watch))?;
    }
    let watch = Stopwatch::start();
    let (model, hashes) = (&stored.hash_model, &stored.hashes);
    let mut compared = model.check_forward("scanning the hashes", .., hashes.iter())?;
    compared.extend(model.check_backward("scanning back", .., hashes.iter().rev())?);
    report.add(Row::new("hashes scanned both ways", compared.count, compared.bytes, watch))
}

/// The least key after all that begin with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}
