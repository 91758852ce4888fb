//! The command line: every command and option, with its help.
//!
//! The form is `chelonia COMMAND PATH ...`: the directory of the database follows the command.
//! Commands share groups of options, which are small structs.

use crate::columns::{Column, parse_column};
use crate::formats::Format;
use crate::text::{Form, parse_memory, parse_seconds, parse_size};
use chelonia::{Compression, EngineKind};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Keys and values are text: printable characters stand for themselves, a backslash is written `\\\\`,
any other byte `\\xNN`. With --hex they are hexadecimal, two digits per byte.

JSON (--json and jsonl) has `key` and `value` as plain text, with the escapes of JSON only. Bytes
that are not UTF-8, and all keys and values with --hex, are in `key_hex` and `value_hex`, in
hexadecimal. Import accepts both forms, with or without --hex.

Exit codes:
  0  success
  1  key not found; verify found damage; salvage lost data; the tour found a mismatch
  2  invalid command line or input
  3  the store failed: no such database, open elsewhere, damaged, disk full, I/O error
  130  interrupted by Ctrl-C (128 plus the signal number: 143 for SIGTERM)";

/// Load, inspect, verify and tour a Chelonia database.
#[derive(Parser, Debug)]
#[command(name = "chelonia", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Store a value under a key; creates the database and the keyspace if necessary
    Put(Put),
    /// Print the value of a key; exit code 1 if it does not exist
    Get(Get),
    /// Delete keys; it is not an error if a key does not exist
    Delete(Delete),
    /// Print the entries of a range in key order
    Scan(Scan),
    /// Count the entries of a range
    Count(Count),
    /// Store the entries of a file; Ctrl-C stops it after storing everything read so far
    Import(Import),
    /// Write the entries of a range to a file, which is renamed to its name at the end
    Export(Export),
    /// Print sizes, memory and counters; counters start at zero with each open
    Stats(Inspect),
    /// Read and check all data and the log; exit code 1 if anything is damaged
    ///
    /// The open replays the log. Entries that do not fit into the memory budget go to an unnamed
    /// temporary file in the directory of the database, or in /var/tmp if that is not writable; it
    /// is at most as large as the log. The file is neither verified nor counted, so the result does
    /// not depend on the budget.
    Verify(Verify),
    /// Copy the readable data of a damaged database to a new one
    Salvage(Salvage),
    /// Copy a database to a new directory and verify the copy
    ///
    /// A program that has the database open can make a backup itself, while it reads and writes
    /// (`Database::backup`). To restore a backup, open it.
    Backup(Backup),
    /// Print the structure on disk
    Dump(Dump),
    /// Make a checkpoint: move the contents of the log to the data file
    Checkpoint(Checkpoint),
    /// List the keyspaces
    Keyspaces(Inspect),
    /// Drop a keyspace with all its entries
    Drop(Drop),
    /// Set the checkpoint distance of a keyspace; without --checkpoint-distance, print it
    Tune(Tune),
    /// Store files of this machine, kill a writer and recover, change the checkpoint distance
    Tour(Tour),
    /// The process that the tour kills
    #[command(hide = true)]
    TourWriter(TourWriter),
}

/// Selects a database.
#[derive(Args, Debug)]
pub struct Place {
    /// The directory of the database
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    /// The memory budget, at least 32MB; units are powers of 1024 [default: 256MB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Waiting while it is open elsewhere.
    #[command(flatten)]
    pub patience: Patience,
}

/// Waiting while the database is open elsewhere.
#[derive(Args, Debug)]
pub struct Patience {
    /// Wait up to this long while the database is open elsewhere
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    #[arg(default_value = "0", hide_default_value = true)]
    pub wait: Duration,
}

/// Selects a keyspace of a database.
#[derive(Args, Debug)]
pub struct Target {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// The keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub keyspace: String,
    /// The engine of the keyspace: turtle (the default), autumn, splinter, treeline or bminus.
    /// Fixed at its creation
    #[arg(long, value_name = "ENGINE", value_parser = parse_engine)]
    pub engine: Option<EngineKind>,
    /// How values are stored from now on: none (as they are, the default), fast, or small (if the
    /// program was built with the feature `zstd`). For turtle, autumn and splinter
    #[arg(long, value_name = "KIND", value_parser = parse_compression)]
    pub compression: Option<Compression>,
}

