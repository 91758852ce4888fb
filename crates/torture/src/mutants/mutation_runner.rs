//! Builds a copy of the checkout with each mutant, and runs a profile until a unit fails. Mutants
//! that survive are also run against the test `schedules` and the library's own tests.
//!
//! Needs cargo, and the checkout that this program was built from.

use super::{Mutant, all};
use crate::failure::{Failure, Result};
use chelonia::internals::Clock;
use chelonia_torture::suite;
use clap::Args;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// How long the test `schedules` runs, in a build of its own, if no other test found the mutant.
const SCHEDULES_MINUTES: &str = "0.5";

/// Folders of the checkout that are not copied.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// The build command for the copy, optimized for build time.
const BUILD: [&str; 10] = [
    "build",
    "--release",
    "--package",
    "chelonia-torture",
    "--config",
    "profile.release.lto=\"off\"",
    "--config",
    "profile.release.codegen-units=16",
    "--config",
    "profile.release.opt-level=1",
];

/// The arguments of `mutants`.
#[derive(Args, Debug)]
pub struct Mutants {
    /// The mutants to plant, by name [default: all]
    #[arg(long, value_name = "MUTANT,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Run the long profile instead of the short one
    #[arg(long)]
    long: bool,
    /// The longest time per mutant
    #[arg(long, value_name = "M", default_value_t = 5.0)]
    minutes: f64,
    /// The directory of the copy and its build, outside of the checkout; reused by the next run
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// Also run `schedules` and the library's own tests if no other test finds a mutant
    #[arg(long)]
    with_tests: bool,
    /// List the mutants and do nothing else
    #[arg(long)]
    list: bool,
}

/// The result of a mutant.
struct Fate {
    mutant: Mutant,
    /// The test that failed, and its message.
    caught: Option<(String, String)>,
    took: Duration,
}

/// Plants each mutant and runs the tests. Fails if one is not found.
pub fn run(arguments: &Mutants, as_json: bool) -> Result<()> {
    let chosen = chosen(&arguments.only)?;
    let mut out = std::io::stdout().lock();
    if arguments.list {
        for Mutant { name, bug, file, .. } in chosen {
            if as_json {
                writeln!(out, "{}", json!({ "mutant": name, "bug": bug, "file": file }))?;
                continue;
            }
            writeln!(out, "{name:>26}  {file}\n{:>26}  {bug}", "")?;
        }
        return Ok(());
    }
    let mutation_runner = MutationRunner::new(arguments.dir.as_deref().unwrap_or(Path::new(".")))?;
    let mut missed = 0;
    for (number, mutant) in chosen.iter().enumerate() {
        let _ = writeln!(std::io::stderr(), "{}/{} {}", number + 1, chosen.len(), mutant.name);
        let fate = mutation_runner.plant(*mutant, arguments)?;
        missed += usize::from(fate.caught.is_none());
        fate.print(&mut out, as_json)?;
    }
    match missed {
        0 => Ok(()),
        _ => Err(Failure::Broken(format!("{missed} of {} mutants were not found", chosen.len()))),
    }
}

/// The mutants with these names; all if there are none.
fn chosen(names: &[String]) -> Result<Vec<Mutant>> {
    let mut mutants = all();
    for name in names {
        if !mutants.iter().any(|mutant| mutant.name == name) {
            return Err(Failure::usage(format!("there is no mutant {name:?}; see --list")));
        }
    }
    mutants.retain(|mutant| names.is_empty() || names.iter().any(|name| name == mutant.name));
    Ok(mutants)
}

