//! The program as its users run it, with a smoke run of every phase on every engine of Chelonia:
//! small, checking results and never speed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Every phase there is; `o` runs only if it is named.
const ALL: &str = "load,a,b,c,f,d,cu,cm,e,q,m,o";

/// Their results.
const PHASES: [&str; 20] = [
    "load",
    "load+settle",
    "a",
    "a+settle",
    "b",
    "b+settle",
    "c",
    "f",
    "f+settle",
    "d",
    "d+settle",
    "cu",
    "cm",
    "e",
    "e+settle",
    "q",
    "q+settle",
    "m",
    "o",
    "o+settle",
];

fn program(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chelonia-bench"))
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    let output = program(directory, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, expected: &str) {
    let directory = TempDir::new().unwrap();
    let output = program(directory.path(), arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(expected), "{error}");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_phase_of_every_own_engine_reads_correct_values() {
    for engine in chelonia::EngineKind::ALL {
        let directory = TempDir::new().unwrap();
        let work = ["--records", "20k", "--ops", "6k", "--scan-ops", "300", "--memory", "32MiB"];
        let run = ["run", "--engine", engine.name(), "--json", "results", "--phases", ALL];
        let table = succeeds(directory.path(), &[&run[..], &work].concat());
        assert!(table.contains("load+settle"), "{table}");
        let results = lines(&directory.path().join("results"));
        let phases: Vec<&str> =
            results.iter().map(|result| result["phase"].as_str().unwrap()).collect();
        assert_eq!(phases, PHASES);
        for result in &results {
            assert_eq!(result["engine"], engine.name());
            assert!(result["ops"].as_u64().unwrap() >= 300, "{result}");
            assert!(result["disk_bytes"].as_u64().unwrap() > 20_000 * 128, "{result}");
            assert!(result["latency_us"].as_object().unwrap().len() <= 3, "{result}");
        }
        let load = &results[1];
        assert_eq!((&load["ops"], &load["settings"]["settled"]), (&20_000.into(), &true.into()));
        assert!(load["log_bytes"].as_u64().unwrap() > 20_000 * 128);
        assert!(load["live_bytes"] == 20_000 * 128);
        let overwritten = results.last().unwrap();
        assert_eq!(overwritten["ops"], 40_000, "two for each record, whatever --ops says");
        let [disk, log] = ["disk_bytes", "log_disk_bytes"].map(|name| overwritten[name].as_u64());
        assert!(log.unwrap() > 0 && log < disk, "{overwritten}");
        let left = std::fs::read_dir(directory.path().join("chelonia-bench-data")).unwrap();
        assert_eq!(left.count(), 0);
    }
}

/// The stores of others that this build has, and whether they read through the page cache.
fn peers() -> Vec<(&'static str, bool)> {
    let peers = [
        (cfg!(feature = "rocksdb"), "rocksdb", false),
        (cfg!(feature = "wiredtiger"), "wiredtiger", false),
        (cfg!(feature = "lmdb"), "lmdb", true),
        (cfg!(feature = "fjall"), "fjall", true),
        (cfg!(feature = "redb"), "redb", true),
        (cfg!(feature = "bf-tree"), "bf-tree", false),
    ];
    let built = peers.into_iter().filter(|(is_built, ..)| *is_built);
    built.map(|(_, name, uses_page_cache)| (name, uses_page_cache)).collect()
}

#[test]
fn every_phase_of_every_peer_of_this_build_reads_correct_values() {
    for (engine, uses_page_cache) in peers() {
        let directory = TempDir::new().unwrap();
        let work = ["--records", "20k", "--ops", "6k", "--scan-ops", "300", "--memory", "64MB"];
        let run = ["run", "--engine", engine, "--json", "results", "--phases", ALL];
        let table = succeeds(directory.path(), &[&run[..], &work].concat());
        assert!(table.contains("load+settle"), "{table}");
        let results = lines(&directory.path().join("results"));
        let phases: Vec<&str> =
            results.iter().map(|result| result["phase"].as_str().unwrap()).collect();
        assert_eq!(phases, PHASES, "{engine}");
        let settings = &results[1]["settings"];
        assert_eq!((&results[1]["ops"], &settings["settled"]), (&20_000.into(), &true.into()));
        assert!(settings["store"]["log"].is_string(), "{settings}");
        let limit = settings["memory_limit"].as_str().unwrap();
        let is_reported = match uses_page_cache {
            true => limit.starts_with("memory cgroup") || limit.starts_with("memory not limited"),
            false => limit == "by the store",
        };
        assert!(is_reported, "{engine}: {limit}");
    }
}

#[test]
#[cfg(feature = "redb")]
fn a_store_that_is_killed_for_its_memory_says_so() {
    let directory = TempDir::new().unwrap();
    // A thousand writes wait in the session: half a gigabyte, where 100 MB are allowed.
    let line = ["compare", "--engines", "redb", "--records", "1k", "--value-size", "500000"];
    let few = ["--phases", "load", "--threads", "1", "--memory", "1MB", "--json", "results"];
    let ended = program(directory.path(), &[&line[..], &few].concat());
    let (out, error) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    if ended.status.code() == Some(0) {
        // Only root may make groups.
        assert!(out.contains("memory not limited"), "{out}{error}");
        return;
    }
    assert_eq!(ended.status.code(), Some(3), "{out}{error}");
    let expected = "redb: not a phase was done; killed for memory beyond";
    assert!(out.contains(expected) && out.starts_with("20"), "{out}{error}");
    let data = directory.path().join("chelonia-bench-data");
    assert_eq!(std::fs::read_dir(data).unwrap().count(), 0, "its database is removed");
    let again = program(directory.path(), &[&line[..], &few, &["--resume"]].concat());
    assert_eq!(again.status.code(), Some(0), "it is not done again");
    assert!(String::from_utf8_lossy(&again.stdout).contains("killed for memory beyond"));
}

#[test]
fn distances_turn_between_phases_and_other_keys_and_sizes_do() {
    let directory = TempDir::new().unwrap();
    std::fs::write(
        directory.path().join("words"),
        (0..3000)
            .fold(String::new(), |text, number| text + &format!("word {}\n", number * 7919 % 3000)),
    )
    .unwrap();
    let run = ["run", "--engine", "turtle", "--memory", "32MiB", "--ops", "2k", "--quiet"];
    let few = ["--scan-ops", "100", "--json", "results", "--detail"];
    for keys in ["file:words", "timestamps", "mixed:10"] {
        let work = ["--keys", keys, "--value-size", "16..400", "--threads", "3"];
        let records: &[&str] = if keys.starts_with("file") { &[] } else { &["--records", "3k"] };
        succeeds(directory.path(), &[&run[..], &few, &work, records].concat());
    }
    let distances = ["--checkpoint-distance", "4MiB,1MiB", "--phases", "load,a", "--records", "3k"];
    succeeds(directory.path(), &[&run[..], &few, &distances].concat());
    let results = lines(&directory.path().join("results"));
    let by_default = PHASES.iter().filter(|name| !name.starts_with('o')).count();
    assert_eq!(results.len(), 3 * by_default + 4);
    let distance = |result: &Value| result["settings"]["store"]["checkpoint_distance"].clone();
    let last = &results[results.len() - 4..];
    assert_eq!(
        (distance(&last[0]), distance(&last[2])),
        ("4194304 bytes".into(), "1048576 bytes".into())
    );
    assert!(last.iter().step_by(2).all(|result| result["detail"].is_object()));
}

#[test]
fn a_comparison_goes_on_where_it_was_stopped() {
    let directory = TempDir::new().unwrap();
    let work = ["--records", "2k", "--ops", "1k", "--phases", "load,c", "--memory", "32MiB"];
    let compare = |more: &[&str]| {
        let line = ["compare", "--engines", "turtle", "--repeats", "2", "--json", "results"];
        program(directory.path(), &[&line[..], &work, more].concat())
    };
    let first = compare(&["--markdown", "tables.md"]);
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    let path = directory.path().join("results");
    let results = lines(&path);
    let repeats: Vec<&Value> = results.iter().map(|line| &line["settings"]["repeat"]).collect();
    assert_eq!(repeats, [1, 1, 1, 2, 2, 2]);
    let tables = std::fs::read_to_string(directory.path().join("tables.md")).unwrap();
    assert!(tables.contains("### Times as fast as turtle"), "{tables}");
    // Existing results are neither overwritten nor mixed with other work.
    let again = compare(&[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--resume"));
    let other = compare(&["--resume", "--seed", "9"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("other options (seed)"));
    // Stopped in the second run: its repeat is done again, the first is not.
    let text = std::fs::read_to_string(&path).unwrap();
    let first: String = text.split_inclusive('\n').take(3).collect();
    std::fs::write(&path, format!("{first}{}", &text[first.len()..first.len() + 40])).unwrap();
    assert_eq!(compare(&["--resume"]).status.code(), Some(0));
    let resumed = lines(&path);
    assert_eq!((resumed.len(), &resumed[..3]), (6, &results[..3]));
    assert_ne!(resumed[3]["seconds"], results[3]["seconds"]);
}

#[test]
fn a_figure_is_run_once_drawn_again_and_reported() {
    let directory = TempDir::new().unwrap();
    let work = ["--records", "4k", "--memory", "32MiB", "--checkpoint-distance", "512kB,1MB"];
    let wm = |more: &[&str]| {
        let line = ["figure", "wm", "--engines", "turtle", "--out", "out"];
        program(directory.path(), &[&line[..], &work, more].concat())
    };
    let first = wm(&[]);
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    let file = |name: &str| directory.path().join("out").join(name);
    let results = lines(&file("wm.jsonl"));
    assert_eq!(results.len(), 4);
    let csv = std::fs::read_to_string(file("wm.csv")).unwrap();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.contains("turtle,512000,") && csv.contains("turtle,1000000,"), "{csv}");
    assert!(std::fs::read(file("wm.svg")).unwrap().starts_with(b"<svg "));
    // Existing results are not overwritten.
    let again = wm(&[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--from"));
    succeeds(directory.path(), &["figure", "wm", "--from", "out", "--out", "other"]);
    let both = ["out/wm.svg", "other/wm.svg"].map(|path| directory.path().join(path));
    assert_eq!(std::fs::read(&both[0]).unwrap(), std::fs::read(&both[1]).unwrap());
    assert_eq!(lines(&file("wm.jsonl")), results);
    succeeds(directory.path(), &["report", "out", "--html", "page.html"]);
    let page = std::fs::read_to_string(directory.path().join("page.html")).unwrap();
    assert_eq!(page.matches("<svg ").count(), 1);
}

#[test]
fn growth_has_five_sizes_and_is_drawn_again() {
    let directory = TempDir::new().unwrap();
    let line = ["figure", "growth", "--records", "2k", "--ops", "500", "--out", "out"];
    let ended = program(directory.path(), &line);
    let lines_of_runs = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{lines_of_runs}");
    let last = "10 of 10: turtle, 8,000 records, memory 33.6 MB, checkpoint";
    assert!(lines_of_runs.contains(last), "{lines_of_runs}");
    let file = |name: &str| directory.path().join("out").join(name);
    let results = lines(&file("growth.jsonl"));
    // Five sizes, each with two distances: the load, with its settle, and the reads.
    assert_eq!(results.len(), 5 * 2 * 3);
    let csv = std::fs::read_to_string(file("growth.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 5 * 2, "{csv}");
    assert!(csv.contains("turtle,write_amplification,fixed,4200000,8000,1024000,"), "{csv}");
    succeeds(directory.path(), &["figure", "growth", "--from", "out", "--out", "other"]);
    let both = ["out/growth.svg", "other/growth.svg"].map(|path| directory.path().join(path));
    assert_eq!(std::fs::read(&both[0]).unwrap(), std::fs::read(&both[1]).unwrap());
}

#[test]
fn memory_and_means_are_in_the_details_of_a_figure() {
    let directory = TempDir::new().unwrap();
    let work = ["--records", "3k", "--phases", "load,a", "--memory", "32MiB"];
    succeeds(directory.path(), &[&["figure", "memory", "--engines", "turtle"][..], &work].concat());
    let results = lines(&directory.path().join("chelonia-bench-figures/memory.jsonl"));
    let mut last = 0.0;
    for result in &results {
        for sample in result["detail"]["rss_bytes_over_time"].as_array().unwrap() {
            assert!(sample[0].as_f64().unwrap() >= last && sample[1].as_u64().unwrap() > 1 << 20);
            last = sample[0].as_f64().unwrap();
        }
    }
    assert!(results[0]["detail"]["latency_us_mean"]["insert"].as_f64().unwrap() > 0.0);
    assert!(last > 0.0 && results[1]["detail"]["latency_us_mean"].is_null());
}

#[test]
fn errors_name_the_allowed_values() {
    fails(&["run", "--engine", "zebra"], 2, "allowed are turtle");
    fails(&["run", "--engine", "turtle", "--phases", "a"], 2, "`load` comes first");
    fails(&["run", "--engine", "turtle", "--memory", "1MB", "--records", "10"], 3, "minimum");
    fails(&["compare", "--engines", "turtle", "--baseline", "redb"], 2, "one of the stores");
    #[cfg(not(feature = "rocksdb"))]
    fails(&["run", "--engine", "rocksdb"], 2, "installing the system package librocksdb-dev");
    fails(&["compare", "--engines", "turtle,turtle"], 2, "twice");
    fails(&["figure", "pie"], 2, "sensitivity");
    fails(&["figure", "wm", "--phases", "load"], 2, "leave it out");
    fails(&["figure", "latency", "--repeats", "3"], 2, "1 is allowed");
    fails(&["figure", "wm", "--from", "none"], 3, "read results from none");
    fails(&["report", "none"], 3, "look into none");
    fails(&["report", "."], 2, "holds no results");
    let line = ["run", "--engine", "turtle", "--keys", "file:none"];
    fails(&line, 3, "read keys from none");
}
