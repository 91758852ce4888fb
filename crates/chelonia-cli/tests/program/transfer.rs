//! `import` and `export`: formats, bad input, files.

use super::support::{Place, fails, name, program, succeeded};
use std::io::Write;
use std::path::Path;

#[test]
fn exports_are_imported_unchanged() {
    let place = Place::new();
    let entries: String = (0..=255_u8)
        .map(|byte| format!("{byte:02x}00\t{byte:02x}2c2209205c0a0d{byte:02x}\n"))
        .collect();
    succeeded(&place.run_with("import", &["--hex"], format!("\t\n{entries}").as_bytes()));
    let entries = place.print("scan", &["--hex"]);
    assert_eq!(entries.lines().count(), 257);
    for format in ["tsv", "csv", "jsonl"] {
        for options in [&[][..], &["--hex"], &["--header"]] {
            let file = place.file(&format!("{}.{format}", options.join("")));
            let keyspace = format!("{format}{}", options.join(""));
            let output = place.print("export", &[&[name(&file)], options].concat());
            assert_eq!(output, "257 entries written\n");
            place.print("import", &[&[name(&file), "--keyspace", &keyspace], options].concat());
            assert_eq!(place.print("scan", &["--hex", "-k", &keyspace]), entries, "{keyspace}");
        }
    }
    // Through a pipe, with the format given.
    let piped = place.run("export", &["--format", "jsonl", "--prefix", "a\\0"]).stdout;
    let arguments = ["-", "--format", "jsonl", "-k", "piped", "--json"];
    let output = succeeded(&place.run_with("import", &arguments, &piped));
    assert!(output.contains("\"stored\":1"), "{output}");
}

#[test]
fn json_of_other_programs_is_imported() {
    let place = Place::new();
    let foreign = [
        r#"{"key":"C:\\dir","value":"\\\\n"}"#,
        r#"{"value":"caf\u00e9","id":1,"key":"x41"}"#,
        r#"{"key_hex":"00fF","value":"\\x41"}"#,
    ];
    let path = place.file("foreign.jsonl");
    std::fs::write(&path, format!("\u{feff}{}\r\n", foreign.join("\r\n"))).unwrap();
    assert_eq!(place.print("import", &[name(&path)]), "3 entries (23 B) stored\n");
    assert_eq!(place.run("get", &["C:\\\\dir", "--raw"]).stdout, b"\\\\n");
    assert_eq!(place.run("get", &["x41", "--raw"]).stdout, "caf\u{e9}".as_bytes());
    assert_eq!(place.run("get", &["00ff", "--hex"]).stdout, b"5c783431\n");
    let json = "{\"key_hex\":\"00ff\",\"value\":\"\\\\x41\"}\n\
                 {\"key\":\"C:\\\\dir\",\"value\":\"\\\\\\\\n\"}\n\
                 {\"key\":\"x41\",\"value\":\"caf\u{e9}\"}\n";
    assert_eq!(place.print("scan", &["--json"]), json);
    assert_eq!(place.print("export", &["--format", "jsonl"]), json);
    assert_eq!(
        place.print("get", &["\\x00\\xff", "--json"]),
        json.split_inclusive('\n').next().unwrap()
    );
    let hex = place.print("get", &["00ff", "--hex", "--json"]);
    assert_eq!(hex, "{\"key_hex\":\"00ff\",\"value_hex\":\"5c783431\"}\n");
    // The names in a record determine its form, not the option.
    let plain = b"{\"key\":\"00ff\",\"value\":\"text\"}";
    let options = ["--format", "jsonl", "--hex", "-k", "plain"];
    succeeded(&place.run_with("import", &options, plain));
    assert_eq!(place.print("get", &["00ff", "-k", "plain"]), "text\n");

    for (line, message) in [
        (r#"{"value":"v"}"#, "line 1: there is neither `key` nor `key_hex`"),
        (r#"{"key":"k","value":"v","value_hex":""}"#, "line 1: there are both `value` and"),
        (r#"{"key_hex":"0","value":"v"}"#, "line 1: `key_hex`: hexadecimal needs two digits"),
    ] {
        fails(&place.run_with("import", &["--format", "jsonl"], line.as_bytes()), 2, message);
    }
}

#[test]
fn bad_lines_are_reported_or_skipped() {
    let place = Place::new();
    let mut input: Vec<u8> = Vec::new();
    for number in 1..=2_500 {
        let line =
            if number == 2_100 { "no tab\n".to_owned() } else { format!("{number:05}\tv\n") };
        input.extend_from_slice(line.as_bytes());
    }
    let output = place.run_with("import", &[], &input);
    fails(&output, 2, "standard input: line 2100: there is no tab between key and value");
    fails(&output, 2, "; stored before it: 2,099 entries\n");
    assert_eq!(place.print("count", &[]), "2099\n", "all before the line is stored");
    let many = "bad\n".repeat(30);
    let output = place.run_with("import", &["--skip-bad"], many.as_bytes());
    let output = String::from_utf8(output.stderr).unwrap();
    // The message also says what was lost, and that nothing is stored.
    assert_eq!(output.lines().count(), 11 + 2, "{output}");
    assert!(output.contains("further bad lines are only counted\n"), "{output}");
    let skipped = place.run_with("import", &["--skip-bad"], &input);
    assert!(String::from_utf8_lossy(&skipped.stderr).contains("line 2100"));
    assert!(succeeded(&skipped).contains("1 bad skipped"));
    assert_eq!(place.print("count", &[]), "2499\n");
    fails(&place.run("import", &[name(&place.file("none.tsv"))]), 3, "none.tsv");
    fails(&place.run("import", &[name(place.directory.path()), "-k", "none"]), 3, "directory");
    assert!(!place.print("keyspaces", &[]).contains("none"), "nothing was made for it");
    for (bad, message) in [
        ("not json", "the line is not one JSON object"),
        ("7", "the line is not one JSON object"),
        ("[\n", "a JSON array; jsonl needs one object per line"),
        ("[{\"key\":\"k\",\"value\":\"v\"}]", "a JSON array; jsonl needs one object per line"),
        ("{\n\"key\":", "a JSON object that does not end; jsonl needs one object per line"),
    ] {
        let output = place.run_with("import", &["--format", "jsonl"], bad.as_bytes());
        fails(&output, 2, &format!("line 1: {message}"));
    }
    let output =
        place.run_with("import", &["--format", "csv", "--skip-bad"], b"a,1\n\"b,2\nc,3\nd,4\n");
    assert!(succeeded(&output).contains("1 bad skipped"));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("the quote opened at line 2 never closes: 2 more lines are lost"),
        "{error}"
    );
}

#[test]
fn an_export_gets_its_name_at_the_end() {
    const BLOCK: usize = 4096;
    let place = Place::new();
    let folder = place.file("exports");
    std::fs::create_dir(&folder).unwrap();
    let target = folder.join("out.tsv");
    let export = |extra: &[&str]| place.run("export", &[&[name(&target)], extra].concat());
    let is_as_it_was = || {
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old\n");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is beside it");
    };
    std::fs::write(&target, "old\n").unwrap();
    // No database, no such keyspace, an invalid range.
    fails(&export(&[]), 3, "no database");
    let lines: String = (0..5_000).map(|n| format!("{n:08}\t{}\n", "v".repeat(40))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    place.print("checkpoint", &[]);
    fails(&export(&["-k", "none"]), 3, "none");
    fails(&export(&["--from", "b", "--to", "a"]), 2, "");
    is_as_it_was();

    // Stored data is damaged: the open succeeds, the export reads the damaged block.
    let data = place.database().join("data");
    let undamaged = std::fs::read(&data).unwrap();
    let is_met = (2..undamaged.len() / BLOCK).any(|block| {
        let mut damaged = undamaged.clone();
        damaged[block * BLOCK + 100] ^= 0x10;
        std::fs::write(&data, damaged).unwrap();
        let output = export(&[]);
        let is_met =
            output.status.code() == Some(3) && place.run("keyspaces", &[]).status.success();
        if is_met {
            is_as_it_was();
            return true;
        }
        std::fs::write(&target, "old\n").unwrap();
        false
    });
    assert!(is_met, "an export meets damage");
    std::fs::write(&data, &undamaged).unwrap();
    assert_eq!(succeeded(&export(&["--json"])), "{\"written\":5000}\n");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), lines);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    fails(&place.run("export", &["--json"]), 2, "--format jsonl");
    fails(&place.run("export", &["-", "--json"]), 2, "--format jsonl");
    fails(&place.run("export", &[name(&folder)]), 3, "directory");
    fails(&place.run("export", &[name(&folder.join("none/out"))]), 3, "none/out");
}

