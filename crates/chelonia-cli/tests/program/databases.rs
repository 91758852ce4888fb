//! Commands on a complete database: statistics, structure, damage, locking.

use super::support::{Place, fails, name, program, succeeded};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

#[test]
fn statistics_of_the_database_are_printed() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    place.print("checkpoint", &[]);
    let verified = place.print("verify", &[]);
    assert!(verified.contains("entries in trees") && verified.contains("findings"), "{verified}");
    assert!(place.print("verify", &["--json"]).contains("\"clean\":true"));
    let stats = place.print("stats", &[]);
    assert!(stats.contains("write amplification") && stats.contains("keyspace default"), "{stats}");
    // The output says that counters start with this open.
    assert!(stats.lines().any(|line| line == "commits, since this open"), "{stats}");
    assert!(stats.lines().any(|line| line == "disk"), "{stats}");
    let json: serde_json::Value = serde_json::from_str(&place.print("stats", &["--json"])).unwrap();
    assert_eq!(json["keyspaces"][0]["name"], "default");
    assert!(json["background"]["oldest_pinned_seqno"].is_null());
    assert!(stats.contains("oldest pinned seqno  none"), "{stats}");
    assert!(place.print("dump", &[]).contains("superblock"));
    fails(&program().args(["dump", name(&place.file("none"))]).output().unwrap(), 3, "none");
}

#[test]
fn a_backup_is_a_database() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let copy = place.file("copy");
    let made = place.print("backup", &[name(&copy)]);
    assert!(made.contains("entries           1\n"), "{made}");
    place.print("put", &["key", "later"]);
    let found = program().args(["get", name(&copy), "key"]).output().unwrap();
    assert_eq!(succeeded(&found).trim_end(), "value");
    fails(&place.run("backup", &[name(&copy)]), 2, "use an empty one");
    let json = place.print("backup", &[name(&place.file("second")), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["seqno"], &json["keyspaces"]), (&2.into(), &1.into()));
}

#[test]
fn the_engine_of_a_keyspace_is_fixed_at_its_creation() {
    let place = Place::new();
    let autumn = ["--keyspace", "leaves", "--engine", "autumn"];
    place.print("put", &[&["key", "value"], &autumn[..]].concat());
    place.print("checkpoint", &[]);
    assert!(place.print("stats", &[]).contains("autumn"));
    assert!(place.print("dump", &[]).contains("level 0"));
    assert_eq!(place.print("get", &["key", "--keyspace", "leaves"]).trim_end(), "value");
    fails(
        &place.run("get", &["key", "-k", "leaves", "--engine", "turtle"]),
        2,
        "cannot be changed",
    );
    let names = "turtle, autumn, splinter, treeline, bminus";
    fails(&place.run("get", &["key", "--engine", "oak"]), 2, names);
}

#[test]
fn options_and_pages_of_bminus_are_shown() {
    let place = Place::new();
    place.print("put", &["key", "value", "-k", "pages", "--engine", "bminus"]);
    place.print("checkpoint", &[]);
    let dump = place.print("dump", &[]);
    for shown in ["bminus", "page bytes", "segment bytes", "delta bytes", "shadow"] {
        assert!(dump.contains(shown), "{shown}: {dump}");
    }
    assert!(place.print("stats", &[]).contains("bminus"));
    assert_eq!(place.print("get", &["key", "-k", "pages"]).trim_end(), "value");
    let asked = place.run("tune", &["-k", "pages", "--space-percent", "130"]);
    fails(&asked, 2, "engine bminus has no option space_percent");
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
    let undamaged = std::fs::read(&data).unwrap();
    let mut found = 0;
    let used = |block: &usize| undamaged[block * BLOCK..].iter().take(BLOCK).any(|byte| *byte != 0);
    // After the two superblocks; one damaged block at a time.
    for block in (2..undamaged.len() / BLOCK).filter(used).step_by(7) {
        let mut damaged = undamaged.clone();
        damaged[block * BLOCK + 100] ^= 0x10;
        std::fs::write(&data, damaged).unwrap();
        let output = place.run("verify", &["--json"]);
        let offset = block * BLOCK;
        match output.status.code() {
            // The block is unused.
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
    std::fs::write(&data, &undamaged).unwrap();
    place.print("verify", &[]);
}

#[test]
fn the_log_is_read_and_its_damage_named() {
    let place = Place::new();
    // The files of a dead process: nothing is flushed, everything is in the log.
    let alive = place.file("alive");
    let database = chelonia::Database::open(&alive).unwrap();
    let keyspace = database.keyspace("default", chelonia::KeyspaceOptions::new()).unwrap();
    for number in 0..500 {
        keyspace.insert(format!("{number:08}"), "v".repeat(40)).unwrap();
        if number % 250 == 249 {
            // Later blocks record how far the log is durable.
            database.sync().unwrap();
        }
    }
    std::fs::create_dir(place.database()).unwrap();
    for entry in std::fs::read_dir(&alive).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), place.database().join(entry.file_name())).unwrap();
    }
    drop((keyspace, database));
    let report: serde_json::Value =
        serde_json::from_str(&place.print("verify", &["--json"])).unwrap();
    assert_eq!(report["clean"], true);
    let log_bytes = report["log_bytes"].as_u64().unwrap();
    assert!(log_bytes > 500 * 50, "{report}");
    assert_eq!((&report["entries"], &report["log_entries"]), (&0.into(), &500.into()));
    let printed = place.print("verify", &[]);
    let figure = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing: {printed}")).trim().to_owned()
    };
    assert_eq!(figure("entries in trees"), "0");
    assert_eq!(figure("writes in the log"), "500");
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
fn a_truncated_or_missing_data_file_is_damage() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let data = place.database().join("data");
    let undamaged = std::fs::read(&data).unwrap();
    let mut zeroed = undamaged.clone();
    zeroed[..8192].fill(0);
    for (content, file) in [(Some(zeroed), "data"), (None, "log-0000")] {
        std::fs::remove_file(&data).unwrap();
        if let Some(content) = content {
            std::fs::write(&data, content).unwrap();
        }
        let output = place.run("verify", &["--json"]);
        fails(&output, 1, "is damaged");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["findings"][0]["kind"], "Corrupt");
        assert_eq!(report["findings"][0]["file"], file);
        assert!(report["findings"][0]["offset"].is_u64(), "{report}");
        let path = place.database().join(file);
        let named = format!("(file {}, offset", path.display());
        for command in [&["get", "key"][..], &["put", "key", "other"], &["delete", "key"]] {
            fails(&place.run(command[0], &command[1..]), 3, &named);
        }
        std::fs::write(&data, &undamaged).unwrap();
    }
    assert_eq!(place.print("get", &["key"]), "value\n");
}

