//! Finds the processes that have a database open: for the message of a refused open, and to
//! distinguish a process that has it open from one that died with writes in flight.
//!
//! The kernel lists the holders of all locks in `/proc/locks`, a line each:
//!
//! ```text
//!   3: FLOCK  ADVISORY  WRITE 6908 fd:01:1835033 0 EOF
//!              device (major:minor, hexadecimal) ^     ^ inode
//! ```
//!
//! So no file has to be written that could be outdated. A file system may report another device to
//! its users (btrfs, overlay): then the descriptors of the processes with a lock on a file of this
//! inode are checked. Processes of other containers are not listed; a holder that cannot be found
//! is not named.

use crate::storage::io::OPEN_ELSEWHERE;
use rustix::fs::{fstat, major, minor};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// The most processes named.
const NAMED_MAX: usize = 3;

/// A process that holds a lock, with the device and inode from the list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Holder {
    pid: u32,
    device: (u32, u32),
    inode: u64,
}

/// Parses a line of the list, if it is a held `flock` lock.
fn parse(line: &str) -> Option<Holder> {
    let mut words = line.split_ascii_whitespace().skip(1);
    // A line of a waiter for a lock has an arrow here.
    if words.next() != Some("FLOCK") {
        return None;
    }
    let mut words = words.skip(2);
    let pid = words.next()?.parse().ok()?;
    let mut place = words.next()?.split(':');
    let mut number = || u32::from_str_radix(place.next()?, 16).ok();
    let device = (number()?, number()?);
    let inode = place.next()?.parse().ok()?;
    Some(Holder { pid, device, inode })
}

/// True if the process has a file open with this device and inode.
fn has_open(pid: u32, device: u64, inode: u64) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| {
        let facts = std::fs::metadata(entry.path());
        facts.is_ok_and(|facts| (facts.dev(), facts.ino()) == (device, inode))
    })
}

/// The processes that hold a lock on `file`, as far as they can be found.
fn pids(file: impl AsFd) -> Vec<u32> {
    let Ok(facts) = fstat(file) else { return Vec::new() };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (device, inode) = (facts.st_dev, facts.st_ino);
    let parts = (major(device), minor(device));
    let is_of_file = |holder: &Holder| {
        holder.inode == inode && (holder.device == parts || has_open(holder.pid, device, inode))
    };
    let mut pids: Vec<u32> =
        locks.lines().filter_map(parse).filter(is_of_file).map(|holder| holder.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// True if no process that can be found and lives holds a lock on `file`.
pub fn are_gone(file: impl AsFd) -> bool {
    !pids(file).into_iter().any(is_alive)
}

/// False for a process that has ended, whether its parent has noticed or not.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may contain any.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// The message of an open that is refused because a lock on `file` is held.
pub fn refusal(file: &File) -> String {
    let pids = pids(file);
    let mut named: Vec<String> = pids.iter().take(NAMED_MAX).map(u32::to_string).collect();
    if pids.len() > NAMED_MAX {
        named.push(format!("{} more", pids.len() - NAMED_MAX));
    }
    match (pids.as_slice(), named.split_last()) {
        ([], _) | (_, None) => OPEN_ELSEWHERE.to_owned(),
        ([pid], _) if *pid == std::process::id() => {
            format!(
                "the database is in use by this process, pid {pid}: close it, or drop all of its \
                 keyspaces, snapshots and iterators"
            )
        }
        ([pid], _) => format!("the database is in use by pid {pid}"),
        (_, Some((last, others))) => {
            format!("the database is in use by pids {} and {last}", others.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_read() {
        let holder = |pid, device, inode| Some(Holder { pid, device, inode });
        for (line, expected) in [
            ("3: FLOCK  ADVISORY  WRITE 6908 fd:01:1835033 0 EOF", holder(6908, (253, 1), 1835033)),
            ("12: FLOCK  ADVISORY  READ 7 00:2c:9 0 EOF", holder(7, (0, 44), 9)),
            ("1: POSIX  ADVISORY  WRITE 6908 fd:01:1835033 0 EOF", None),
            ("3: -> FLOCK  ADVISORY  WRITE 6909 fd:01:1835033 0 EOF", None),
            ("3: FLOCK  ADVISORY  WRITE -1 fd:01:1835033 0 EOF", None),
            ("3: FLOCK  ADVISORY  WRITE 5 fd01 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn a_process_that_nobody_waited_for_has_ended() {
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn holders_are_found() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let held = File::create(&path).unwrap();
        assert_eq!(pids(&held), []);
        assert_eq!(refusal(&held), OPEN_ELSEWHERE);
        held.try_lock().unwrap();
        let other = File::open(&path).unwrap();
        let own = std::process::id();
        assert_eq!(pids(&other), [own]);
        assert!(!are_gone(&other));
        let named = format!("the database is in use by this process, pid {own}: close it");
        assert!(refusal(&other).starts_with(&named), "{}", refusal(&other));
        assert!(has_open(own, held.metadata().unwrap().dev(), held.metadata().unwrap().ino()));
        held.unlock().unwrap();
        assert_eq!(pids(&other), []);
        assert!(are_gone(&other));
    }
}
