//! The call sites of the file system in the library.
//!
//! The script makes the same calls in every run, until one of them fails. So one run that records
//! the call site of each call determines which numbers of calls must fail to reach every site.

use super::script;
use crate::suite::support::LAYOUTS;
use chelonia::internals::{Call, FaultPlan};
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A call site of the file system.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Site {
    /// The layout of the log with which it is reached: an index of [`LAYOUTS`].
    pub layout: usize,
    /// The call.
    pub call: Call,
    /// File and line below the library's sources.
    pub place: String,
}

/// All sites that the script reaches, each with the numbers of its calls: with one log, and those
/// of the log with several too. A sparse log makes the same calls as a single one.
pub fn all() -> &'static [(Site, Vec<u64>)] {
    static SITES: OnceLock<Vec<(Site, Vec<u64>)>> = OnceLock::new();
    SITES.get_or_init(|| {
        let sites = (0..2).flat_map(look);
        sites.filter(|(site, _)| site.layout == 0 || site.place.starts_with("log/")).collect()
    })
}

/// The sites of a new run, with the numbers of their calls: readers of other units may shift them.
pub fn look(layout: usize) -> BTreeMap<Site, Vec<u64>> {
    let plan = FaultPlan::new();
    let seen: Arc<Mutex<BTreeMap<Site, Vec<u64>>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let mut number = 0;
    plan.on_call(move |call, _file| {
        let place = place_of(&Backtrace::force_capture().to_string());
        noted.lock().unwrap().entry(Site { layout, call, place }).or_default().push(number);
        number += 1;
    });
    script::run_healthy(LAYOUTS[layout], &plan);
    plan.on_call(|_, _| {});
    std::mem::take(&mut *seen.lock().unwrap())
}

/// Records the call site of call `number` when a run with this layout reaches it.
pub fn watch(layout: usize, plan: &FaultPlan, number: u64) -> Arc<Mutex<Option<Site>>> {
    let seen = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&seen);
    let mut at = 0;
    plan.on_call(move |call, _file| {
        if at == number {
            let place = place_of(&Backtrace::force_capture().to_string());
            noted.lock().unwrap().replace(Site { layout, call, place });
        }
        at += 1;
    });
    seen
}

/// The innermost frame of a trace that is in the library, but not in its file system interface.
fn place_of(trace: &str) -> String {
    let places = trace.lines().filter_map(|line| line.trim().strip_prefix("at "));
    let within = places.filter_map(|place| place.split_once("crates/chelonia/src/"));
    let within = within.map(|(_, rest)| rest);
    let mut outside = within.filter(|place| !place.starts_with("storage/io/"));
    let place = outside.next().unwrap_or_else(|| panic!("no frame of the library: {trace}"));
    // Without the column.
    place.rsplit_once(':').map_or(place, |(place, _)| place).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Calls of the file system, as text in the library's sources.
    const CALLS: [&str; 25] = [
        ".read_at(",
        ".data_from(",
        ".read_many_while(&mut requests",
        ".write_at(",
        ".write_many(&requests)",
        ".set_size(",
        "file.allocate(",
        "scratch.allocate(",
        ".punch_hole(",
        "file.sync()",
        "dir.sync()",
        "file.map(",
        "region.write(",
        "dir.open(",
        "directory.open(",
        "dir.list()",
        "directory.list()",
        "dir.remove(",
        "directory.remove(",
        "directory.lock(",
        "file.lock(",
        "file.size()",
        ".size()).sum()",
        "allocated_bytes()",
        "directory.scratch(",
    ];

    /// Calls that the script does not reach: the file, the text of the line, and the test that
    /// makes them fail.
    const ELSEWHERE: [(&str, &str, &str); 18] = [
        (
            "log/slots.rs",
            "dir.list()?.into_iter()",
            "a damaged or missing data file: `bad_files.rs`",
        ),
        ("log/slots.rs", "dir.open(&name, OpenMode::Read", "the same"),
        ("log/slots.rs", "file.size()?.min(", "the same"),
        ("log/slots.rs", "file.read_at(&mut block, 0)?", "the same"),
        ("storage/mod.rs", "match dir.open(DATA_FILE, OpenMode::Read", "the same"),
        ("recovery/open.rs", "directory.lock(true, true)", "a missing lock file: `bad_files.rs`"),
        ("recovery/open.rs", "match directory.lock(true, false)", "the same"),
        (
            "log/tail.rs",
            "region.write(at, &self.joined)",
            "logs that are not mapped: `io/tests.rs`",
        ),
        ("storage/mod.rs", "self.file.sync()", "calls `data_file`, which is reached"),
        ("storage/space.rs", "file.set_size(end *", "full devices: `simulation`, `tests/full.rs`"),
        ("disk_full/pool.rs", "directory.scratch(", "the same"),
        ("storage/space.rs", "file.allocated_bytes()", "a full device: `storage/space/tests.rs`"),
        ("log/segments/prepare.rs", "last.file.punch_hole(", "full devices: `tests/full/opens.rs`"),
        ("log/recover.rs", "segment.file.punch_hole(", "the same"),
        ("log/recover.rs", "dir.open(&name, OpenMode::Write, Access::Buffered)?", "the same"),
        ("log/recover.rs", "file.write_at(&[0; RECORD_HEAD_BYTES_MAX]", "the same"),
        ("log/recover.rs", "file.sync()", "the same"),
        ("recovery/replay.rs", "ScratchPlace::Anywhere", "a log longer than memory: `recovery.rs`"),
    ];

    #[test]
    fn every_call_of_the_file_system_is_reached_or_listed() {
        let reached: BTreeSet<&str> = all().iter().map(|(site, _)| site.place.as_str()).collect();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chelonia/src");
        let (mut missed, mut calls, mut excuses) = (Vec::new(), 0, BTreeSet::new());
        look_through(&sources, &sources, &mut |place, line| {
            if !CALLS.iter().any(|call| line.contains(call)) {
                return;
            }
            calls += 1;
            if reached.contains(place) {
                return;
            }
            let excuse = ELSEWHERE
                .iter()
                .position(|(file, text, _)| place.starts_with(file) && line.contains(text));
            match excuse {
                Some(excuse) => drop(excuses.insert(excuse)),
                None => missed.push(format!("{place}: {line}")),
            }
        });
        assert!(missed.is_empty(), "no test makes these calls fail: {missed:#?}");
        assert!(calls > 60, "only {calls} calls: does `CALLS` match their text?");
        let needless: Vec<_> = (0..ELSEWHERE.len()).filter(|at| !excuses.contains(at)).collect();
        assert!(needless.is_empty(), "reached or removed: {needless:?} of the table");
    }

    /// Passes every line of production code below `folder` to `take`, with its place.
    fn look_through(root: &Path, folder: &Path, take: &mut dyn FnMut(&str, &str)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                if name != "storage/io" && !name.ends_with("tests") {
                    look_through(root, &path, take);
                }
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let tests = ["tests.rs", "testing.rs"].iter().any(|end| name.ends_with(end));
            let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for (line, number) in production.lines().zip(1_u32..).filter(|_| !tests) {
                if !line.trim_start().starts_with("//") {
                    take(&format!("{name}:{number}"), line.trim());
                }
            }
        }
    }
}