/// Parses the name of a compression.
fn parse_compression(name: &str) -> Result<Compression, String> {
    Compression::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Compression::ALL.iter().map(|one| one.name()).collect();
        format!("there is no such compression; there are {}", names.join(", "))
    })
}

/// Parses the name of an engine.
fn parse_engine(name: &str) -> Result<EngineKind, String> {
    EngineKind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = EngineKind::ALL.iter().map(|engine| engine.name()).collect();
        format!("there is no such engine; the engines are {}", names.join(", "))
    })
}

/// Selects the form of keys and values.
#[derive(Args, Debug)]
pub struct Spelling {
    /// Keys and values are text with escapes (the default)
    #[arg(long, conflicts_with = "hex")]
    pub text: bool,
    /// Keys and values are hexadecimal
    #[arg(long)]
    pub hex: bool,
}

impl Spelling {
    /// The selected form.
    pub fn form(&self) -> Form {
        if self.hex { Form::Hex } else { Form::Text }
    }
}

/// Selects a range of keys.
#[derive(Args, Debug)]
pub struct Bounds {
    /// The first key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// The key before which to stop
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
}

/// `put`
#[derive(Args, Debug)]
pub struct Put {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The value; if omitted, standard input is the value, byte for byte
    #[arg(allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// The form of keys and values.
    #[command(flatten)]
    pub spelling: Spelling,
}

