//! `import` of files from other programs: columns, raw fields, and counts of losses.

use super::support::{Place, fails, interruptible_program, name, succeeded};
use rustix::process::{Pid, Signal};
use std::io::Write;
use std::process::{Output, Stdio};

/// The report of `--json`.
fn report(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn complaints(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn raw_fields_are_not_decoded() {
    let place = Place::new();
    let input = b"path\tC:\\new\nodd\t\\s \\\nquote\t\"x\"\nhex\t\\x41\xff\n";
    let raw = place.run_with("import", &["--raw", "--json"], input);
    succeeded(&raw);
    assert_eq!((&report(&raw)["stored"], complaints(&raw)), (&4.into(), String::new()));
    assert_eq!(place.run("get", &["path", "--raw"]).stdout, b"C:\\new");
    assert_eq!(place.run("get", &["odd", "--raw"]).stdout, b"\\s \\");
    assert_eq!(place.run("get", &["hex", "--raw"]).stdout, b"\\x41\xff");
    let csv = b"\"a,b\",\"C:\\new \"\"x\"\"\"\r\n";
    succeeded(&place.run_with("import", &["--raw", "--format", "csv", "-k", "csv"], csv));
    assert_eq!(place.run("get", &["a,b", "--raw", "-k", "csv"]).stdout, b"C:\\new \"x\"");

    // Without the option escapes are decoded, and counted.
    let bad = place.run_with("import", &["-k", "decoded"], input);
    let advice = "line 2: the value: `\\s` is not an escape: add --raw to take fields as they are";
    fails(&bad, 2, advice);
    fails(&bad, 2, "escapes decoded in 1 record: add --raw if their backslashes are data");
    let skipping = place.run_with("import", &["-k", "decoded", "--skip-bad", "--json"], input);
    let report = report(&skipping);
    assert_eq!((&report["stored"], &report["unescaped"]), (&3.into(), &2.into()), "{report}");
    assert_eq!(report["skipped_by_reason"]["spelling"], 1, "{report}");
    assert_eq!(place.run("get", &["path", "--raw", "-k", "decoded"]).stdout, b"C:\new");
    fails(&place.run_with("import", &["--raw", "--hex"], b""), 2, "--raw");
}

#[test]
fn columns_are_selected_by_number_or_name() {
    let place = Place::new();
    let input = b"id\tname\tx\ty\tz\n7\tada\t1\t2\t3\n8\tgrace\t4\t5\t6\n9\talan\n";
    let file = place.file("five.tsv");
    std::fs::write(&file, input).unwrap();
    let import = |arguments: &[&str]| place.run("import", &[&[name(&file)], arguments].concat());
    let refused = format!(
        "chelonia: {}: line 1 has 5 columns, expected 2: choose with --key-column, --value-column; \
         nothing is stored\n",
        file.display()
    );
    let output = import(&[]);
    assert_eq!((output.status.code(), complaints(&output)), (Some(2), refused));
    let numbers = ["--key-column", "2", "--value-column", "1", "-k", "n"];
    let output = import(&numbers);
    assert_eq!(succeeded(&output), "4 entries (21 B) stored\n");
    assert!(complaints(&output).contains("columns left out: 9\n"), "{}", complaints(&output));
    assert_eq!(place.print("scan", &["-k", "n"]), "ada\t7\nalan\t9\ngrace\t8\nname\tid\n");
    let names = ["--header", "--key-column", "name", "--value-column", "z", "-k", "m"];
    let output = import(&names);
    fails(&output, 2, "line 4 has 2 columns, but column 5 was selected; stored before it");
    let output = import(&[&names[..], &["--skip-bad", "--json"]].concat());
    succeeded(&output);
    let report = report(&output);
    assert_eq!((&report["stored"], &report["left_out"]), (&2.into(), &6.into()), "{report}");
    assert_eq!(report["skipped_by_reason"]["columns"], 1, "{report}");
    assert_eq!(place.print("scan", &["-k", "m"]), "ada\t3\ngrace\t6\n");

    fails(&import(&["--key-column", "1"]), 2, "--value-column");
    fails(&import(&["--key-column", "0", "--value-column", "1"]), 2, "counted from 1");
    fails(&import(&["--key-column", "id", "--value-column", "1"]), 2, "add --header");
    let wrong = ["--header", "--key-column", "ID", "--value-column", "1"];
    fails(&import(&wrong), 2, "line 1: no column is called \"ID\": there are \"id\", \"name\"");
    let json = ["--format", "jsonl", "--key-column", "1", "--value-column", "2"];
    fails(&import(&json), 2, "columns of tsv and csv");
}

#[test]
fn every_kind_of_loss_is_counted() {
    let place = Place::new();
    place.print("put", &["old", "value"]);
    let input = b"a,1\n\nold,2\r\na,3\nx,y,z\n\\q,1\nb\"c,1\n\"open,1\nd,4\ne,5\n";
    let output = place.run_with("import", &["--format", "csv", "--skip-bad", "--json"], input);
    succeeded(&output);
    let counted = report(&output);
    let expected = serde_json::json!({
        "stored": 3, "bytes": 8, "skipped": 4, "lines_lost": 2, "unescaped": 0, "left_out": 0,
        "skipped_by_reason": {"columns": 1, "spelling": 1, "quotes": 2, "json": 0, "size": 0},
        "repeated": 1, "repeated_is_exact": true, "empty_lines": 1, "crlf_lines": 1, "lf_lines": 5,
    });
    assert_eq!(counted, expected);
    for line in [
        "line 5 has 3 columns, expected 2: choose with --key-column, --value-column",
        "the quote opened at line 8 never closes: 2 more lines are lost",
        "not stored: 1 with other columns than expected, 1 with bad escapes or digits, 2 with \
         misplaced or unclosed quotes",
        "lines lost behind open quotes: 2",
        "entries that replaced earlier ones with the same key: 1",
        "CR left out before the line break of 1 record, where other lines have none",
    ] {
        let line = format!("chelonia: {line}\n");
        assert!(complaints(&output).contains(&line), "{line} in {}", complaints(&output));
    }
    let json = br#"{"key":"k","value":"v","id":1,"more":{"key":2}}"#;
    let output = place.run_with("import", &["--format", "jsonl"], json);
    assert_eq!(complaints(&output), "chelonia: members of objects left out: 2\n");
    let plain = place.run_with("import", &["--json"], b"new\tvalue\n\n");
    succeeded(&plain);
    assert_eq!(complaints(&plain), "", "nothing is lost");
}

#[test]
fn an_import_of_bad_lines_alone_fails() {
    let place = Place::new();
    let output = place.run_with("import", &["--skip-bad", "--json"], b"a\nb\nc\n");
    fails(&output, 2, "standard input: nothing is stored: 3 records are bad\n");
    assert_eq!((&report(&output)["stored"], &report(&output)["skipped"]), (&0.into(), &3.into()));
    let one = place.run_with("import", &["--skip-bad"], b"a\n");
    fails(&one, 2, "standard input: nothing is stored: 1 record is bad\n");
    assert_eq!(one.stdout, b"");
    succeeded(&place.run_with("import", &["--skip-bad"], b""));
    // The counts are printed however the import ends.
    let ended = place.run_with("import", &["--json"], b"a\t1\nbad\n");
    fails(&ended, 2, "stored before it: 1 entry");
    assert_eq!(report(&ended)["stored"], 1);
}

/// Sends input to an import through a pipe, ends it by `signal`, and checks the stored entries.
fn interrupted(signal: Signal, code: i32) {
    const LINES: usize = 120_000;
    /// The most input that the pipe and the program hold, read but not yet stored.
    const UNSTORED_BYTES: usize = (64 << 10) + (1 << 20);
    let place = Place::new();
    let mut import = interruptible_program()
        .arg("import")
        .arg(place.database())
        .args(["-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = |number: usize| format!("{number:08}\tvalue{}\n", number % 10);
    let lines: String = (1..=LINES).map(line).collect();
    // The end of the pipe stays open: the import waits for more, or is busy.
    let mut input = import.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    input.write_all(b"a part of a line").unwrap();
    rustix::process::kill_process(Pid::from_child(&import), signal).unwrap();
    let output = import.wait_with_output().unwrap();
    drop(input);
    let stored = report(&output)["stored"].as_u64().unwrap();
    fails(&output, code, "standard input: interrupted at line ");
    let output = complaints(&output);
    let count = output.trim_end().rsplit_once(": ").unwrap().1.replace(',', "");
    assert_eq!(count, format!("{stored} entries"), "{output}");
    let found: String = (1..=usize::try_from(stored).unwrap()).map(line).collect();
    assert!(found.len() >= lines.len() - UNSTORED_BYTES, "{stored}");
    assert_eq!(place.print("scan", &[]), found);
}

#[test]
fn ctrl_c_ends_an_import_after_storing_what_was_read() {
    interrupted(Signal::INT, 130);
}

#[test]
fn sigterm_ends_an_import_after_storing_what_was_read() {
    interrupted(Signal::TERM, 143);
}

#[test]
fn utf_16_is_refused() {
    let place = Place::new();
    let wide = |text: &str, big: bool| -> Vec<u8> {
        let units = text.encode_utf16();
        units.flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    };
    let text = "key\tvalue\nother\tvalue\n";
    let marked = format!("\u{feff}{text}");
    for big in [false, true] {
        for input in [wide(text, big), wide(&marked, big)] {
            for options in [&[][..], &["--raw"], &["--skip-bad"], &["--format", "jsonl"]] {
                let output = place.run_with("import", options, &input);
                fails(
                    &output,
                    2,
                    "standard input: the input is UTF-16, and must be UTF-8: convert",
                );
            }
        }
    }
    // Zero bytes alone are not UTF-16.
    succeeded(&place.run_with("import", &["--raw"], b"a\0b\0\0\tvalue\n\0\0\tvalue\n"));
}
