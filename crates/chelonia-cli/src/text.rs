//! Bytes as people write them: text with escapes, hexadecimal, sizes with units.
//!
//! Both forms are exact: every sequence of bytes has one spelling that comes back to it.
//!
//! | form | spelling |
//! | --- | --- |
//! | text | printable characters as they are, a backslash as `\\`, any other byte as `\xNN` |
//! | hex | two digits a byte, lower case; upper case is read too |
//!
//! Reading text also takes `\t`, `\n`, `\r` and `\0`.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// How bytes are written.
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

    /// Reads what [`Form::write`] wrote; the error says what is wrong.
    pub fn read(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Form::Text => unescape(text),
            Form::Hex => from_hex(text),
        }
    }

    /// Reads an argument of the command line.
    pub fn read_argument(self, argument: &OsStr) -> Result<Vec<u8>, String> {
        self.read(argument.as_bytes())
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

/// True if a terminal shows `character` and nothing else happens.
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
            return Err("a backslash at the end: write `\\\\` for one".to_owned());
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
                return Err(format!("`\\{other}` is no escape: write `\\\\` for a backslash"));
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
        return Err("hexadecimal needs two digits a byte".to_owned());
    }
    let pairs = text.chunks_exact(2).map(|pair| byte_of(pair[0], pair[1]));
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.ok_or_else(|| "only the digits 0-9 and a-f are hexadecimal".to_owned())
}

fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// Reads a size: a number, and a unit of powers of 1024 (`K`, `KB`, `KiB`, `M`, ..., `G`, `T`).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a size is a number and a unit: 256MB")?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("the unit of a size is one of B, KB, MB, GB, TB".to_owned()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "the size is too large".to_owned())
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
        for bad in ["", "MB", "1XB", "-1", "99999999999TB", "1.5GB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
