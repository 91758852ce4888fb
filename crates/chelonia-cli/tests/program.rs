//! The program as its users meet it: arguments, pipes, exit codes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A directory that vanishes, with a database in it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    fn database(&self) -> PathBuf {
        self.file("db")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `COMMAND DB arguments...` with `input` on standard input.
    fn run_with(&self, command: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = program()
            .arg(command)
            .arg(self.database())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that refuses its arguments does not read its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        self.run_with(command, arguments, b"")
    }

    /// Runs a command that must succeed; gives what it printed.
    fn print(&self, command: &str, arguments: &[&str]) -> String {
        succeeded(&self.run(command, arguments))
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_chelonia"))
}

fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn fails(output: &Output, code: i32, told: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(told), "{error}");
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn values_come_back_in_every_spelling() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    assert_eq!(place.print("get", &["key"]), "value\n");
    assert_eq!(place.print("get", &["6b6579", "--hex"]), "76616c7565\n");
    assert_eq!(place.print("get", &["key", "--raw"]), "value");
    assert_eq!(place.print("get", &["key", "--json"]), "{\"key\":\"key\",\"value\":\"value\"}\n");

    place.print("put", &["\\x00\\xff", "tab\\t", "--text"]);
    assert_eq!(place.print("get", &["00ff", "--hex"]), "74616209\n");
    let all: Vec<u8> = (0..=255).collect();
    succeeded(&place.run_with("put", &["piped"], &all));
    assert_eq!(place.run("get", &["piped", "--raw"]).stdout, all);
    place.print("put", &["number", "-5"]);
    assert_eq!(place.print("get", &["number"]), "-5\n");
    place.print("put", &["--", "-key", "--value"]);
    assert_eq!(place.print("get", &["--", "-key"]), "--value\n");
}

#[test]
fn keyspaces_are_apart() {
    let place = Place::new();
    place.print("put", &["key", "1"]);
    place.print("put", &["key", "2", "--keyspace", "other"]);
    assert_eq!(place.print("get", &["key"]), "1\n");
    assert_eq!(place.print("get", &["key", "-k", "other"]), "2\n");
    assert_eq!(place.print("keyspaces", &[]), "default\nother\n");
    assert!(place.print("keyspaces", &["--json"]).contains("{\"keyspace\":\"other\"}\n"));
    place.print("delete", &["key"]);
    assert_eq!(place.print("get", &["key", "-k", "other"]), "2\n");
}

#[test]
fn exit_codes_tell_what_happened() {
    let place = Place::new();
    fails(&place.run("get", &["key"]), 3, "db");
    fails(&place.run("delete", &["key"]), 3, "db");
    fails(&place.run("checkpoint", &[]), 3, "db");
    assert!(!place.database().exists(), "reading makes no database");
    place.print("put", &["key", "value"]);
    fails(&place.run("get", &["other"]), 1, "not there");
    fails(&place.run("get", &["key", "--keyspace", "none"]), 3, "none");
    fails(&place.run("delete", &["key", "--keyspace", "none"]), 3, "none");
    fails(&place.run("get", &["\\q"]), 2, "no escape");
    fails(&place.run("get", &["0g", "--hex"]), 2, "hexadecimal");
    fails(&place.run("get", &[]), 2, "Usage");
    fails(&place.run("get", &["key", "--memory", "1XB"]), 2, "unit");
    fails(&place.run("get", &["key", "--memory", "1KB"]), 2, "");
    fails(&place.run("scan", &["--prefix", "a", "--from", "b"]), 2, "--prefix");
    fails(&place.run("scan", &["--from", "b", "--to", "a"]), 2, "");
    fails(&place.run("put", &[&"k".repeat((64 << 10) + 1), "v"]), 2, "");
    place.print("delete", &["key", "never-there"]);
    fails(&place.run("get", &["key"]), 1, "not there");
    assert!(succeeded(&program().arg("--help").output().unwrap()).contains("Exit codes"));
}

