//! The text of statistics for Prometheus is well-formed, whatever keyspaces are called.

use chelonia::Database;
use std::collections::BTreeSet;

#[test]
fn every_line_has_a_name_that_was_declared_and_a_number() {
    let database = Database::in_memory().unwrap();
    let name = "odd \\ \" \n name";
    let odd = database.keyspace(name, Default::default()).unwrap();
    odd.insert("key", "value").unwrap();
    database.checkpoint().unwrap();
    let text = database.stats().to_prometheus();
    let mut declared = BTreeSet::new();
    let (mut values, mut of_keyspaces) = (0, 0_u32);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(declared.insert(name), "{line}: twice");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            assert!(declared.contains(bare), "{line}");
            assert!(value.parse::<f64>().unwrap() >= 0.0, "{line}");
            of_keyspaces += u32::from(name != bare);
            values += 1;
        }
    }
    assert_eq!(values, declared.len());
    assert!(of_keyspaces > 10 && values > 50);
    assert!(text.contains(r#"_flushes_total{keyspace="odd \\ \" \n name",engine="turtle"} 1"#));
    assert!(text.contains("\nchelonia_checkpoints_total 3\n"), "{text}");
}
