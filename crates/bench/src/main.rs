//! The program `chelonia-bench`: runs the same workloads on Chelonia and on other stores, on the
//! same machine.
//!
//! `workload/mod.rs` has the workloads, `driver/mod.rs` runs and measures them, `stores/mod.rs` has
//! the stores. Tables go to standard output, everything else to standard error; `failure.rs` and
//! the help list the exit codes.

mod cgroup;
mod compare;
mod drive;
mod driver;
mod failure;
mod figures;
mod kinds;
mod options;
mod process;
mod record;
mod report;
mod run;
mod shape;
mod stores;
mod table;
mod transfers;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  a store gave a wrong value, or none where there is one
  2  the command line or the input is wrong, or the store is not in this build
  3  a store or a file could not do it";

/// Measure Chelonia and other stores with the same workloads.
#[derive(Parser, Debug)]
#[command(name = "chelonia-bench", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
enum Command {
    /// Measure one store, phase by phase, on a new database
    Run(run::Run),
    /// Measure several stores, one after the other, and compare them
    Compare(compare::Compare),
    /// Measure and draw one figure, as SVG with its data beside it
    Figure(figures::Figure),
    /// Run a command while a folder is on a simulated drive that compresses and counts what it
    /// writes
    Drive(drive::Drive),
    /// Measure transactions that move money between accounts
    Transfers(transfers::Transfers),
    /// Write one page of all figures and results in a directory
    Report(report::Report),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Compare(arguments) => compare::compare(arguments),
        Command::Figure(arguments) => figures::figure(arguments),
        Command::Drive(arguments) => drive::drive(arguments),
        Command::Transfers(arguments) => transfers::run(arguments),
        Command::Report(arguments) => report::report(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
