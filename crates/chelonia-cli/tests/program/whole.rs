//! The database as a whole: figures, structure, damage, who has it open.

use super::support::{Place, fails, name, program, succeeded};
use std::io::Read;
use std::process::Stdio;

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
            // The open itself reads it.
            _ => fails(&output, 3, &format!("offset {offset}")),
        }
        found += 1;
    }
    assert!(found > 0, "damage in what is stored is found");
    std::fs::write(&data, &whole).unwrap();
    place.print("verify", &[]);
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
