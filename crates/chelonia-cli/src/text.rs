//! Text forms: bytes as text with escapes or as hexadecimal, sizes with units, times.
//!
//! Both forms of bytes are exact: what is written is read back as the same bytes.
//!
//! | form | spelling |
//! | --- | --- |
//! | text | printable characters as they are, a backslash as `\\`, any other byte as `\xNN` |
//! | hex | two digits a byte, lower case; upper case is read too |
//!
//! Reading text also takes `\t`, `\n`, `\r` and `\0`.

use chelonia::limits::MEMORY_BYTES_MIN;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The form of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text with escapes.
    Text,
    /// Hexadecimal.
    Hex,
}

impl Form {
    /// Writes `bytes`.
    pub fn write(self, bytes: &[u8]) -> String {
        match self {
            Form::Text => escape(bytes),
            Form::Hex => to_hex(bytes),
        }
    }

    /// Reads the output of [`Form::write`]; the error describes the flaw.
    pub fn read(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Form::Text => unescape(text),
            Form::Hex => from_hex(text),
        }
    }

    /// Reads an argument of the command line.
    pub fn read_argument(self, argument: &OsStr) -> Result<Vec<u8>, String> {
        self.read(argument.as_bytes()).map_err(|error| match self {
            Form::Text => format!("{error}: write `\\\\` for a backslash"),
            Form::Hex => error,
        })
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' {
                text.push_str("\\\\");
            } else if is_printable(character) {
                text.push(character);
            } else {
                let mut buffer = [0; 4];
                escape_bytes(character.encode_utf8(&mut buffer).as_bytes(), &mut text);
            }
        }
        escape_bytes(chunk.invalid(), &mut text);
    }
    text
}

fn escape_bytes(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// True if a terminal shows `character` and does nothing else.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    character.escape_debug().count() == 1
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let Some((kind, tail)) = rest.split_first() else {
            return Err("a backslash at the end is not an escape".to_owned());
        };
        rest = tail;
        bytes.push(match kind {
            b'\\' => b'\\',
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'0' => 0,
            b'x' => {
                let digits = rest.get(..2).and_then(|pair| byte_of(pair[0], pair[1]));
                let Some(byte) = digits else {
                    return Err("`\\x` needs two hexadecimal digits".to_owned());
                };
                rest = &rest[2..];
                byte
            }
            other => {
                let other = char::from(*other).escape_default();
                return Err(format!("`\\{other}` is not an escape"));
            }
        });
    }
    Ok(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) {
        return Err("hexadecimal needs two digits per byte".to_owned());
    }
    let pairs = text.chunks_exact(2).map(|pair| byte_of(pair[0], pair[1]));
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.ok_or_else(|| "only the digits 0-9 and a-f are hexadecimal".to_owned())
}

fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// Parses a size: an integer or decimal number, and a unit of powers of 1024 (`K`, `KB`, `KiB`,
/// `M`, ..., `G`, `T`). Fractions of a byte are dropped.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let end = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ if number.is_empty() => return Err(NO_SIZE.to_owned()),
        _ => return Err("the unit of a size is one of B, KB, MB, GB, TB".to_owned()),
    };
    let (integer, part) = number.split_once('.').unwrap_or((number, "0"));
    if shift == 0 && number.contains('.') {
        return Err("a number of bytes has no fraction: add a unit, as in 1.5GB".to_owned());
    }
    if [integer, part].iter().any(|digits| digits.is_empty() || digits.contains('.')) {
        return Err(NO_SIZE.to_owned());
    }
    let too_large = || "the size is too large".to_owned();
    let integer: u64 = integer.parse().map_err(|_| too_large())?;
    let integer = integer.checked_mul(1 << shift).ok_or_else(too_large)?;
    // Further digits are much less than a byte.
    let digits = &part[..part.len().min(FRACTION_DIGITS_MAX)];
    let numerator: u128 = digits.parse().map_err(|_| NO_SIZE.to_owned())?;
    let scale = digits.bytes().fold(1_u128, |scale, _| scale * 10);
    let part = u64::try_from((numerator << shift) / scale).map_err(|_| too_large())?;
    integer.checked_add(part).ok_or_else(too_large)
}

