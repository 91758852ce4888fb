//! `drive`: a simulated drive that compresses, for the time of a command.
//!
//! Some drives and arrays compress each block of 4 KiB that is written to them ("Closing the B-tree
//! vs. LSM-tree Write Amplification Gap on Modern Storage Hardware with Built-in Transparent
//! Compression", section 2.2). To know how much a store would write to one, none is needed: a file
//! system in this process passes all calls on to a folder, and compresses every block that the
//! kernel writes, whichever store asked for it and by whichever call.
//!
//! ```text
//!   store --calls--> kernel: page cache --blocks--> `files` --calls--> folder
//!                                                      '--blocks--> `device`: zlib, counts
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | here | the command; the counts, for runs whose database is on the drive |
//! | `files` | the file system |
//! | `device` | what is written and stored, by class |

mod device;
mod files;

pub use device::{Bytes, Class, Totals};

use crate::failure::{Failure, Result};
use crate::table::{Table, megabytes, short};
use clap::Args;
use device::Device;
use files::{Files, REPORT};
use fuser::{Config, MountOption};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Threads that answer the kernel: a store reads with several at a time.
const THREADS: usize = 4;

/// `drive`
#[derive(Args, Debug)]
pub struct Drive {
    /// The folder that holds the files
    pub folder: PathBuf,
    /// The folder where they appear, on the drive; it has to exist and to be empty
    pub mount: PathBuf,
    /// The program to run meanwhile, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Runs it.
pub fn drive(arguments: &Drive) -> Result<()> {
    let Drive { folder, mount, command } = arguments;
    let on_folder = |error| Failure::failed(format!("use {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(on_folder)?;
    let folder = folder.canonicalize().map_err(on_folder)?;
    let mount = mount
        .canonicalize()
        .map_err(|error| Failure::failed(format!("use {}", mount.display()), error))?;
    if mount.starts_with(&folder) || folder.starts_with(&mount) {
        return Err(Failure::usage("the two folders may not lie in each other"));
    }
    let device = Arc::new(Device::default());
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("chelonia-drive".to_owned())];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let what = "mount the drive (it needs /dev/fuse, and root or fusermount3)";
    let session = fuser::spawn_mount(Files::new(&folder, &device), &mount, &config)
        .map_err(|error| Failure::failed(what, error))?;
    let ended = run(command);
    // Dirty pages are written, and counted, before the unmount ends.
    session.umount_and_join().map_err(|error| Failure::failed("unmount the drive", error))?;
    print(device.totals())?;
    ended
}

fn run(command: &[OsString]) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("no command"));
    };
    let what = || format!("run {}", program.display());
    let status = Command::new(program).args(arguments).status();
    let status = status.map_err(|error| Failure::failed(what(), error))?;
    if status.success() { Ok(()) } else { Err(Failure::failed(what(), status)) }
}

