//! Instructions of the hot paths, counted by valgrind: the same on every run of the same program,
//! whatever else the machine does. For people who change these paths; CI does not run it.
//!
//! ```text
//! cargo bench -p chelonia --bench instructions              compare with what is recorded
//! cargo bench -p chelonia --bench instructions -- --record  record anew (benches/instructions.csv)
//! ```
//!
//! It needs `valgrind`. For each path it starts itself under callgrind, which counts only within
//! [`measured`]. The work is done by one thread, the background's too (a stepped database). A path
//! that takes a fifth more than recorded fails the run.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use chelonia::{Database, Keyspace, KeyspaceOptions, LogLayout};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Records in the database.
const RECORDS: u64 = 60_000;

/// Operations counted, where a path does not say otherwise.
const OPERATIONS: u64 = 20_000;

/// Keys of one `multi_get`, and entries of one scan.
const TOGETHER: u64 = 64;

/// The run fails if a path takes this many percent more than recorded.
const TOLERANCE_PERCENT: u64 = 20;

/// The recorded counts: a path and its instructions on each line.
const RECORDED: &str = include_str!("instructions.csv");

/// A path: its name, what one operation is, and how it is run in a database of its own; gives how
/// many operations were measured.
struct HotPath {
    name: &'static str,
    operation: &'static str,
    run: fn(&Path) -> chelonia::Result<u64>,
}

const PATHS: [HotPath; 9] = [
    HotPath { name: "insert", operation: "insert into a memtable, logged", run: insert },
    HotPath { name: "insert_logs", operation: "the same, in one of four logs", run: insert_logs },
    HotPath { name: "load", operation: "insert, its flush and checkpoint", run: load },
    HotPath { name: "get_memtable", operation: "get from a memtable", run: get_memtable },
    HotPath { name: "get_record", operation: "get of a cached record", run: get_record },
    HotPath { name: "get_block", operation: "get from a cached block", run: get_block },
    HotPath { name: "get_absent", operation: "get of an absent key", run: get_absent },
    HotPath { name: "scan_step", operation: "entry of a scan of 64", run: scan_step },
    HotPath { name: "multi_get", operation: "key of a multi_get of 64", run: multi_get },
];

/// Callgrind counts in here only.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> chelonia::Result<()>) -> chelonia::Result<()> {
    work()
}

fn key(number: u64) -> [u8; 8] {
    // Odd, so a bijection; the keys are spread over the whole range.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn open(path: &Path) -> chelonia::Result<(Database, Keyspace)> {
    open_with(path, LogLayout::Shared)
}

fn open_with(path: &Path, layout: LogLayout) -> chelonia::Result<(Database, Keyspace)> {
    let builder = Database::builder(path).memory(64 << 20).log_layout(layout);
    let database = builder.internals(|internals| internals.stepped = true).open()?;
    let keyspace = database.keyspace("records", KeyspaceOptions::default())?;
    Ok((database, keyspace))
}

fn fill(keyspace: &Keyspace, numbers: std::ops::Range<u64>) -> chelonia::Result<()> {
    numbers.into_iter().try_for_each(|number| keyspace.insert(key(number), [7; 120]))
}

/// A database in which everything is in the tree and nothing in memory.
fn stored(path: &Path) -> chelonia::Result<(Database, Keyspace)> {
    let (database, keyspace) = open(path)?;
    fill(&keyspace, 0..RECORDS)?;
    database.checkpoint()?;
    database.close()?;
    open(path)
}

fn get_all(keyspace: &Keyspace, numbers: std::ops::Range<u64>) -> chelonia::Result<()> {
    for number in numbers {
        assert!(keyspace.get(key(number))?.is_some(), "{number} is missing");
    }
    Ok(())
}

fn insert(path: &Path) -> chelonia::Result<u64> {
    insert_with(path, LogLayout::Shared)
}

fn insert_logs(path: &Path) -> chelonia::Result<u64> {
    insert_with(path, LogLayout::PerThread { logs: 4 })
}

fn insert_with(path: &Path, layout: LogLayout) -> chelonia::Result<u64> {
    let (_database, keyspace) = open_with(path, layout)?;
    fill(&keyspace, 0..OPERATIONS)?;
    measured(&mut || fill(&keyspace, OPERATIONS..2 * OPERATIONS))?;
    Ok(OPERATIONS)
}

fn load(path: &Path) -> chelonia::Result<u64> {
    let (database, keyspace) = open(path)?;
    fill(&keyspace, 0..RECORDS)?;
    database.checkpoint()?;
    measured(&mut || {
        fill(&keyspace, RECORDS..2 * RECORDS)?;
        database.checkpoint()
    })?;
    Ok(RECORDS)
}

fn get_memtable(path: &Path) -> chelonia::Result<u64> {
    let (_database, keyspace) = open(path)?;
    fill(&keyspace, 0..RECORDS)?;
    measured(&mut || get_all(&keyspace, 0..OPERATIONS))?;
    Ok(OPERATIONS)
}