#[test]
fn a_file_of_an_unknown_format_is_refused() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    for file in ["out.parquet", "out.csv.gz"] {
        let file = place.file(file);
        for command in ["export", "import"] {
            let output = place.run(command, &[name(&file)]);
            fails(&output, 2, ": add --format tsv, csv or jsonl\n");
            assert!(!file.exists());
        }
        place.print("export", &[name(&file), "--format", "tsv"]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "key\tvalue\n");
    }
    let parquet = place.file("in.parquet");
    let message = format!("{}: there is no format .parquet: add", parquet.display());
    fails(&place.run("import", &[name(&parquet)]), 2, &message);
}

#[test]
fn one_entry_is_no_entries() {
    let place = Place::new();
    assert_eq!(succeeded(&place.run_with("import", &[], b"a\tb\n")), "1 entry (2 B) stored\n");
    let file = place.file("out.tsv");
    assert_eq!(place.print("export", &[name(&file)]), "1 entry written\n");
    let output = place.run_with("import", &["--format", "csv", "--skip-bad"], b"a,1\n\"b,2\nc,3");
    assert!(String::from_utf8_lossy(&output.stderr).contains("never closes: 1 more line is lost"));
    let output = place.run_with("import", &["--format", "csv"], b"\"a,1");
    fails(&output, 2, "standard input: the quote opened at line 1 never closes; nothing is stored");
    // The unclosed field is not the first of its record.
    let output = place.run_with("import", &["--format", "csv"], b"\"a\nb\",\"1\n2\n");
    fails(&output, 2, "the quote opened at line 2 never closes: 2 more lines are lost");
    let output = place.run_with("import", &["--memory", "0.0625GB"], b"no tab");
    fails(&output, 2, "line 1: there is no tab between key and value; nothing is stored");
}

#[test]
fn an_export_to_standard_output_does_not_replace_it() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let shown = place.file("shown");
    let mut out = std::fs::File::create(&shown).unwrap();
    out.write_all(b"before\n").unwrap();
    for target in [Path::new("-"), Path::new("/dev/stdout"), &shown] {
        let mut export = program();
        export.arg("export").arg(place.database()).arg(target);
        export.stdout(out.try_clone().unwrap());
        assert!(export.status().unwrap().success(), "{}", target.display());
    }
    out.write_all(b"after\n").unwrap();
    let expected = format!("before\n{}after\n", "key\tvalue\n".repeat(3));
    assert_eq!(std::fs::read_to_string(&shown).unwrap(), expected);
}