#[test]
fn ranges_are_scanned_and_counted_both_ways() {
    let place = Place::new();
    let lines: String = (0..100).map(|n| format!("key-{n:02}\tvalue {n}\n")).collect();
    let told = succeeded(&place.run_with("import", &[], lines.as_bytes()));
    assert!(told.starts_with("100 entries"), "{told}");
    assert_eq!(place.print("scan", &[]), lines);
    let reverse: String = lines.lines().rev().map(|line| format!("{line}\n")).collect();
    assert_eq!(place.print("scan", &["--reverse"]), reverse);
    assert_eq!(place.print("scan", &["--from", "key-98"]).lines().count(), 2);
    assert_eq!(
        place.print("scan", &["--to", "key-03", "--reverse", "--limit", "1"]),
        "key-02\tvalue 2\n"
    );
    assert_eq!(place.print("scan", &["--prefix", "key-1", "--limit", "3"]).lines().count(), 3);
    assert_eq!(place.print("scan", &["--limit", "0"]), "");
    assert_eq!(place.print("scan", &["--prefix", "x"]), "");
    let json = place.print("scan", &["--from", "key-99", "--json"]);
    assert_eq!(json, "{\"key\":\"key-99\",\"value\":\"value 99\"}\n");
    assert_eq!(place.print("count", &[]), "100\n");
    assert_eq!(place.print("count", &["--prefix", "key-5"]), "10\n");
    assert_eq!(
        place.print("count", &["--from", "key-10", "--to", "key-15", "--json"]),
        "{\"count\":5}\n"
    );
}

#[test]
fn exports_are_imported_unchanged() {
    let place = Place::new();
    let entries: String = (0..=255_u8)
        .map(|byte| format!("{byte:02x}00\t{byte:02x}2c2209205c0a0d{byte:02x}\n"))
        .collect();
    succeeded(&place.run_with("import", &["--hex"], format!("\t\n{entries}").as_bytes()));
    let whole = place.print("scan", &["--hex"]);
    assert_eq!(whole.lines().count(), 257);
    for format in ["tsv", "csv", "jsonl"] {
        for options in [&[][..], &["--hex"], &["--header"]] {
            let file = place.file(&format!("{}.{format}", options.join("")));
            let keyspace = format!("{format}{}", options.join(""));
            let told = place.print("export", &[&[name(&file)], options].concat());
            assert_eq!(told, "257 entries written\n");
            place.print("import", &[&[name(&file), "--keyspace", &keyspace], options].concat());
            assert_eq!(place.print("scan", &["--hex", "-k", &keyspace]), whole, "{keyspace}");
        }
    }
    // Through a pipe, the format named.
    let piped = place.run("export", &["--format", "jsonl", "--prefix", "a\\0"]).stdout;
    let arguments = ["-", "--format", "jsonl", "-k", "piped", "--json"];
    let told = succeeded(&place.run_with("import", &arguments, &piped));
    assert!(told.contains("\"stored\":1"), "{told}");
}

#[test]
fn bad_lines_are_told_or_skipped() {
    let place = Place::new();
    let mut input: Vec<u8> = Vec::new();
    for number in 1..=2_500 {
        let line =
            if number == 2_100 { "no tab\n".to_owned() } else { format!("{number:05}\tv\n") };
        input.extend_from_slice(line.as_bytes());
    }
    fails(&place.run_with("import", &[], &input), 2, "line 2100");
    assert_eq!(place.print("count", &[]), "2000\n", "whole batches before the line stay");
    let skipped = place.run_with("import", &["--skip-bad"], &input);
    assert!(String::from_utf8_lossy(&skipped.stderr).contains("line 2100"));
    assert!(succeeded(&skipped).contains("1 bad skipped"));
    assert_eq!(place.print("count", &[]), "2499\n");
    fails(&place.run("import", &[name(&place.file("none.tsv"))]), 3, "none.tsv");
}

#[test]
fn the_reader_of_a_pipe_may_go() {
    let place = Place::new();
    let lines: String = (0..50_000).map(|n| format!("{n:08}\t{}\n", "v".repeat(40))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    for command in ["scan", "export"] {
        let mut child = program()
            .arg(command)
            .arg(place.database())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command}");
    }
}

#[test]
fn the_database_as_a_whole_is_told() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    place.print("checkpoint", &[]);
    let verified = place.print("verify", &[]);
    assert!(verified.contains("entries") && verified.contains("findings"), "{verified}");
    assert!(place.print("verify", &["--json"]).contains("\"clean\":true"));
    let stats = place.print("stats", &[]);
    assert!(stats.contains("write amplification") && stats.contains("keyspace default"), "{stats}");
    let json: serde_json::Value = serde_json::from_str(&place.print("stats", &["--json"])).unwrap();
    assert_eq!(json["keyspaces"][0]["name"], "default");
    assert!(place.print("dump", &[]).contains("superblock"));
    fails(&program().args(["dump", name(&place.file("none"))]).output().unwrap(), 3, "none");
}

