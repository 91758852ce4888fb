//! A memory cgroup around the process, for stores that read through the page cache: only the kernel
//! can limit the memory that it caches for them.
//!
//! The group is created within the limits that the process already has, and removed at the end:
//!
//!
//! | hierarchy | the group is | the limit is in | kills are counted in |
//! | --- | --- | --- | --- |
//! | version 2 | beside the own one | `memory.max` | `memory.events` |
//! | version 1 | below the own one | `memory.limit_in_bytes` | `memory.oom_control` |
//!
//! In version 2 no group with processes may have limits below it, so the group is beside it. If no
//! group can be created, the run continues, and its results say `memory not limited`. A killed
//! process leaves its group behind; its parent reads the reason there, and removes it.

use std::path::{Path, PathBuf};
use std::process;

/// The measured memory of a store beyond its caches: code, stacks, allocator, dirty pages.
const ALLOWANCE_BYTES: u64 = 100_000_000;

/// The limit on the memory of the process; removed when this is dropped.
#[derive(Debug)]
pub enum Limit {
    /// The store limits itself.
    NotNeeded,
    /// By a group.
    Group(Group),
    /// None, for this reason.
    Failed(String),
}

/// A group that was made for this process.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    /// Where the process was before.
    origin: PathBuf,
    bytes: u64,
}

/// Where a group can be made, and what its files are called.
struct Place {
    parent: PathBuf,
    origin: PathBuf,
    limit_file: &'static str,
    /// It has a line `oom_kill` with the number of processes that were killed.
    events_file: &'static str,
}

/// Limits the process to `memory` and what it needs beside its store, if that `is_needed`.
pub fn enter(is_needed: bool, memory: u64, driver_bytes: u64) -> Limit {
    if !is_needed {
        return Limit::NotNeeded;
    }
    let bytes = memory.saturating_add(driver_bytes).saturating_add(ALLOWANCE_BYTES);
    let made = find().and_then(|place| Group::make(&place, bytes));
    made.map_or_else(Limit::Failed, Limit::Group)
}

impl Limit {
    /// In words, for results.
    pub fn describe(&self) -> String {
        match self {
            Limit::NotNeeded => "by the store".to_owned(),
            Limit::Group(group) => format!("memory cgroup of {} bytes", group.bytes),
            Limit::Failed(why) => format!("memory not limited ({why})"),
        }
    }
}

