//! The tour: on real folders, odd ones, and killed.

use super::support::{Place, fails, name, program, succeeded};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

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
    let steps = json["steps"].as_array().unwrap();
    assert!(steps.len() > 10);
    // The dial shows what writes cost at each setting, and what reads do.
    for (what, cost) in [("updates", "write_amplification"), ("gets", "blocks_read_per_operation")]
    {
        let name = format!("{what}, checkpoint distance ");
        let at = steps.iter().filter(|step| step["what"].as_str().unwrap().starts_with(&name));
        assert_eq!(at.filter(|step| step[cost].is_f64()).count(), 3, "{what}");
    }
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
        assert!(told.contains("Storing 1 file (7 B)"), "{told}");
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

#[test]
fn what_to_try_next_works_as_it_stands() {
    let place = Place::new();
    let folder = place.file("it's \u{e9} $HOME; here");
    let source = folder.join("-source");
    std::fs::create_dir_all(&source).unwrap();
    for number in 0..20 {
        std::fs::write(source.join(format!("file {number}")), "content").unwrap();
    }
    // The names that would be suggested are taken.
    for taken in ["toured", "mine"] {
        std::fs::write(folder.join(taken), "no database").unwrap();
    }
    let link = folder.join("the program");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chelonia"), &link).unwrap();
    let lines_of = |told: &str| -> Vec<String> {
        let (_, next) = told.split_once("What to try next:\n").unwrap();
        next.lines().map(str::to_owned).collect()
    };
    let paste = |line: &str| {
        let output = Command::new("sh").args(["-c", line]).current_dir(&folder).output().unwrap();
        let told = succeeded(&output);
        assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        told
    };
    let told = Command::new(&link)
        .args(["tour", "--updates", "500", "--acknowledgements", "20", "--", "-source"])
        .current_dir(&folder)
        .output();
    let lines = lines_of(&succeeded(&told.unwrap()));
    assert_eq!(lines.len(), 3, "{lines:?}");
    let kept = paste(&lines[0]);
    assert!(kept.contains("Storing 20 files") && kept.contains("updates, "), "{kept}");
    assert!(folder.join("toured-2/files").is_dir());
    assert!(paste(&lines[1]).contains("Storing 20 files"));
    assert_eq!(paste(&lines[2]), "world\n");
    // The tour that keeps its databases has other lines, which show them.
    let shown: Vec<String> = lines_of(&kept).iter().map(|line| paste(line)).collect();
    assert!(shown[0].contains("write amplification"));
    assert_eq!(shown[1].lines().count(), 1, "all files have one content");
    assert!(shown[2].starts_with("superblock"));
}
