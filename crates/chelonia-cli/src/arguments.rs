//! What the command line looks like: every command, every option, their help.
//!
//! The form is `chelonia COMMAND PATH ...`: the directory of the database comes first after the
//! command. Options are grouped in small structs that the commands share.

use crate::columns::{Column, parse_column};
use crate::formats::Format;
use crate::text::{Form, parse_memory, parse_seconds, parse_size};
use chelonia::EngineKind;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Keys and values are text: printable characters stand for themselves, a backslash is written `\\\\`,
any other byte `\\xNN`. With --hex they are hexadecimal, two digits a byte.

JSON (--json and jsonl) says itself which it is: `key` and `value` are the text as it is, with the
escapes of JSON only; `key_hex` and `value_hex` are hexadecimal, for what is not UTF-8, and for all
with --hex. Import takes either, whatever the options say.

Exit codes:
  0  success
  1  key not found; verify found damage; salvage lost data; the tour found a mismatch
  2  invalid command line or input
  3  the store failed: no such database, open elsewhere, damaged, disk full, I/O error
  130  interrupted by Ctrl-C (128 plus the signal number: 143 for SIGTERM)";

/// Load, look into, verify and tour a Chelonia database.
#[derive(Parser, Debug)]
#[command(name = "chelonia", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Store a value under a key; makes the database and the keyspace if need be
    Put(Put),
    /// Print the value of a key; exit code 1 if it is not there
    Get(Get),
    /// Delete keys; a key that is not there is no error
    Delete(Delete),
    /// Print the entries of a range in key order
    Scan(Scan),
    /// Count the entries of a range
    Count(Count),
    /// Store the entries of a file; Ctrl-C ends it with what was stored
    Import(Import),
    /// Write the entries of a range to a file, which has its name when it is whole
    Export(Export),
    /// Print sizes, memory and counters; counters are of this open alone
    Stats(Inspect),
    /// Read all data and the log and check them; exit code 1 if anything is damaged
    ///
    /// The open before it replays the log, as every open does. What of that does not fit into the
    /// memory budget goes to a temporary file without a name, in the database's directory or, where
    /// that may not be written, in /var/tmp: as much room as the log takes is enough. What is
    /// verified and counted is the database alone, whatever the budget.
    Verify(Verify),
    /// Save what can be read of a damaged database to a new one
    Salvage(Salvage),
    /// Print the structure on disk
    Dump(Dump),
    /// Move what is in the log into the data file
    Checkpoint(Checkpoint),
    /// List the keyspaces
    Keyspaces(Inspect),
    /// Drop a keyspace with everything in it
    Drop(Drop),
    /// Store real files, compare everything, recover from a kill, and show what it took
    Tour(Tour),
    /// The process that the tour kills
    #[command(hide = true)]
    TourWriter(TourWriter),
}

/// Which database.
#[derive(Args, Debug)]
pub struct Place {
    /// The directory of the database
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    /// The memory budget, at least 32MB; units are powers of 1024 [default: 256MB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// What to do while it is open elsewhere.
    #[command(flatten)]
    pub patience: Patience,
}

/// What to do while the database is open elsewhere.
#[derive(Args, Debug)]
pub struct Patience {
    /// Wait at most this long for a database that is open elsewhere
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    #[arg(default_value = "0", hide_default_value = true)]
    pub wait: Duration,
}

/// Which keyspace of which database.
#[derive(Args, Debug)]
pub struct Target {
    /// The database.
    #[command(flatten)]
    pub place: Place,
    /// The keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub keyspace: String,
    /// How the keyspace keeps its data: turtle (the default) or autumn. Fixed when it is made
    #[arg(long, value_name = "ENGINE", value_parser = parse_engine)]
    pub engine: Option<EngineKind>,
}

/// The engine of a name.
fn parse_engine(name: &str) -> Result<EngineKind, String> {
    EngineKind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = EngineKind::ALL.iter().map(|engine| engine.name()).collect();
        format!("there is no such engine; there are {}", names.join(" and "))
    })
}

/// How keys and values are written.
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
    /// The form chosen.
    pub fn form(&self) -> Form {
        if self.hex { Form::Hex } else { Form::Text }
    }
}

/// Which keys.
#[derive(Args, Debug)]
pub struct Bounds {
    /// The first key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// The key to stop before
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
}