#[test]
fn one_process_writes_at_a_time() {
    let place = Place::new();
    let mut writer =
        program().arg("tour-writer").arg(place.database()).stdout(Stdio::piped()).spawn().unwrap();
    // The database is open once the first write is printed; then the writer waits for the pipe.
    let mut first = [0; 2];
    writer.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"1\n");
    let held =
        format!("{}: the database is in use by pid {}", name(&place.database()), writer.id());
    for command in [&["put", "key", "value"][..], &["get", "key"], &["scan"], &["stats"]] {
        let output = place.run(command[0], &command[1..]);
        fails(&output, 3, &held);
    }
    // The wait times out: it is reported once, and the exit code is the same.
    for command in [&["put", "key", "value"][..], &["get", "key"], &["dump"], &["import", "-"]] {
        let output = place.run(command[0], &[&command[1..], &["--wait", "0.15"]].concat());
        fails(&output, 3, &format!("{held}: waiting at most 0.15 s\n"));
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(printed.lines().count(), 2, "{printed}");
    }
    // This one waits until the database is closed; first it prints that it waits.
    let mut waiting = program()
        .arg("put")
        .arg(place.database())
        .args(["key", "value", "--wait", "100000"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    printed.read_line(&mut line).unwrap();
    assert!(line.ends_with(&format!("{held}: waiting at most 100000 s\n")), "{line}");
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(waiting.wait().unwrap().success());
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(place.print("get", &["key"]), "value\n");
    // A command waits for an open database, not for a missing one.
    let none = program().args(["count", name(&place.file("none")), "--wait", "100000"]).output();
    fails(&none.unwrap(), 3, "no database");
    fails(&place.run("count", &["--wait=-1"]), 2, "seconds");
}

#[test]
fn a_dump_is_json_line_by_line() {
    let place = Place::new();
    let lines: String =
        (0..60_000).map(|n| format!("k\\xff{n:08}\t{}\n", "v".repeat(90))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    place.print("checkpoint", &[]);
    place.print("put", &["key", "value", "-k", "other \"one\"\n"]);
    let dump = |extra: &[&str]| -> Vec<serde_json::Value> {
        let text = place.print("dump", &[&["--json"], extra].concat());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let dumped = dump(&[]);
    let of = |kind: &str| -> Vec<&serde_json::Value> {
        dumped.iter().filter(|line| line["kind"] == kind).collect()
    };
    let text = place.print("dump", &[]);
    assert_eq!(dumped.len(), text.lines().count());
    assert!(!text.contains(['{', '}']) && !text.contains("Some("), "for people: {text}");
    assert!(of("superblock")[0]["generation"].as_u64().unwrap() > 0);
    assert!(of("log")[0]["seqno"].as_u64().unwrap() >= 60_000);
    assert!(of("catalog")[0]["extent"]["first_block"].is_u64());
    let names: Vec<_> = of("keyspace").iter().map(|line| line["name"].clone()).collect();
    assert_eq!(names, ["default", "other \"one\"\n"]);
    assert_eq!(of("keyspace")[0]["engine"], "turtle");
    let stored: u64 =
        of("leaf").iter().chain(&of("segment")).map(|run| run["entries"].as_u64().unwrap()).sum();
    // In both keyspaces: each close makes a checkpoint.
    assert_eq!(stored, 60_001);
    // The first pivot of a tree is the empty key; entries determine the others.
    let (first, others): (Vec<_>, Vec<_>) = of("pivot").into_iter().partition(|it| it["key"] == "");
    assert!(!first.is_empty() && !others.is_empty());
    for pivot in others {
        assert!(pivot["key_hex"].as_str().unwrap().starts_with("6bff"), "{pivot}");
    }
    let hex = dump(&["--hex"]);
    assert!(hex.iter().all(|line| line.get("key").is_none()));
    fails(&place.run("dump", &["--hex"]), 2, "--json");
}