/// `get`
#[derive(Args, Debug)]
pub struct Get {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The form of keys and values.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print the value byte for byte, without a line break
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `delete`
#[derive(Args, Debug)]
pub struct Delete {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The keys, deleted as one batch
    #[arg(required = true, allow_negative_numbers = true)]
    pub keys: Vec<OsString>,
    /// The form of keys.
    #[command(flatten)]
    pub spelling: Spelling,
}

/// `scan`
#[derive(Args, Debug)]
pub struct Scan {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The range.
    #[command(flatten)]
    pub bounds: Bounds,
    /// In descending order, from the last key
    #[arg(long)]
    pub reverse: bool,
    /// At most this many entries
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// Print only the keys
    #[arg(long)]
    pub keys: bool,
    /// The form of keys and values.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `count`
#[derive(Args, Debug)]
pub struct Count {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The range.
    #[command(flatten)]
    pub bounds: Bounds,
    /// The form of keys.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `import`
#[derive(Args, Debug)]
pub struct Import {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The file, or - for standard input
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format [default: by the extension of the file, tsv if it has none]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Skip the first line (of tsv or csv) that is not empty: it is the header
    #[arg(long)]
    pub header: bool,
    /// Do not decode escapes in fields of tsv and csv
    #[arg(long, conflicts_with_all = ["text", "hex"])]
    pub raw: bool,
    /// The column (of tsv or csv) that is the key: a number from 1, or a name in the header
    #[arg(long, value_name = "COLUMN", value_parser = parse_column, requires = "value_column")]
    pub key_column: Option<Column>,
    /// The column that is the value
    #[arg(long, value_name = "COLUMN", value_parser = parse_column, requires = "key_column")]
    pub value_column: Option<Column>,
    /// Report bad records and continue; exit code 2 if all are bad
    #[arg(long)]
    pub skip_bad: bool,
    /// The form of keys and values.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object with the counts of stored, skipped and changed entries
    #[arg(long)]
    pub json: bool,
}

/// `export`
#[derive(Args, Debug)]
pub struct Export {
    /// The keyspace.
    #[command(flatten)]
    pub target: Target,
    /// The file, or - for standard output
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format [default: by the extension of the file, tsv if it has none]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Begin (tsv or csv) with the header line `key`, `value`
    #[arg(long)]
    pub header: bool,
    /// The range.
    #[command(flatten)]
    pub bounds: Bounds,
    /// The form of keys and values.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object with the counts of the written file
    #[arg(long)]
    pub json: bool,
}

/// `stats` and `keyspaces`
#[derive(Args, Debug)]
pub struct Inspect {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `verify`
#[derive(Args, Debug)]
pub struct Verify {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// Verify only this keyspace, without the log
    #[arg(short, long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `salvage`
#[derive(Args, Debug)]
pub struct Salvage {
    /// The directory of the damaged database, which is not modified
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// The directory of the new database, which must be empty or not exist
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,
    /// The memory budget of each database, at least 32MB; units are powers of 1024 [default: 256MB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `backup`
#[derive(Args, Debug)]
pub struct Backup {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// The directory of the backup, which must be empty or not exist
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `dump`
#[derive(Args, Debug)]
pub struct Dump {
    /// The directory of the database
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    /// Waiting while it is open elsewhere.
    #[command(flatten)]
    pub patience: Patience,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
    /// Print all keys in JSON in hexadecimal, even if they are text
    #[arg(long, requires = "json")]
    pub hex: bool,
}

/// `checkpoint`
#[derive(Args, Debug)]
pub struct Checkpoint {
    /// The database.
    #[command(flatten)]
    pub place: Place,
}

/// `drop`
#[derive(Args, Debug)]
pub struct Drop {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// The keyspace
    #[arg(value_name = "KEYSPACE")]
    pub keyspace: String,
}

/// `tune`
#[derive(Args, Debug)]
pub struct Tune {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// The keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub keyspace: String,
    /// Bytes of updates between two checkpoints, such as 64MB (units are powers of 1024), or `auto`
    /// to follow the memory budget
    #[arg(long, value_name = "SIZE", value_parser = parse_distance)]
    pub checkpoint_distance: Option<Distance>,
    /// Space of a leaf before it is merged, in percent of its merged entries, from 110 to 300: for
    /// keyspaces of the engine splinter
    #[arg(long, value_name = "PERCENT")]
    pub space_percent: Option<u32>,
    /// How values are stored from now on: none (as they are), fast, or small (if the program was
    /// built with the feature `zstd`). For turtle, autumn and splinter
    #[arg(long, value_name = "KIND", value_parser = parse_compression)]
    pub compression: Option<Compression>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A checkpoint distance of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// Follows the memory budget.
    Auto,
    /// In bytes.
    Bytes(u64),
}

/// Parses a checkpoint distance.
fn parse_distance(text: &str) -> Result<Distance, String> {
    if text == "auto" {
        return Ok(Distance::Auto);
    }
    parse_size(text).map(Distance::Bytes)
}

/// `tour`
#[derive(Args, Debug)]
pub struct Tour {
    /// The folder or file to store [default: the sources that cargo keeps on this machine]
    #[arg(value_name = "PATH")]
    pub source: Option<PathBuf>,
    /// Keep the tour's databases in this new directory instead of a temporary one
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// The memory budget of each database, at least 32MB; units are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "256MB")]
    pub memory: u64,
    /// Store at most this many files
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    pub files_max: usize,
    /// Store at most this many bytes of files
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GB")]
    pub bytes_max: u64,
    /// The number of updates at each of three checkpoint distances
    #[arg(long, value_name = "COUNT", default_value_t = 300_000)]
    pub updates: u64,
    /// The number of acknowledged writes after which the writer is killed
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    pub acknowledgements: u64,
}

/// `tour-writer`
#[derive(Args, Debug)]
pub struct TourWriter {
    /// The directory of the database
    pub path: PathBuf,
    /// The memory budget
    #[arg(long, value_parser = parse_memory)]
    pub memory: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_has_the_minimum_and_the_default_of_memory() {
        let help = Arguments::command().find_subcommand_mut("get").unwrap().render_help();
        assert_eq!(parse_size("32MB").unwrap(), chelonia::limits::MEMORY_BYTES_MIN);
        assert_eq!(parse_size("256MB").unwrap(), chelonia::limits::MEMORY_BYTES_DEFAULT);
        let help = help.to_string();
        assert!(help.contains("at least 32MB") && help.contains("[default: 256MB]"), "{help}");
    }

    #[test]
    fn the_text_of_the_default_is_the_number() {
        let Command::Tour(tour) = Arguments::parse_from(["chelonia", "tour"]).command else {
            panic!("another command");
        };
        assert_eq!(tour.memory, chelonia::limits::MEMORY_BYTES_DEFAULT);
    }
}
