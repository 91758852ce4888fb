//! Exit codes and error texts.

use super::support::{Place, fails, name, program, succeeded};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn exit_codes_distinguish_failures() {
    let place = Place::new();
    fails(&place.run("get", &["key"]), 3, "db");
    fails(&place.run("delete", &["key"]), 3, "db");
    fails(&place.run("checkpoint", &[]), 3, "db");
    assert!(!place.database().exists(), "a read created a database");
    place.print("put", &["key", "value"]);
    fails(&place.run("get", &["other"]), 1, "there is no key \"other\" in keyspace \"default\"");
    fails(&place.run("get", &["key", "--keyspace", "none"]), 3, "none");
    fails(&place.run("delete", &["key", "--keyspace", "none"]), 3, "none");
    fails(&place.run("get", &["\\q"]), 2, "not an escape");
    fails(&place.run("get", &["0g", "--hex"]), 2, "hexadecimal");
    fails(&place.run("get", &[]), 2, "Usage");
    fails(&place.run("get", &["key", "--memory", "1XB"]), 2, "unit");
    fails(&place.run("get", &["key", "--memory", "1MB"]), 2, "1MB is below the minimum of 32MB");
    fails(&place.run("scan", &["--prefix", "a", "--from", "b"]), 2, "--prefix");
    fails(&place.run("scan", &["--from", "b", "--to", "a"]), 2, "");
    fails(&place.run("put", &[&"k".repeat((64 << 10) + 1), "v"]), 2, "");
    place.print("delete", &["key", "never-there"]);
    place.print("put", &["key", "value", "-k", "far"]);
    fails(&place.run("get", &["00", "--hex", "-k", "far"]), 1, "no key \"00\" in keyspace \"far\"");
    fails(&place.run("get", &["key"]), 1, "there is no key");
}

#[test]
fn exit_codes_are_documented() {
    let help = succeeded(&program().arg("--help").output().unwrap());
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.unwrap();
    let codes: Vec<&str> = codes.lines().map(str::trim).collect();
    let numbers = [0, 1, 2, 3, 130];
    assert_eq!(codes.len(), numbers.len());
    for (number, line) in numbers.into_iter().zip(codes) {
        let (code, meaning) = line.split_once("  ").unwrap();
        assert_eq!(code, number.to_string());
        assert!(readme.contains(&format!("| {code} | {meaning} |")), "{line}");
    }
}

#[test]
fn files_and_pipes_that_fail_have_a_code() {
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let full = || std::fs::File::create("/dev/full").unwrap();
    let scan = |output| program().arg("scan").arg(place.database()).stdout(output).output();
    let mut shown = scan(full()).unwrap();
    // If standard output cannot be written, standard error reports it.
    shown.stdout.clear();
    fails(&shown, 3, "standard output: No space left");
    fails(&place.run("export", &["/dev/full"]), 3, "/dev/full: No space left");
    let source = place.file("source");
    std::fs::write(&source, "content").unwrap();
    let tour = program().args(["tour", name(&source)]).env("TMPDIR", place.file("none")).output();
    fails(&tour.unwrap(), 3, "temporary directory");
}