impl Group {
    fn make(place: &Place, bytes: u64) -> Result<Self, String> {
        let path = place.parent.join(name(process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("no cgroup: {error}"))?;
        let group = Self { path, origin: place.origin.clone(), bytes };
        let set = |file: &str, text: String| {
            let path = group.path.join(file);
            std::fs::write(path, text).map_err(|error| format!("cgroup, {file}: {error}"))
        };
        set(place.limit_file, bytes.to_string())?;
        set("cgroup.procs", process::id().to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // An empty group that cannot be removed limits nothing.
        let _ = std::fs::write(self.origin.join("cgroup.procs"), process::id().to_string());
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn name(process: u32) -> String {
    format!("chelonia-bench-{process}")
}

/// The reason why a child process was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Killed {
    /// It had no group of its own.
    Unknown,
    /// Not by the kernel for its memory.
    Otherwise,
    /// By the kernel: it needed more than these bytes.
    ForMemory(u64),
}

/// Why `process` was killed, by its group, which is removed.
pub fn bury(process: u32) -> Killed {
    find().map_or(Killed::Unknown, |place| bury_in(&place, process))
}

fn bury_in(place: &Place, process: u32) -> Killed {
    let path = place.parent.join(name(process));
    let read = |file: &str| std::fs::read_to_string(path.join(file)).ok();
    let killed = match (read(place.events_file), read(place.limit_file)) {
        (Some(events), Some(limit)) if oom_kills(&events) > 0 => {
            limit.trim().parse().map_or(Killed::Unknown, Killed::ForMemory)
        }
        (Some(_), Some(_)) => Killed::Otherwise,
        _ => Killed::Unknown,
    };
    let _ = std::fs::remove_dir(path);
    killed
}

/// The number behind `oom_kill`.
fn oom_kills(events: &str) -> u64 {
    let mut lines = events.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == "oom_kill");
    found.and_then(|(_, count)| count.trim().parse().ok()).unwrap_or(0)
}

/// Where a group of this process can be.
fn find() -> Result<Place, String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    place(&read("/proc/self/cgroup"), &read("/proc/self/mounts"))
        .ok_or_else(|| "there is no memory cgroup".to_owned())
}

/// From the texts of the kernel: `/proc/self/cgroup` has lines `id:controllers:path`, the mounts
/// `device folder type options ...`.
fn place(groups: &str, mounts: &str) -> Option<Place> {
    let mounted = |kind: &str, option: &str| {
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        mounts.find_map(|fields| match fields[..] {
            [_, folder, of, options, ..] if of == kind => {
                let has = option.is_empty() || options.split(',').any(|one| one == option);
                has.then(|| PathBuf::from(folder))
            }
            _ => None,
        })
    };
    let group = |controller: &str| {
        let mut lines = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
        lines.find_map(|fields| match fields[..] {
            [_, controllers, path] if controllers.split(',').any(|one| one == controller) => {
                Some(path.trim_start_matches('/').to_owned())
            }
            _ => None,
        })
    };
    let below =
        |folder: &Path, path: &str| if path.is_empty() { folder.into() } else { folder.join(path) };
    if let (Some(folder), Some(path)) = (mounted("cgroup", "memory"), group("memory")) {
        let origin = below(&folder, &path);
        return Some(Place {
            parent: origin.clone(),
            origin,
            limit_file: "memory.limit_in_bytes",
            events_file: "memory.oom_control",
        });
    }
    let (folder, path) = (mounted("cgroup2", "")?, group("")?);
    let origin = below(&folder, &path);
    let parent = if path.is_empty() { origin.clone() } else { origin.parent()?.to_path_buf() };
    Some(Place { parent, origin, limit_file: "memory.max", events_file: "memory.events" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hierarchies_are_found() {
        let found = place(
            "4:memory:/jobs/7\n0::/\n",
            "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        )
        .unwrap();
        assert_eq!(found.parent, Path::new("/sys/fs/cgroup/memory/jobs/7"));
        assert_eq!(found.limit_file, "memory.limit_in_bytes");
        let found = place("0::/user/scope\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap();
        assert_eq!(found.parent, Path::new("/sys/fs/cgroup/user"));
        assert_eq!(found.origin, Path::new("/sys/fs/cgroup/user/scope"));
        assert_eq!(found.limit_file, "memory.max");
        let root = place("0::/\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap();
        assert_eq!(root.parent, root.origin);
        assert!(place("", "").is_none());
    }

    /// A plain folder in the place of the kernel's: the files that are written are seen.
    fn pretended(folder: &Path) -> Place {
        Place {
            parent: folder.to_path_buf(),
            origin: folder.to_path_buf(),
            limit_file: "memory.max",
            events_file: "memory.events",
        }
    }

    #[test]
    fn a_group_is_made_limited_entered_and_left() {
        let directory = tempfile::tempdir().unwrap();
        let place = pretended(directory.path());
        let group = Group::make(&place, 950).unwrap();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(group.path.join("memory.max")), "950");
        assert_eq!(read(group.path.join("cgroup.procs")), process::id().to_string());
        drop(group);
        assert_eq!(read(directory.path().join("cgroup.procs")), process::id().to_string());
        let missing = Place { parent: directory.path().join("none"), ..place };
        assert!(Group::make(&missing, 950).is_err());
    }

    #[test]
    fn results_describe_the_limit_of_memory() {
        assert_eq!(enter(false, 1, 1).describe(), "by the store");
        let failed = Limit::Failed("no root".to_owned());
        assert_eq!(failed.describe(), "memory not limited (no root)");
    }

    #[test]
    fn a_process_that_may_have_a_group_is_in_it_and_leaves_it() {
        let own = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let name = name(process::id());
        // Far more than the tests beside this one need.
        let limit = enter(true, 16 << 30, 0);
        match &limit {
            Limit::Group(_) => assert!(own().contains(&name), "{}", own()),
            Limit::Failed(_) => assert!(limit.describe().starts_with("memory not limited (")),
            Limit::NotNeeded => panic!("it was asked for"),
        }
        drop(limit);
        assert!(!own().contains(&name), "{}", own());
    }

    #[test]
    fn the_group_of_a_killed_process_names_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let place = pretended(directory.path());
        assert_eq!(bury_in(&place, 7), Killed::Unknown);
        let group = directory.path().join(name(7));
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("memory.max"), "950\n").unwrap();
        for (events, killed) in [
            ("low 0\noom 1\noom_kill 1\n", Killed::ForMemory(950)),
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", Killed::Otherwise),
            ("", Killed::Otherwise),
        ] {
            std::fs::write(group.join("memory.events"), events).unwrap();
            assert_eq!(bury_in(&place, 7), killed, "{events}");
        }
    }
}
