//! What to try after the tour: lines that a shell takes as they stand, called where the tour was.
//!
//! So the program has the name by which it was called, every path is quoted where need be, new
//! databases have names that are free, and the same tour has the options that it had.

use super::home::Home;
use crate::arguments::{ACKNOWLEDGEMENTS, BYTES_MAX, FILES_MAX, Tour, UPDATES};
use chelonia::limits::MEMORY_BYTES_DEFAULT;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The memory of the tour in less memory.
const LESS_MEMORY: u64 = 64 << 20;

/// A heading and the lines.
pub fn steps(home: &Home, arguments: &Tour) -> Vec<String> {
    let program = std::env::args_os().next().unwrap_or_else(|| OsString::from("chelonia"));
    let program = quoted(&program);
    let mut lines = vec![String::new(), "What to try next:".to_owned()];
    match home {
        Home::Temporary(_) => {
            let (kept, mine) = (free_name("toured"), free_name("mine"));
            let same = options(arguments, arguments.memory);
            lines.push(format!("  {program} tour{same} --db {kept}   # and keep the databases"));
            if arguments.memory > LESS_MEMORY {
                let less = options(arguments, LESS_MEMORY);
                lines.push(format!("  {program} tour{less}   # in less memory"));
            }
            lines.push(format!("  {program} put {mine} hello world && {program} get {mine} hello"));
        }
        Home::Named(path) => {
            let path = path_argument(&path.join("files"));
            lines.push(format!("  {program} stats {path}"));
            lines.push(format!("  {program} scan {path} --keyspace hashes --limit 10"));
            lines.push(format!("  {program} dump {path} | head -n 40"));
        }
    }
    lines
}

/// The arguments of the same tour, but for the memory and the place.
fn options(arguments: &Tour, memory: u64) -> String {
    let mut text = String::new();
    let numbers = [
        ("memory", memory, MEMORY_BYTES_DEFAULT),
        ("files-max", arguments.files_max as u64, FILES_MAX as u64),
        ("bytes-max", arguments.bytes_max, BYTES_MAX),
        ("updates", arguments.updates, UPDATES),
        ("acknowledgements", arguments.acknowledgements, ACKNOWLEDGEMENTS),
    ];
    if let Some(source) = &arguments.source {
        text.push(' ');
        text.push_str(&path_argument(source));
    }
    for (name, number, default) in numbers {
        if number != default {
            let is_size = matches!(name, "memory" | "bytes-max");
            let number = if is_size { size(number) } else { number.to_string() };
            text.push_str(&format!(" --{name} {number}"));
        }
    }
    text
}

/// A size as `--memory` takes it.
fn size(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    if bytes > 0 && bytes.is_multiple_of(MEBIBYTE) {
        return format!("{}MB", bytes / MEBIBYTE);
    }
    bytes.to_string()
}

/// `name`, or `name-2`, `name-3`, ... if something has that name here.
fn free_name(name: &str) -> String {
    let is_free = |name: &String| std::fs::symlink_metadata(name).is_err();
    let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
}

/// A path as an argument: not to be taken for an option.
fn path_argument(path: &Path) -> String {
    if path.as_os_str().as_bytes().starts_with(b"-") {
        return quoted(PathBuf::from(".").join(path).as_os_str());
    }
    quoted(path.as_os_str())
}

/// A word of a shell.
fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,=".contains(byte);
    let bytes = word.as_bytes();
    match word.to_str() {
        Some(text) if !bytes.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let escaped = bytes.iter().map(|byte| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                // Three digits always: what follows may be a digit.
                _ => format!("\\{byte:03o}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_need_be() {
        let cases: [(&[u8], &str); 6] = [
            (b"target/release/chelonia-1.0", "target/release/chelonia-1.0"),
            (b"", "''"),
            (b"a b", "'a b'"),
            (b"it's $HOME", "'it'\\''s $HOME'"),
            ("\u{e9}".as_bytes(), "'\u{e9}'"),
            (b"a\n\xff'1", "$'a\\012\\377\\'1'"),
        ];
        for (word, expected) in cases {
            assert_eq!(quoted(OsStr::from_bytes(word)), expected);
        }
        assert_eq!(path_argument(Path::new("-x")), "./-x");
        assert_eq!(path_argument(Path::new("x")), "x");
    }

    #[test]
    fn sizes_are_taken_back() {
        for bytes in [0, 1, 1 << 20, 3 << 29, (1 << 30) + 1] {
            assert_eq!(crate::text::parse_size(&size(bytes)), Ok(bytes));
        }
        assert_eq!(size(LESS_MEMORY), "64MB");
    }
}