/// Parses a memory budget: a size of at least the minimum.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < MEMORY_BYTES_MIN {
        return Err(format!("{text} is below the minimum of {}MB", MEMORY_BYTES_MIN >> 20));
    }
    Ok(bytes)
}

const NO_SIZE: &str = "a size is a number and a unit: 256MB, 1.5GB";

/// The number of digits after the point that are read.
const FRACTION_DIGITS_MAX: usize = 18;

/// Parses a time in seconds, an integer or a decimal number.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "a time is a number of seconds: 10 or 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back_in_both_forms() {
        let all: Vec<u8> = (0..=255).collect();
        let samples: [&[u8]; 8] = [
            &all,
            b"",
            b"plain text",
            b"a\\b\\x00\\",
            b"\t\n\r\0",
            "\u{e9}t\u{e9} \u{1f422} \u{202e} \u{85}".as_bytes(),
            &[0xe2, 0x82, b'a', 0xff],
            b"\\\\x41",
        ];
        for bytes in samples {
            for form in [Form::Text, Form::Hex] {
                let text = form.write(bytes);
                assert!(text.chars().all(is_printable), "{text:?}");
                assert_eq!(form.read(text.as_bytes()).unwrap(), bytes, "{text:?}");
            }
        }
    }

    #[test]
    fn spellings_are_as_documented() {
        assert_eq!(escape(b"a b\\\"\x00\xff"), "a b\\\\\"\\x00\\xff");
        assert_eq!(escape("\u{e9}".as_bytes()), "\u{e9}");
        assert_eq!(escape("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(unescape(b"\\t\\n\\r\\0\\\\\\x41\\xfF").unwrap(), b"\t\n\r\0\\A\xff");
        assert_eq!(to_hex(b"\x00\xab"), "00ab");
        assert_eq!(from_hex(b"00AB").unwrap(), b"\x00\xab");
    }

    #[test]
    fn wrong_spellings_are_refused() {
        for bad in [&b"\\"[..], b"\\x", b"\\x4", b"\\xg0", b"\\q", b"\\x+1"] {
            assert!(unescape(bad).is_err(), "{bad:?}");
        }
        for bad in [&b"0"[..], b"0g", b"+1", b"0 "] {
            assert!(from_hex(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("256MB").unwrap(), 256 << 20);
        assert_eq!(parse_size("1 GiB").unwrap(), 1 << 30);
        assert_eq!(parse_size("17").unwrap(), 17);
        assert_eq!(parse_size("1.5GB").unwrap(), 3 << 29);
        assert_eq!(parse_size("0.25 kib").unwrap(), 256);
        assert_eq!(parse_size("1.0001K").unwrap(), 1024);
        assert_eq!(parse_size(&format!("1.{}T", "9".repeat(99))).unwrap(), (2 << 40) - 1);
        assert_eq!(parse_size(&u64::MAX.to_string()).unwrap(), u64::MAX);
        let bad =
            ["", "MB", "1XB", "-1", "99999999999TB", "1.5", "1.5B", ".5GB", "1.GB", ".", "1.2.3K"];
        for bad in bad {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_size("99999999999999999999").unwrap_err().contains("too large"));
        assert!(parse_size("MB").unwrap_err().contains("a number and a unit"));
    }

    #[test]
    fn a_memory_budget_has_a_minimum() {
        assert_eq!(parse_memory("32MB").unwrap(), MEMORY_BYTES_MIN);
        let error = parse_memory("1MB").unwrap_err();
        assert_eq!(error, "1MB is below the minimum of 32MB");
        assert!(parse_memory("31.999MB").is_err() && parse_memory("MB").is_err());
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!(parse_seconds("10").unwrap(), Duration::from_secs(10));
        assert_eq!(parse_seconds("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["", "-1", "1s", "inf", "NaN", "1e99"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
