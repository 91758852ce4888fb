//! The tour: on folders, a file, a link, unreadable folders, and ended by a signal.

use super::support::{Place, fails, interruptible_program, name, program, succeeded};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

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
    let databases = place.file("databases");
    let run = |extra: &[&str]| {
        program()
            .args(["tour", name(&source), "--updates", "5000", "--acknowledgements", "200"])
            .args(["--memory", "64MB"])
            .args(extra)
            .output()
            .unwrap()
    };
    let printed = succeeded(&run(&["--db", name(&databases)]));
    assert!(printed.contains("Everything compared equal"), "{printed}");
    assert!(printed.contains("every acknowledged write is there"), "{printed}");
    fails(&run(&["--db", name(&databases)]), 2, "not empty");
    let count = program().args(["count", name(&databases.join("files")), "-k", "records"]).output();
    let count: u64 = succeeded(&count.unwrap()).trim().parse().unwrap();
    assert!(count >= 200, "{count}");
    // Both costs of each distance are printed.
    for (row, cost) in [("  gets, ", "blocks read "), ("  write ", "amplification ")] {
        let is_of = |line: &&str| line.starts_with(row) && line.contains("checkpoint distance ");
        let rows: Vec<&str> = printed.lines().filter(is_of).collect();
        assert_eq!(rows.len(), 3, "{printed}");
        for row in rows {
            let (_, number) = row.split_once(cost).unwrap();
            let number = number.split(',').next().unwrap();
            assert!(number.parse::<f64>().is_ok(), "{row}");
        }
    }
    let empty = place.file("empty");
    std::fs::create_dir(&empty).unwrap();
    fails(&program().args(["tour", name(&empty)]).output().unwrap(), 2, "no files");
}

/// The number of files that the tour stored.
fn files_stored(printed: &str) -> &str {
    let row = printed.lines().find_map(|line| line.strip_prefix("  files stored")).unwrap();
    row.split_whitespace().next().unwrap()
}

#[test]
fn the_source_is_a_folder_a_file_or_a_link() {
    let place = Place::new();
    let tour = |path: &Path| {
        program()
            .args(["tour", name(path), "--updates", "500", "--acknowledgements", "20"])
            .output()
            .unwrap()
    };
    fails(&tour(&place.file("none")), 3, "No such file");
    let source = place.file("source");
    std::fs::create_dir_all(source.join("closed")).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    // One file, by its name or through a link to its folder.
    let link = place.file("link");
    std::os::unix::fs::symlink(&source, &link).unwrap();
    for path in [&source, &source.join("file"), &link] {
        assert_eq!(files_stored(&succeeded(&tour(path))), "1");
    }
    // A folder that cannot be read is skipped.
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(source.join("closed"), closed).unwrap();
    assert_eq!(files_stored(&succeeded(&tour(&source))), "1");
    std::fs::set_permissions(source.join("closed"), std::fs::Permissions::from_mode(0o700))
        .unwrap();
}

#[test]
fn a_tour_ended_by_a_signal_removes_its_files() {
    let place = Place::new();
    let (source, temporary) = (place.file("source"), place.file("temporary"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    // During the load, and while the writer writes.
    for (step, signal, code) in [("Storing", Signal::INT, 130), ("Killing", Signal::TERM, 143)] {
        let mut tour = interruptible_program()
            .args(["tour", name(&source), "--updates", "500", "--acknowledgements", "90000000"])
            .env("TMPDIR", &temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(tour.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with(step)), "{step}");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "{step}");
        kill_process(Pid::from_child(&tour), signal).unwrap();
        lines.for_each(drop);
        fails(&tour.wait_with_output().unwrap(), code, "interrupted");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "{step}");
    }
}