fn print(totals: Totals) -> Result<()> {
    let mut table = Table::new(["drive", "MB", "compressed MB", "ratio"]);
    let classes = Class::ALL.into_iter().zip(totals.written);
    let rows = classes.map(|(class, bytes)| (format!("written: {}", class.name()), bytes));
    let rows = rows.chain([
        ("written: all".to_owned(), totals.all()),
        ("stored at the end".to_owned(), totals.stored),
    ]);
    for (name, bytes) in rows {
        let (logical, physical) = (megabytes(bytes.logical), megabytes(bytes.physical));
        table.row([name, logical, physical, ratio(bytes)]);
    }
    Ok(std::io::stdout().lock().write_all(table.text().as_bytes())?)
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(bytes: Bytes) -> String {
    match bytes.logical {
        0 => "-".to_owned(),
        logical => short(bytes.physical as f64 / logical as f64),
    }
}

/// The report of the drive on which `path` is; `None` if it is not on a simulated one.
pub fn report_for(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    path.ancestors().map(|folder| folder.join(REPORT)).find(|report| report.is_file())
}

/// The counts of a report, with everything that was written to files below `database` before.
pub fn totals(report: &Path, database: &Path) -> Result<Totals> {
    sync_below(database)?;
    let what = || format!("read {}", report.display());
    let text = std::fs::read_to_string(report).map_err(|error| Failure::failed(what(), error))?;
    let value = serde_json::from_str(&text).map_err(|error| Failure::failed(what(), error))?;
    Totals::from_json(&value).ok_or_else(|| Failure::failed(what(), "it is no report of a drive"))
}

/// Lets the kernel write all cached pages of the files below `folder`.
fn sync_below(folder: &Path) -> Result<()> {
    let failed = |error| Failure::failed(format!("sync {}", folder.display()), error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            sync_below(&path)?;
            continue;
        }
        match std::fs::File::open(&path).and_then(|file| file.sync_all()) {
            // The store removed it meanwhile.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

    /// A drive over two new folders; `None` where this process may not mount: without `/dev/fuse`,
    /// or without the right to, which root lacks in some containers.
    fn mounted() -> Option<(tempfile::TempDir, fuser::BackgroundSession)> {
        let place = tempfile::tempdir().unwrap();
        let (folder, mount) = (place.path().join("files"), place.path().join("mount"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let files = Files::new(&folder, &Arc::default());
        let mut config = Config::default();
        config.n_threads = Some(2);
        let session = fuser::spawn_mount(files, &mount, &config).ok()?;
        Some((place, session))
    }

    #[test]
    fn files_on_the_drive_are_files_and_what_is_synced_is_counted() {
        let Some((place, session)) = mounted() else { return };
        let mount = place.path().join("mount");
        let base = mount.join("database");
        std::fs::create_dir(&base).unwrap();
        let report = report_for(&base).unwrap();
        let log = File::create(base.join("000001.log")).unwrap();
        for number in 0..100_u64 {
            log.write_all_at(&[7; 100], number * 100).unwrap();
        }
        let sst = base.join("000002.sst");
        std::fs::write(&sst, vec![1; 10_000]).unwrap();
        let start = totals(&report, &base).unwrap();
        let [log_bytes, pages, rest] = start.written.map(|bytes| bytes.logical);
        // The kernel wrote each page once, at the sync.
        assert_eq!((log_bytes, pages, rest), (12_288, 12_288, 0));
        assert_eq!(start.stored.logical, 6 * 4096);
        assert_eq!(std::fs::read(&sst).unwrap(), vec![1; 10_000]);
        // The same block again, by one byte.
        log.write_all_at(&[8], 5000).unwrap();
        let again = totals(&report, &base).unwrap().since(start);
        assert_eq!(again.written.map(|bytes| bytes.logical), [4096, 0, 0]);
        // Renamed, shortened, removed.
        let moved = base.join("000003.sst");
        std::fs::rename(&sst, &moved).unwrap();
        OpenOptions::new().write(true).open(&moved).unwrap().set_len(4096).unwrap();
        assert_eq!(std::fs::read(&moved).unwrap(), vec![1; 4096]);
        assert_eq!(totals(&report, &base).unwrap().stored.logical, 4 * 4096);
        std::fs::remove_file(&moved).unwrap();
        assert_eq!(totals(&report, &base).unwrap().stored.logical, 3 * 4096);
        let names = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["000001.log"]);
        drop(log);
        std::fs::remove_dir_all(&base).unwrap();
        session.umount_and_join().unwrap();
        assert!(report_for(&mount).is_none());
    }

    #[test]
    fn our_database_works_on_the_drive() {
        let Some((place, session)) = mounted() else { return };
        let path = place.path().join("mount/d");
        for round in 0..2_u64 {
            let database = chelonia::Database::builder(&path).memory(48 << 20).open().unwrap();
            let keyspace = database.keyspace("k", chelonia::KeyspaceOptions::new()).unwrap();
            for number in 0..5000_u64 {
                let key = number.to_be_bytes();
                assert_eq!(keyspace.contains_key(key).unwrap(), round > 0);
                keyspace.insert(key, [1; 100]).unwrap();
            }
            database.checkpoint().unwrap();
            assert!(database.verify().unwrap().is_clean());
            database.close().unwrap();
        }
        let totals = totals(&report_for(&path).unwrap(), &path).unwrap();
        let [log, pages, rest] = totals.written;
        assert!(log.physical > 0 && rest.physical > 0, "{totals:?}");
        assert!(pages.physical > 0 && pages.physical < pages.logical, "{totals:?}");
        std::fs::remove_dir_all(&path).unwrap();
        session.umount_and_join().unwrap();
    }
}