#[test]
fn damage_is_found_and_named() {
    const BLOCK: usize = 4096;
    let place = Place::new();
    let lines: String = (0..5_000).map(|n| format!("{n:08}\t{}\n", "v".repeat(40))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    place.print("checkpoint", &[]);
    place.print("verify", &[]);
    let data = place.database().join("data");
    let whole = std::fs::read(&data).unwrap();
    let mut found = 0;
    let used = |block: &usize| whole[block * BLOCK..].iter().take(BLOCK).any(|byte| *byte != 0);
    // Beyond the two superblocks; one damaged block at a time.
    for block in (2..whole.len() / BLOCK).filter(used).step_by(7) {
        let mut damaged = whole.clone();
        damaged[block * BLOCK + 100] ^= 0x10;
        std::fs::write(&data, damaged).unwrap();
        let output = place.run("verify", &["--json"]);
        let offset = block * BLOCK;
        match output.status.code() {
            // Nothing refers to the block any more.
            Some(0) => continue,
            Some(1) => {
                let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(report["clean"], false);
                assert_eq!(report["findings"][0]["file"], "data");
                assert_eq!(report["findings"][0]["offset"], offset);
                fails(&output, 1, "damaged");
            }
            code => panic!("{code:?} for damage at {offset}"),
        }
        found += 1;
    }
    assert!(found > 0, "damage in what is stored is found");
    std::fs::write(&data, &whole).unwrap();
    place.print("verify", &[]);
}

#[test]
fn the_log_is_read_and_its_damage_named() {
    let place = Place::new();
    // Nothing is drained: all of it is in the log.
    let lines: String = (0..500).map(|n| format!("{n:08}\t{}\n", "v".repeat(40))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    let report: serde_json::Value =
        serde_json::from_str(&place.print("verify", &["--json"])).unwrap();
    assert_eq!(report["clean"], true);
    let log_bytes = report["log_bytes"].as_u64().unwrap();
    assert!(log_bytes > 500 * 50, "{report}");
    assert!(place.print("verify", &[]).contains("log read"));
    // The import closed the database, which says how far the log is durable.
    let log = place.database().join("log-0000");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[3 * 4096 + 100] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let output = place.run("verify", &["--json"]);
    fails(&output, 1, "damaged");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["clean"], false);
    assert_eq!(report["findings"][0]["file"], "log-0000");
    let offset = report["findings"][0]["offset"].as_u64().unwrap();
    assert!((4096..=3 * 4096 + 100).contains(&offset), "{report}");
}

#[test]
fn one_process_writes_at_a_time() {
    let place = Place::new();
    let mut writer =
        program().arg("tour-writer").arg(place.database()).stdout(Stdio::piped()).spawn().unwrap();
    // It has the database open once it tells its first write; then it waits for the pipe.
    let mut first = [0; 2];
    writer.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"1\n");
    fails(&place.run("put", &["key", "value"]), 3, "open");
    fails(&place.run("get", &["key"]), 3, "open");
    writer.kill().unwrap();
    writer.wait().unwrap();
    place.print("put", &["key", "value"]);
    assert_eq!(place.print("get", &["key"]), "value\n");
}

#[test]
fn the_tour_runs_on_a_small_folder() {
    let place = Place::new();
    let source = place.file("source");
    for folder in ["a", "b"] {
        std::fs::create_dir_all(source.join(folder)).unwrap();
        for number in 0..40 {
            let content = format!("{folder} {number}\n").repeat(number * 10);
            std::fs::write(source.join(folder).join(format!("{number}.txt")), content).unwrap();
        }
    }
    let kept = place.file("toured");
    let run = |extra: &[&str]| {
        program()
            .args(["tour", name(&source), "--updates", "5000", "--acknowledgements", "200"])
            .args(["--memory", "64MB"])
            .args(extra)
            .output()
            .unwrap()
    };
    let told = succeeded(&run(&["--db", name(&kept)]));
    assert!(told.contains("Everything compared equal"), "{told}");
    assert!(told.contains("every acknowledged write is there"), "{told}");
    fails(&run(&["--db", name(&kept)]), 2, "not empty");
    let count = program().args(["count", name(&kept.join("killed")), "-k", "records"]).output();
    let count: u64 = succeeded(&count.unwrap()).trim().parse().unwrap();
    assert!(count >= 200, "{count}");
    let json: serde_json::Value = serde_json::from_str(&succeeded(&run(&["--json"]))).unwrap();
    assert!(json["steps"].as_array().unwrap().len() > 10);
    let empty = place.file("empty");
    std::fs::create_dir(&empty).unwrap();
    fails(&program().args(["tour", name(&empty)]).output().unwrap(), 2, "no files");
}
