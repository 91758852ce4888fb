//! Shared by the tests of the program: a temporary database, and calls of the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A temporary directory with the path of a database.
pub struct Place {
    pub directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    pub fn database(&self) -> PathBuf {
        self.file("db")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `COMMAND DB arguments...` with `input` on standard input.
    pub fn run_with(&self, command: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = program()
            .arg(command)
            .arg(self.database())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that refuses its arguments does not read its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    pub fn run(&self, command: &str, arguments: &[&str]) -> Output {
        self.run_with(command, arguments, b"")
    }

    /// Runs a command that must succeed; returns its output.
    pub fn print(&self, command: &str, arguments: &[&str]) -> String {
        succeeded(&self.run(command, arguments))
    }
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_chelonia"))
}

/// The program with default signal handling, because the tests may run with signals ignored, for
/// example in the background of a script.
pub fn interruptible_program() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM").arg(program().get_program());
    command
}

pub fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
pub fn fails(output: &Output, code: i32, message: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.contains(message), "{error}");
}

pub fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}
