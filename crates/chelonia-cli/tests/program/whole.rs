//! The database as a whole: figures, structure, damage, who has it open.

use super::support::{Place, fails, name, program, succeeded};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

#[test]
fn the_database_as_a_whole_is_told() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    place.print("checkpoint", &[]);
    let verified = place.print("verify", &[]);
    assert!(verified.contains("entries in trees") && verified.contains("findings"), "{verified}");
    assert!(place.print("verify", &["--json"]).contains("\"clean\":true"));
    let stats = place.print("stats", &[]);
    assert!(stats.contains("write amplification") && stats.contains("keyspace default"), "{stats}");
    // Nobody takes the counters for those of the database's life.
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
fn a_keyspace_is_made_with_an_engine_and_keeps_it() {
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
    fails(&place.run("get", &["key", "--engine", "oak"]), 2, "turtle and autumn");
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
    // What a process leaves that dies: nothing is flushed, all of it is in the log.
    let alive = place.file("alive");
    let database = chelonia::Database::open(&alive).unwrap();
    let keyspace = database.keyspace("default", chelonia::KeyspaceOptions::new()).unwrap();
    for number in 0..500 {
        keyspace.insert(format!("{number:08}"), "v".repeat(40)).unwrap();
        if number % 250 == 249 {
            // Blocks after this say how far the log is durable.
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
    let told = place.print("verify", &[]);
    let figure = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing: {told}")).trim().to_owned()
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
fn what_is_lost_of_the_data_file_is_damage() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let data = place.database().join("data");
    let whole = std::fs::read(&data).unwrap();
    let mut zeroed = whole.clone();
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
        std::fs::write(&data, &whole).unwrap();
    }
    assert_eq!(place.print("get", &["key"]), "value\n");
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
    let held =
        format!("{}: the database is in use by pid {}", name(&place.database()), writer.id());
    for command in [&["put", "key", "value"][..], &["get", "key"], &["scan"], &["stats"]] {
        let output = place.run(command[0], &command[1..]);
        fails(&output, 3, &held);
    }
    // The time runs out: told once, and the exit code is the same.
    for command in [&["put", "key", "value"][..], &["get", "key"], &["dump"], &["import", "-"]] {
        let output = place.run(command[0], &[&command[1..], &["--wait", "0.15"]].concat());
        fails(&output, 3, &format!("{held}: waiting at most 0.15 s\n"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.lines().count(), 2, "{told}");
    }
    // This one waits until it is told that it may: first it says that it waits.
    let mut waiting = program()
        .arg("put")
        .arg(place.database())
        .args(["key", "value", "--wait", "100000"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.ends_with(&format!("{held}: waiting at most 100000 s\n")), "{line}");
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(waiting.wait().unwrap().success());
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(place.print("get", &["key"]), "value\n");
    // Waiting is for what is open, not for what is not there.
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
    // Of both keyspaces: each close makes a checkpoint.
    assert_eq!(stored, 60_001);
    // The first pivot of a tree is the empty key, the others are what the entries are.
    let (first, others): (Vec<_>, Vec<_>) = of("pivot").into_iter().partition(|it| it["key"] == "");
    assert!(!first.is_empty() && !others.is_empty());
    for pivot in others {
        assert!(pivot["key_hex"].as_str().unwrap().starts_with("6bff"), "{pivot}");
    }
    let hex = dump(&["--hex"]);
    assert!(hex.iter().all(|line| line.get("key").is_none()));
    fails(&place.run("dump", &["--hex"]), 2, "--json");
}