#[test]
fn errors_name_the_cause_once() {
    let place = Place::new();
    let errors = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let at = |path: &Path, text: &str| format!("chelonia: {}: {text}\n", path.display());
    let database = place.database();
    for command in ["count", "checkpoint", "stats", "verify"] {
        let none = errors(&place.run(command, &[]));
        assert_eq!(none, at(&database, "there is no database at this path"), "{command}");
    }
    std::fs::create_dir(&database).unwrap();
    let empty = errors(&place.run("count", &[]));
    assert!(empty.starts_with(at(&database, "there is no database at this path").trim_end()));
    std::fs::remove_dir(&database).unwrap();
    let deep = place.file("none").join("db");
    let output = program().args(["put", name(&deep), "k", "v"]).output().unwrap();
    let parent = format!("{} does not exist: create it first", place.file("none").display());
    assert_eq!(errors(&output), format!("chelonia: cannot create {}: {parent}\n", deep.display()));
    let plain = place.file("plain");
    std::fs::write(&plain, "no database").unwrap();
    for command in ["put", "get"] {
        let output = program().args([command, name(&plain), "k"]).output().unwrap();
        let text = format!("chelonia: {} is a file; a database is a directory\n", plain.display());
        assert_eq!((output.status.code(), errors(&output)), (Some(2), text), "{command}");
        let below = plain.join("db");
        let output = program().args([command, name(&below), "k"]).output().unwrap();
        let text = format!("{} is a file, not a directory\n", plain.display());
        assert!(errors(&output).ends_with(&text), "{command}: {}", errors(&output));
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
    // A foreign directory is reported, and not changed.
    let foreign = place.file("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("data"), "a diary").unwrap();
    for command in ["put", "import", "delete"] {
        let rest = if command == "import" { &["-"][..] } else { &["k"] };
        let output = program().args([command, name(&foreign)]).args(rest).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert_eq!(errors(&output), at(&foreign, "the file data is no Chelonia database"));
        assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "{command}");
    }
    place.print("put", &["key", "value"]);
    for (command, key) in [("get", "key"), ("delete", "key")] {
        let none = errors(&place.run(command, &[key, "-k", "none"]));
        let text =
            "there is no keyspace \"none\": there are \"default\"; choose one with --keyspace";
        assert_eq!(none, at(&database, text), "{command}");
    }
    for number in 0..11 {
        place.print("put", &["key", "value", "-k", &format!("a{number}")]);
    }
    let none = errors(&place.run("get", &["key", "-k", "none"]));
    assert!(none.contains("\"a8\" and 2 more; choose") && !none.contains("default"), "{none}");
}

#[test]
fn errors_about_damage_name_the_path_once() {
    let place = Place::new();
    let lines: String = (0..2_000).map(|n| format!("{n:08}\t{}\n", "v".repeat(40))).collect();
    succeeded(&place.run_with("import", &[], lines.as_bytes()));
    place.print("checkpoint", &[]);
    let data = place.database().join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let value = bytes.windows(40).position(|bytes| bytes == [b'v'; 40]).unwrap();
    bytes[value] ^= 1;
    std::fs::write(&data, &bytes).unwrap();
    let named = format!("(file {}, offset {})", data.display(), value / 4096 * 4096);
    // From another directory and from the database's own, where the given path is short.
    for folder in [Path::new("/"), place.directory.path()] {
        let path = if folder == Path::new("/") { place.database() } else { "db".into() };
        let output = program().arg("scan").arg(&path).current_dir(folder).output().unwrap();
        fails(&output, 3, &named);
        let output = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.matches("/db").count(), 1, "{output}");
    }
}

#[test]
fn missing_permissions_are_reported() {
    const NOBODY: u32 = 65_534;
    let place = Place::new();
    place.print("put", &["key", "value"]);
    let is_root = place.directory.path().metadata().unwrap().uid() == 0;
    let mut other = if is_root {
        // Root may read everything, so another user runs a program that this user may start.
        let copy = place.file("chelonia");
        std::fs::copy(env!("CARGO_BIN_EXE_chelonia"), &copy).unwrap();
        open_to_all(place.directory.path());
        open_to_all(&copy);
        let mut other = Command::new(copy);
        other.uid(NOBODY).gid(NOBODY).current_dir("/");
        other
    } else {
        std::fs::set_permissions(place.database(), Permissions::from_mode(0o000)).unwrap();
        program()
    };
    other.arg("get").arg(place.database()).arg("key");
    // A child process of another test may briefly hold the copy open for writing.
    let output = loop {
        match other.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
            output => break output.unwrap(),
        }
    };
    fails(&output, 3, "ermission denied");
    std::fs::set_permissions(place.database(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(place.print("get", &["key"]).trim_end(), "value");
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}
