//! The tour: on real folders, odd ones, and killed.

use super::support::{Place, fails, name, program, succeeded};
use std::io::{BufRead, BufReader, Read};
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

#[test]
fn the_tour_takes_what_it_is_given() {
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
        let told = succeeded(&tour(path));
        assert!(told.contains("Storing 1 files"), "{told}");
        // What to try next can be called as it stands.
        assert!(told.contains(&format!("{} put mine", env!("CARGO_BIN_EXE_chelonia"))), "{told}");
    }
    // What cannot be read is counted; whoever may read everything finds nothing to count.
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(source.join("closed"), closed).unwrap();
    let is_closed = std::fs::read_dir(source.join("closed")).is_err();
    let told = succeeded(&tour(&source));
    assert_eq!(told.contains("could not be read: 1"), is_closed, "{told}");
    std::fs::set_permissions(source.join("closed"), std::fs::Permissions::from_mode(0o700))
        .unwrap();
}

#[test]
fn a_tour_that_is_killed_leaves_nothing_behind() {
    let place = Place::new();
    let (source, temporary) = (place.file("source"), place.file("temporary"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    // At once, and while the writer writes.
    for step in ["Storing", "Killing"] {
        let mut tour = program()
            .args(["tour", name(&source), "--updates", "500", "--acknowledgements", "90000000"])
            .env("TMPDIR", &temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(tour.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with(step)), "{step}");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "{step}");
        tour.kill().unwrap();
        // It ends when the last process of the tour does.
        let mut told = String::new();
        tour.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        tour.wait().unwrap();
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "{step}: {told}");
    }
}
