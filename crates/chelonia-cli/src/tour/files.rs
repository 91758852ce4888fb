//! The load: files of this machine, under their paths.

use super::report::{Done, Report, compare, digest, go_on, open};
use crate::arguments::Tour;
use crate::failure::{Context, Failure, Result};
use crate::output::{bytes, counted};
use chelonia::KeyspaceOptions;
use chelonia::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders of generated files.
const SKIPPED_FOLDERS: [&str; 2] = ["target", ".git"];

/// The paths of the stored files and the digests of their content.
pub type Files = BTreeMap<Vec<u8>, u64>;

fn expected(files: &Files) -> impl Iterator<Item = (&Vec<u8>, u64)> {
    files.iter().map(|(path, hash)| (path, *hash))
}

/// The folder to store if none was named: the sources that cargo keeps, else the current one.
fn default_source() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let registry = home.map(|home| home.join("registry/src")).filter(|path| path.is_dir());
    registry.unwrap_or_else(|| PathBuf::from("."))
}

/// Stores files; deletes every third one under a snapshot, which still contains all.
pub fn load(path: &Path, arguments: &Tour, report: &mut Report) -> Result<Files> {
    let source = arguments.source.clone().unwrap_or_else(default_source);
    let limit = counted(arguments.files_max as u64, "file", "files");
    let limit = format!("at most {limit}, {}", bytes(arguments.bytes_max));
    report.say(&format!("Storing the files below {}, {limit}", source.display()))?;
    let database = open(path, arguments.memory)?;
    let keyspace = database.keyspace("files", KeyspaceOptions::default())?;
    let (mut files, interrupt) = (Files::new(), report.interrupt.clone());
    report.step("files stored", |_| {
        let mut done = Done::default();
        for file in files_below(&source)? {
            go_on(&interrupt)?;
            let Ok(content) = std::fs::read(&file) else { continue };
            let key = file.as_os_str().as_bytes();
            if key.len() > KEY_BYTES_MAX || content.len() > VALUE_BYTES_MAX {
                continue;
            }
            let bytes = done.bytes + content.len() as u64;
            if files.len() >= arguments.files_max || bytes > arguments.bytes_max {
                break;
            }
            keyspace.insert(key, &content).context(format!("storing {}", file.display()))?;
            files.insert(key.to_vec(), digest(&content));
            done.add(key, &content);
        }
        done.note = format!("write amplification {:.2}", database.stats().write_amplification);
        Ok(done)
    })?;
    if files.is_empty() {
        let text = format!("there are no files that can be read below {}", source.display());
        return Err(Failure::usage(text));
    }

    let (snapshot, all) = (database.snapshot(), files.clone());
    for key in all.keys().step_by(3) {
        keyspace.remove(key)?;
        files.remove(key);
    }
    report.step("files in a snapshot", |what| {
        compare(what, expected(&all), snapshot.iter(&keyspace))
    })?;
    report
        .step("files not deleted since", |what| compare(what, expected(&files), keyspace.iter()))?;
    drop((snapshot, keyspace));
    database.close()?;
    Ok(files)
}

/// The regular files below `source` in the order of their paths. A link is followed only if it is
/// `source` itself; folders that cannot be read are skipped.
fn files_below(source: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let failed = |error| Failure::io(source.display().to_string(), error);
    // A stack: the next path is last.
    let mut paths = vec![source.canonicalize().map_err(failed)?];
    Ok(std::iter::from_fn(move || {
        loop {
            let path = paths.pop()?;
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if metadata.is_file() {
                return Some(path);
            }
            if metadata.is_dir() {
                let mut inner: Vec<_> = path.read_dir().into_iter().flatten().flatten().collect();
                inner.retain(|entry| SKIPPED_FOLDERS.iter().all(|name| entry.file_name() != *name));
                inner.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.file_name()));
                paths.extend(inner.iter().map(std::fs::DirEntry::path));
            }
        }
    }))
}

/// Compares the files with those of a database that has recovered from a crash.
pub fn recovered(path: &Path, memory: u64, files: &Files, report: &mut Report) -> Result<()> {
    let database = open(path, memory)?;
    let keyspace = database.keyspace("files", KeyspaceOptions::default())?;
    report.step("files after the crash", |what| compare(what, expected(files), keyspace.iter()))?;
    drop(keyspace);
    report.verify_and_close(database)
}