impl Fate {
    fn print(&self, out: &mut dyn Write, as_json: bool) -> Result<()> {
        let (name, seconds) = (self.mutant.name, self.took.as_secs_f64());
        if as_json {
            let (test, said) = self.caught.clone().unzip();
            let line = json!({
                "mutant": name, "bug": self.mutant.bug, "found_by": test, "said": said,
                "seconds": seconds,
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        match &self.caught {
            Some((test, said)) => {
                let first: String = said.lines().next().unwrap_or_default().chars().collect();
                writeln!(out, "{name:>26}  {test:<20} {seconds:>6.1} s  {first}")?;
            }
            None => writeln!(out, "{name:>26}  {:<20} {seconds:>6.1} s", "NOT FOUND")?,
        }
        Ok(())
    }
}

/// The copy of the checkout, and its build.
struct MutationRunner {
    source: PathBuf,
    target: PathBuf,
}

impl MutationRunner {
    fn new(dir: &Path) -> Result<Self> {
        let failed = |error| Failure::failed(dir.display(), error);
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let checkout = checkout.canonicalize().map_err(failed)?;
        std::fs::create_dir_all(dir).map_err(failed)?;
        if dir.canonicalize().map_err(failed)?.starts_with(&checkout) {
            let text = "--dir must be outside of the checkout, which is copied there";
            return Err(Failure::usage(text));
        }
        let mutation_runner = Self { source: dir.join("source"), target: dir.join("target") };
        copy(&checkout, &mutation_runner.source)?;
        Ok(mutation_runner)
    }

    /// Plants a mutant, runs the tests, and restores the file.
    fn plant(&self, mutant: Mutant, arguments: &Mutants) -> Result<Fate> {
        let path = self.source.join("crates/chelonia/src").join(mutant.file);
        let failed = |error| Failure::failed(path.display(), error);
        let healthy = std::fs::read_to_string(&path).map_err(failed)?;
        if healthy.matches(mutant.text).count() != 1 {
            let (name, file) = (mutant.name, mutant.file);
            return Err(Failure::usage(format!(
                "{file}: the text of {name} does not occur exactly once"
            )));
        }
        let planted = healthy.replace(mutant.text, mutant.instead);
        std::fs::write(&path, planted).map_err(failed)?;
        let fate = self.find(mutant, arguments);
        std::fs::write(&path, healthy).map_err(failed)?;
        fate
    }

    fn find(&self, mutant: Mutant, arguments: &Mutants) -> Result<Fate> {
        self.build(mutant, &[])?;
        let clock = Clock::real();
        let profile_name = if arguments.long { "long" } else { "short" };
        let minutes = arguments.minutes.to_string();
        let mut caught = self.run(&[
            "--profile",
            profile_name,
            "--only",
            &tests_for_mutants(),
            "--minutes",
            &minutes,
        ])?;
        let mut took = clock.now();
        if caught.is_none() && arguments.with_tests {
            self.build(mutant, &["--features", "shuttle"])?;
            let clock = Clock::real();
            caught = self.run(&["--profile", "long", "--minutes", SCHEDULES_MINUTES])?;
            took += clock.now();
        }
        if caught.is_none() && arguments.with_tests {
            caught = self.test()?;
        }
        Ok(Fate { mutant, caught, took })
    }

    fn build(&self, mutant: Mutant, features: &[&str]) -> Result<()> {
        let mut build = Command::new(cargo());
        build.args(BUILD).args(features).arg("--target-dir").arg(&self.target);
        let built = output(build.current_dir(&self.source))?;
        if built.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        Err(Failure::failed(format!("build with {}", mutant.name), said))
    }

    /// Runs the built program until a unit fails; returns the test and its message.
    fn run(&self, profile: &[&str]) -> Result<Option<(String, String)>> {
        let mut program = Command::new(self.target.join("release/chelonia-torture"));
        let ran = output(program.args(["--until-failure", "--json"]).args(profile))?;
        if ran.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&ran.stdout);
        Ok(Some(text.lines().find_map(first_failure).unwrap_or_else(|| {
            // The process died, for example by a stack overflow or out of memory.
            ("the process".to_owned(), format!("{}", ran.status))
        })))
    }
}

impl MutationRunner {
    /// Runs the library's own tests; returns those that failed.
    fn test(&self) -> Result<Option<(String, String)>> {
        let mut test = Command::new(cargo());
        test.args(["test", "--package", "chelonia", "--lib", "--target-dir"]).arg(&self.target);
        let ran = output(test.current_dir(&self.source))?;
        if ran.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&ran.stdout);
        let failed = text.lines().filter_map(|line| line.strip_suffix(" ... FAILED"));
        let names: Vec<&str> = failed.map(|name| name.trim_start_matches("test ")).collect();
        let said = match names[..] {
            [] => "they do not compile or did not end".to_owned(),
            _ => names.join(", "),
        };
        Ok(Some(("the library's tests".to_owned(), said)))
    }
}

/// The tests that are run against mutants: all except one whose units take minutes.
fn tests_for_mutants() -> String {
    let mut names: Vec<&str> = suite::all().iter().map(|test| test.name()).collect();
    names.retain(|name| *name != "soak");
    names.join(",")
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The first failure in a line of JSON output: the test and its message.
fn first_failure(line: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let said = value["failures"].get(0)?["said"].as_str()?;
    Some((value["test"].as_str()?.to_owned(), said.to_owned()))
}

fn output(command: &mut Command) -> Result<Output> {
    let ran = command.stdin(Stdio::null()).output();
    ran.map_err(|error| Failure::failed(format!("run {}", command.get_program().display()), error))
}

/// Copies the files that differ, so that the rest is not rebuilt.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| Failure::failed(path, error)
    };
    std::fs::create_dir_all(to).map_err(failed(to))?;
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        let (path, name) = (entry.path(), entry.file_name());
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        let copied = to.join(name);
        if path.is_dir() {
            copy(&path, &copied)?;
            continue;
        }
        let content = std::fs::read(&path).map_err(failed(&path))?;
        if std::fs::read(&copied).is_ok_and(|there| there == content) {
            continue;
        }
        std::fs::write(&copied, content).map_err(failed(&copied))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_found_in_the_output() {
        let failed = r#"{"test":"crash","failures":[{"unit":1,"said":"lost"}]}"#;
        let line = first_failure(failed);
        assert_eq!(line, Some(("crash".to_owned(), "lost".to_owned())));
        assert_eq!(first_failure(r#"{"test":"crash","failures":[]}"#), None);
        assert!(chosen(&["nothing".to_owned()]).is_err());
    }
}
