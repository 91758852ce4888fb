//! The program `chelonia-torture`: crashes, faults, bit rot and races for Chelonia, for minutes or
//! hours.
//!
//! The library part of this crate has the tests (`suite`); `profile.rs` decides which units run,
//! `runner/mod.rs` runs them on several threads. Counts go to standard output, everything else to
//! standard error.

mod failure;
mod mutants;
mod profile;
mod report;
mod runner;

use chelonia_torture::test::{Test, Unit};
use chelonia_torture::{golden, suite};
use clap::{Parser, Subcommand};
use failure::{Failure, Result};
use profile::{Profile, SEED};
use runner::Runner;
use runner::journal::Journal;
use runner::status::Status;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Exit codes:
  0  no unit failed; the table shows which targets were not reached in time
  1  a unit failed, or did not end
  2  the command line or the journal is wrong
  3  a file could not be read or written";

/// Test whether Chelonia loses or invents data.
#[derive(Parser, Debug)]
#[command(name = "chelonia-torture", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    /// Which units to run
    #[arg(long, value_enum, default_value = "short")]
    profile: Profile,
    /// The seed of all random histories [default: always the same]
    #[arg(long, value_name = "N", value_parser = parse_seed)]
    seed: Option<u64>,
    /// Start no unit after this many minutes
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Start no unit after the first failure
    #[arg(long)]
    until_failure: bool,
    /// The tests to run, by name [default: all]
    #[arg(long, value_name = "TEST,...", value_delimiter = ',')]
    only: Vec<String>,
    /// The number of units that run at the same time [default: the number of processors]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Record finished units in a journal, and continue from it if it has units of the same seed
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Run one unit, as named by a failure
    #[arg(long, value_name = "TEST:UNIT")]
    #[arg(conflicts_with_all = ["minutes", "resume", "only", "until_failure"])]
    repeat: Option<String>,
    /// Print results as JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
enum Part {
    /// List the tests
    List,
    /// Plant bugs in a copy of the store, one at a time, and check that a test finds each
    Mutants(mutants::Mutants),
    /// Write seeds for chelonia-fuzz
    Seeds {
        /// An existing directory to write to
        directory: PathBuf,
    },
    /// Write the golden stores of the current format, once per format
    Golden {
        /// An existing directory to write to
        directory: PathBuf,
    },
    /// The process that a test kills
    #[command(hide = true)]
    Child(suite::Child),
    /// The process of the test `soak`
    #[command(hide = true)]
    SoakChild(suite::SoakChild),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.part {
        Some(Part::List) => report::list(&suite::all(), arguments.json),
        Some(Part::Mutants(mutants)) => mutants::run(mutants, arguments.json),
        Some(Part::Seeds { directory }) => {
            suite::write_seeds(directory).map_err(|error| Failure::failed("write seeds", error))
        }
        Some(Part::Golden { directory }) => golden::make(directory)
            .map_err(|error| Failure::failed("write the golden stores", error)),
        Some(Part::Child(child)) => child.run().map_err(Failure::Broken),
        Some(Part::SoakChild(child)) => child.run().map_err(Failure::Broken),
        None => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or(SEED);
    if let Some(named) = &arguments.repeat {
        return repeat(named, seed, arguments.json);
    }
    let tests = chosen(&arguments.only)?;
    let names: Vec<&str> = tests.iter().map(|test| test.name()).collect();
    let mut statuses = vec![Status::default(); tests.len()];
    let journal = match &arguments.resume {
        Some(path) => Some(Journal::open(path, seed, &names, &mut statuses)?),
        None => None,
    };
    let at_most = match arguments.minutes.map(|minutes| Duration::try_from_secs_f64(60.0 * minutes))
    {
        Some(Ok(time)) => Some(time),
        Some(Err(_)) => return Err(Failure::usage("--minutes must be a number of at least 0")),
        None => None,
    };
    let threads = arguments.threads.unwrap_or_else(processors);
    let runner = Runner {
        profile: arguments.profile,
        seed,
        at_most,
        until_failure: arguments.until_failure,
        threads,
        tests: &tests,
    };
    let print =
        |statuses: &[Status]| report::print(arguments.profile, &tests, statuses, arguments.json);
    let stuck = |statuses: &[Status]| {
        let _ = print(statuses);
        failure::BROKEN
    };
    let statuses = runner.run(statuses, journal, &stuck)?;
    print(&statuses)?;
    let missed = report::print_marks(arguments.json)?;
    let failed: usize = statuses.iter().map(|status| status.failures().len()).sum();
    if failed > 0 {
        return Err(Failure::Broken(format!("{failed} units failed")));
    }
    // A complete run must also reach every coverage mark.
    let are_met = tests
        .iter()
        .zip(&statuses)
        .all(|(test, status)| test.excuse().is_some() || status.has_met(test.targets()));
    let is_complete = arguments.profile == Profile::Long
        && arguments.only.is_empty()
        && are_met
        && !cfg!(feature = "shuttle");
    if is_complete && missed > 0 {
        return Err(Failure::Broken(format!("{missed} coverage marks were not reached")));
    }
    Ok(())
}

/// Runs one unit and lets it print its panic.
fn repeat(named: &str, seed: u64, as_json: bool) -> Result<()> {
    let usage =
        || Failure::usage("--repeat needs the name of a test and the number of a unit: crash:7");
    let (name, number) = named.split_once(':').ok_or_else(usage)?;
    let number: u64 = number.parse().map_err(|_| usage())?;
    let tests = chosen(&[name.to_owned()])?;
    let test = &tests[0];
    if let Some(excuse) = test.excuse() {
        return Err(Failure::usage(format!("{name} does not run here: {excuse}")));
    }
    if let Some(most) = test.units_max().filter(|most| number >= *most) {
        return Err(Failure::usage(format!("{name} has the units 0 to {}", most - 1)));
    }
    let unit = Unit::new(name, number, seed);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.run(unit))) {
        Ok(tally) => report::print_tally(&tally, as_json),
        Err(_) => Err(Failure::Broken(format!("{name}:{number} failed"))),
    }
}

/// The tests with these names; all if there are none.
fn chosen(names: &[String]) -> Result<Vec<Box<dyn Test>>> {
    let mut tests = suite::all();
    for name in names {
        if !tests.iter().any(|test| test.name() == name) {
            let message = match name.as_str() {
                "schedules" => {
                    "the test schedules needs a separate build: `--features shuttle`".to_owned()
                }
                _ => format!("there is no test {name:?}; `chelonia-torture list` lists all"),
            };
            return Err(Failure::usage(message));
        }
    }
    tests.retain(|test| names.is_empty() || names.iter().any(|name| name == test.name()));
    Ok(tests)
}

/// Parses a decimal number, or a hexadecimal one after 0x.
fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        "expected a number from 0 to 2^64 - 1, decimal or hexadecimal after 0x".to_owned()
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        assert_eq!((parse_seed("0x1f"), parse_seed("31")), (Ok(31), Ok(31)));
        assert!(parse_seed("many").is_err() && parse_seed("0x").is_err());
        assert!(chosen(&["nothing".to_owned()]).is_err());
    }
}
