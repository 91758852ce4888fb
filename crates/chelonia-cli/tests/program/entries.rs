//! Single entries and ranges: `put`, `get`, `delete`, `scan`, `count`, and pipes.

use super::support::{Place, fails, program, succeeded};
use std::io::Read;
use std::process::{Command, Stdio};

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
fn keyspaces_are_separate() {
    let place = Place::new();
    place.print("put", &["key", "1"]);
    place.print("put", &["key", "2", "--keyspace", "other"]);
    assert_eq!(place.print("get", &["key"]), "1\n");
    assert_eq!(place.print("get", &["key", "-k", "other"]), "2\n");
    assert_eq!(place.print("keyspaces", &[]), "default\nother\n");
    let printed = place.print("keyspaces", &["--json"]);
    let printed: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let other = serde_json::json!({"keyspace": "other", "engine": "turtle"});
    assert!(printed.len() == 2 && printed[1] == other, "{printed:?}");
    place.print("delete", &["key"]);
    assert_eq!(place.print("get", &["key", "-k", "other"]), "2\n");
}

#[test]
fn ranges_are_scanned_and_counted_both_ways() {
    let place = Place::new();
    let lines: String = (0..100).map(|n| format!("key-{n:02}\tvalue {n}\n")).collect();
    let printed = succeeded(&place.run_with("import", &[], lines.as_bytes()));
    assert!(printed.starts_with("100 entries"), "{printed}");
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
fn keys_are_scanned_alone() {
    let place = Place::new();
    succeeded(&place.run_with("import", &[], b"a\t1\nb\\x00\t2\nc\t3\n"));
    assert_eq!(place.print("scan", &["--keys"]), "a\nb\\x00\nc\n");
    assert_eq!(place.print("scan", &["--keys", "--reverse", "--limit", "1"]), "c\n");
    assert_eq!(place.print("scan", &["--keys", "--from", "c", "--json"]), "{\"key\":\"c\"}\n");
    let hex = place.print("scan", &["--keys", "--to", "62", "--hex", "--json"]);
    assert_eq!(hex, "{\"key_hex\":\"61\"}\n");
}

#[test]
fn a_keyspace_is_dropped_by_name() {
    let place = Place::new();
    fails(&place.run("drop", &["none"]), 3, "there is no database");
    place.print("put", &["key", "1"]);
    place.print("put", &["key", "2", "-k", "other"]);
    assert_eq!(place.print("drop", &["other"]), "");
    assert_eq!(place.print("keyspaces", &[]), "default\n");
    fails(&place.run("drop", &["other"]), 3, "no keyspace \"other\"");
    fails(&place.run("drop", &[]), 2, "KEYSPACE");
    place.print("put", &["other", "3", "-k", "other"]);
    assert_eq!(place.print("scan", &["-k", "other"]), "other\t3\n");
    assert_eq!(place.print("get", &["key"]), "1\n");
}

#[test]
fn the_checkpoint_distance_is_set_stored_clipped_and_reset() {
    let place = Place::new();
    fails(&place.run("tune", &[]), 3, "there is no database");
    place.print("put", &["key", "1"]);
    fails(&place.run("tune", &["-k", "none"]), 3, "no keyspace \"none\"");
    fails(&place.run("tune", &["--checkpoint-distance", "0"]), 2, "must be at least 1");
    fails(&place.run("tune", &["--checkpoint-distance", "far"]), 2, "size");
    assert!(place.print("tune", &[]).contains("auto"));
    let set = place.print("tune", &["--checkpoint-distance", "4MB"]);
    assert!(set.contains("4.0 MiB") && !set.contains("at most"), "{set}");
    let read = |memory| {
        let json = place.print("tune", &["--json", "--memory", memory]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    assert_eq!(read("1GB")["checkpoint_distance_bytes"], 4 << 20);
    place.print("tune", &["--checkpoint-distance", "64MB"]);
    assert!(place.print("tune", &["--memory", "64MB"]).contains("at most"));
    assert_eq!(read("1GB")["checkpoint_distance_set_bytes"], 64 << 20);
    assert_eq!(read("1GB")["checkpoint_distance_bytes"], 64 << 20);
    assert!(read("64MB")["checkpoint_distance_bytes"].as_u64().unwrap() < 30 << 20);
    place.print("tune", &["--checkpoint-distance", "auto"]);
    fails(&place.run("tune", &["--space-percent", "130"]), 2, "has no option space_percent");
    place.print("put", &["key", "value", "-k", "s", "--engine", "splinter"]);
    fails(&place.run("tune", &["-k", "s", "--space-percent", "90"]), 2, "from 110 to 300");
    place.print("tune", &["-k", "s", "--space-percent", "130"]);
    let kept = place.print("tune", &["-k", "s"]);
    assert!(kept.contains("space percent") && kept.contains("130"), "{kept}");
    assert!(read("64MB")["checkpoint_distance_set_bytes"].is_null());
}

#[test]
fn closed_descriptors_are_errors() {
    let place = Place::new();
    place.print("put", &["a", "value"]);
    let shell = |rest: &str| {
        let line = format!("\"$0\" {rest}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_chelonia")]).arg(place.database());
        shell.output().unwrap()
    };
    for command in [
        "get \"$1\" a >&-",
        "get \"$1\" a --raw >&-",
        "get \"$1\" a >&- </dev/null",
        "scan \"$1\" >&-",
        "stats \"$1\" >&- 0<&-",
        "export \"$1\" >&-",
    ] {
        fails(&shell(command), 3, "standard output: it is closed");
    }
    // Open, but not for writing.
    fails(&shell("get \"$1\" a 1</dev/null"), 3, "standard output: Bad file descriptor");
    fails(&shell("put \"$1\" a <&-"), 3, "standard input: it is closed");
    fails(&shell("import \"$1\" <&-"), 3, "standard input: it is closed");
    assert_eq!(place.print("get", &["a"]), "value\n", "nothing was stored");
    // Commands that neither print nor read do not need them.
    succeeded(&shell("put \"$1\" b value >&- <&-"));
    succeeded(&shell("get \"$1\" b >/dev/null"));
}

#[test]
fn the_reader_may_close_the_pipe() {
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
