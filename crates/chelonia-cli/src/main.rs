//! The program `chelonia`: load, inspect, verify and tour a Chelonia database.
//!
//! `arguments.rs` has the command line, `commands/mod.rs` and `tour/mod.rs` the commands. Data goes
//! to standard output, everything else to standard error; `failure.rs` and the help list the exit
//! codes. The program ends without an error if the reader of a pipe closes it.

mod arguments;
mod columns;
mod commands;
mod descriptors;
mod destination;
mod failure;
mod formats;
mod interrupt;
mod json;
mod output;
mod text;
mod tour;

use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: &Command) -> failure::Result<()> {
    match command {
        Command::Put(arguments) => commands::entries::put(arguments),
        Command::Get(arguments) => commands::entries::get(arguments),
        Command::Delete(arguments) => commands::entries::delete(arguments),
        Command::Scan(arguments) => commands::entries::scan(arguments),
        Command::Count(arguments) => commands::entries::count(arguments),
        Command::Import(arguments) => commands::transfer::import(arguments),
        Command::Export(arguments) => commands::transfer::export(arguments),
        Command::Stats(arguments) => commands::inspect::stats(arguments),
        Command::Verify(arguments) => commands::damage::verify(arguments),
        Command::Salvage(arguments) => commands::damage::salvage(arguments),
        Command::Backup(arguments) => commands::backup::backup(arguments),
        Command::Dump(arguments) => commands::dump::dump(arguments),
        Command::Checkpoint(arguments) => commands::inspect::checkpoint(arguments),
        Command::Drop(arguments) => commands::inspect::drop(arguments),
        Command::Keyspaces(arguments) => commands::inspect::keyspaces(arguments),
        Command::Tune(arguments) => commands::tune::tune(arguments),
        Command::Tour(arguments) => tour::tour(arguments),
        Command::TourWriter(arguments) => tour::kill::write_until_killed(arguments),
    }
}