fn get_record(path: &Path) -> chelonia::Result<u64> {
    const HOT: u64 = 1000;
    let (_database, keyspace) = stored(path)?;
    // Records that are read repeatedly get cached.
    (0..100).try_for_each(|_| get_all(&keyspace, 0..HOT))?;
    measured(&mut || (0..OPERATIONS / HOT).try_for_each(|_| get_all(&keyspace, 0..HOT)))?;
    Ok(OPERATIONS)
}

fn get_block(path: &Path) -> chelonia::Result<u64> {
    let (_database, keyspace) = stored(path)?;
    // All blocks, but few of the records that are asked for.
    keyspace.iter().try_for_each(|entry| entry.map(drop))?;
    get_all(&keyspace, 0..RECORDS - OPERATIONS)?;
    measured(&mut || get_all(&keyspace, RECORDS - OPERATIONS..RECORDS))?;
    Ok(OPERATIONS)
}

fn get_absent(path: &Path) -> chelonia::Result<u64> {
    let (_database, keyspace) = stored(path)?;
    get_all(&keyspace, 0..RECORDS)?;
    measured(&mut || {
        for number in RECORDS..RECORDS + OPERATIONS {
            assert!(keyspace.get(key(number))?.is_none(), "{number} was never written");
        }
        Ok(())
    })?;
    Ok(OPERATIONS)
}

fn scan_step(path: &Path) -> chelonia::Result<u64> {
    let (_database, keyspace) = stored(path)?;
    get_all(&keyspace, 0..RECORDS)?;
    let mut steps = 0;
    measured(&mut || {
        for number in 0..OPERATIONS / TOGETHER {
            let range = keyspace.range(key(number)..);
            for entry in range.take(usize::try_from(TOGETHER).unwrap_or(usize::MAX)) {
                drop(entry?);
                steps += 1;
            }
        }
        Ok(())
    })?;
    Ok(steps)
}

fn multi_get(path: &Path) -> chelonia::Result<u64> {
    let (_database, keyspace) = stored(path)?;
    get_all(&keyspace, 0..RECORDS)?;
    measured(&mut || {
        for first in (0..OPERATIONS).step_by(usize::try_from(TOGETHER).unwrap_or(1)) {
            let found = keyspace.multi_get((first..first + TOGETHER).map(key))?;
            assert!(found.iter().all(Option::is_some), "a key is missing");
        }
        Ok(())
    })?;
    Ok(OPERATIONS.next_multiple_of(TOGETHER))
}

/// The instructions of one operation of `path`, counted by valgrind in a process of its own.
fn count(path: &HotPath) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured*"])
        .arg(own)
        .args(["--path", path.name])
        .output()
        .map_err(|error| format!("valgrind cannot be started ({error}); install it"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}\n{report}", path.name, output.status));
    }
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    let instructions: u64 = collected
        .and_then(|(_, count)| count.trim().parse().ok())
        .ok_or_else(|| format!("{}: valgrind printed no count\n{report}", path.name))?;
    let done = String::from_utf8_lossy(&output.stdout);
    let operations: u64 = done
        .trim()
        .parse()
        .map_err(|_| format!("{}: it printed no operations: {done}", path.name))?;
    Ok(instructions / operations.max(1))
}

/// The recorded count of `name`.
fn recorded(name: &str) -> Option<u64> {
    let (_, count) =
        RECORDED.lines().filter_map(|line| line.split_once(',')).find(|it| it.0 == name)?;
    count.trim().parse().ok()
}

/// Counts all paths and prints them; false if one takes too much more than recorded.
fn compare(record: bool) -> Result<bool, String> {
    let (mut lines, mut good) = (String::new(), true);
    println!("{:<14} {:>12} {:>12}  one operation is", "path", "instructions", "recorded");
    for path in &PATHS {
        let now = count(path)?;
        let before = recorded(path.name);
        let too_many = before.is_some_and(|before| now * 100 > before * (100 + TOLERANCE_PERCENT));
        good &= !too_many;
        let before = before.map_or_else(|| "-".to_owned(), |before| before.to_string());
        let mark = if too_many { "  <- too many" } else { "" };
        println!("{:<14} {now:>12} {before:>12}  {}{mark}", path.name, path.operation);
        lines += &format!("{},{now}\n", path.name);
    }
    if record {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.csv");
        std::fs::write(&file, lines).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(good || record)
}

/// Runs one path, under valgrind, and prints how many operations were measured.
fn run(name: &str) -> Result<bool, String> {
    let path = PATHS.iter().find(|path| path.name == name);
    let path = path.ok_or_else(|| format!("there is no path `{name}`"))?;
    let directory = tempfile::tempdir().map_err(|error| format!("a directory: {error}"))?;
    let operations = (path.run)(&directory.path().join("db"));
    println!("{}", operations.map_err(|error| error.to_string())?);
    Ok(true)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["--path", name] => run(name),
        // Arguments added by cargo.
        [] | ["--bench"] => compare(false),
        ["--record", ..] => compare(true),
        _ => Err("allowed is --record, or nothing".to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("a path takes {TOLERANCE_PERCENT}% more instructions than recorded");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
