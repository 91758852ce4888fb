//! Every example ends by itself, and what it says at the end is true.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::process::Command;

/// Runs an example without arguments; gives what it printed.
fn run(program: &str) -> String {
    let output = Command::new(program).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{said}");
    printed
}

#[test]
fn url_shortener() {
    let printed = run(env!("CARGO_BIN_EXE_url_shortener"));
    assert!(
        printed.starts_with("code 1 stands for https://doc.rust-lang.org/book/\n"),
        "{printed}"
    );
    let left = "after a removal: [\"1 -> https://doc.rust-lang.org/book/\"]\n";
    assert!(printed.ends_with(left), "{printed}");
}

#[test]
fn time_series() {
    let printed = run(env!("CARGO_BIN_EXE_time_series"));
    assert!(printed.contains("around the last midnight: 24 samples, 10.2 degrees"), "{printed}");
    let last = "dropped 3 days, left [20003, 20004, 20005, 20006, 20007, 20008, 20009]\n";
    assert!(printed.ends_with(last), "{printed}");
}

#[test]
fn job_queue() {
    let printed = run(env!("CARGO_BIN_EXE_job_queue"));
    assert!(printed.contains("the first job is \"send letter 0\"\n"), "{printed}");
    assert!(printed.ends_with("four workers did 999 jobs, each of them once\n"), "{printed}");
}

#[test]
fn bank() {
    let printed = run(env!("CARGO_BIN_EXE_bank"));
    assert!(printed.ends_with("money in all accounts: 4000\n"), "{printed}");
}

#[test]
fn session_cache() {
    let printed = run(env!("CARGO_BIN_EXE_session_cache"));
    assert!(printed.contains("half an hour after the login: None\n"), "{printed}");
    assert!(printed.ends_with("sessions swept: 2\nsessions left:  1\n"), "{printed}");
}

#[test]
fn service() {
    let printed = run(env!("CARGO_BIN_EXE_service"));
    assert!(printed.contains("GET /entries/ada \"\": HTTP/1.1 404 Not Found \"\"\n"), "{printed}");
    assert!(printed.ends_with("HTTP/1.1 200 OK \"grace\\n\"\nclosed\n"), "{printed}");
}