/// `put`
#[derive(Args, Debug)]
pub struct Put {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The value; without it standard input is the value, byte for byte
    #[arg(allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// How keys and values are written.
    #[command(flatten)]
    pub spelling: Spelling,
}

/// `get`
#[derive(Args, Debug)]
pub struct Get {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// How keys and values are written.
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
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// The keys, deleted as one batch
    #[arg(required = true, allow_negative_numbers = true)]
    pub keys: Vec<OsString>,
    /// How keys are written.
    #[command(flatten)]
    pub spelling: Spelling,
}

/// `scan`
#[derive(Args, Debug)]
pub struct Scan {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Which keys.
    #[command(flatten)]
    pub bounds: Bounds,
    /// From the greatest key down
    #[arg(long)]
    pub reverse: bool,
    /// At most this many entries
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
    /// Print the keys alone
    #[arg(long)]
    pub keys: bool,
    /// How keys and values are written.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `count`
#[derive(Args, Debug)]
pub struct Count {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Which keys.
    #[command(flatten)]
    pub bounds: Bounds,
    /// How keys are written.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `import`
#[derive(Args, Debug)]
pub struct Import {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// The file, or - for standard input
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format; by default what the file's name ends with, tsv if it has no extension
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// The first line (of tsv or csv) that is not empty is a heading
    #[arg(long)]
    pub header: bool,
    /// Take fields of tsv and csv as they are: a backslash is a backslash
    #[arg(long, conflicts_with_all = ["text", "hex"])]
    pub raw: bool,
    /// The column (of tsv or csv) that is the key: a number from 1, or a name of the heading
    #[arg(long, value_name = "COLUMN", value_parser = parse_column, requires = "value_column")]
    pub key_column: Option<Column>,
    /// The column that is the value
    #[arg(long, value_name = "COLUMN", value_parser = parse_column, requires = "key_column")]
    pub value_column: Option<Column>,
    /// Report bad records and go on; if all are bad the exit code is 2
    #[arg(long)]
    pub skip_bad: bool,
    /// How keys and values are written.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object with what was stored, and counts of what was not
    #[arg(long)]
    pub json: bool,
}

/// `export`
#[derive(Args, Debug)]
pub struct Export {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// The file, or - for standard output
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format; by default what the file's name ends with, tsv if it has no extension
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Begin (tsv or csv) with the heading `key`, `value`
    #[arg(long)]
    pub header: bool,
    /// Which keys.
    #[command(flatten)]
    pub bounds: Bounds,
    /// How keys and values are written.
    #[command(flatten)]
    pub spelling: Spelling,
    /// Print a JSON object about what was written to the file
    #[arg(long)]
    pub json: bool,
}

/// `stats` and `keyspaces`
#[derive(Args, Debug)]
pub struct Inspect {
    /// Where.
    #[command(flatten)]
    pub place: Place,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `verify`
#[derive(Args, Debug)]
pub struct Verify {
    /// Where.
    #[command(flatten)]
    pub place: Place,
    /// Only this keyspace, and not the log
    #[arg(short, long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `salvage`
#[derive(Args, Debug)]
pub struct Salvage {
    /// The directory of the damaged database, which stays as it is
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// The directory of the new one, which must not exist or be empty
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,
    /// The memory budget of each, such as 256MB (units are powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
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
    /// What to do while it is open elsewhere.
    #[command(flatten)]
    pub patience: Patience,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Keys in JSON are hexadecimal, also those that are text
    #[arg(long, requires = "json")]
    pub hex: bool,
}

/// `checkpoint`
#[derive(Args, Debug)]
pub struct Checkpoint {
    /// Where.
    #[command(flatten)]
    pub place: Place,
}

/// `drop`
#[derive(Args, Debug)]
pub struct Drop {
    /// Where.
    #[command(flatten)]
    pub place: Place,
    /// The keyspace
    #[arg(value_name = "KEYSPACE")]
    pub keyspace: String,
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
    /// How many updates are written at each of three checkpoint distances
    #[arg(long, value_name = "COUNT", default_value_t = 300_000)]
    pub updates: u64,
    /// How many writes are acknowledged before the writer is killed
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
    fn help_tells_the_least_memory_and_the_default() {
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
