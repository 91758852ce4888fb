//! Keys and values in JSON; the names of members say how to read them.
//!
//! ```text
//!   {"key": "caf\u00e9 \\ 1", "value_hex": "00ff"}
//! ```
//!
//! Bytes that are UTF-8 are a string with JSON escapes only, named `key` or `value`. Other bytes,
//! or all bytes if hexadecimal is requested, are two digits per byte, named `key_hex` or
//! `value_hex`. A record has one of each pair, not both; members with other names are skipped.

use crate::text::Form;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// The largest number of bytes in JSON for one byte of text: `\u0000`.
pub const TEXT_FACTOR_MAX: usize = 6;

/// The two names of bytes in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    text: &'static str,
    hex: &'static str,
}

/// The key of an entry.
pub const KEY: Member = Member { text: "key", hex: "key_hex" };

/// The value of an entry.
pub const VALUE: Member = Member { text: "value", hex: "value_hex" };

impl Member {
    /// Writes `"name":"..."`.
    fn write(self, out: &mut impl Write, form: Form, bytes: &[u8]) -> io::Result<()> {
        match std::str::from_utf8(bytes) {
            Ok(text) if form == Form::Text => {
                write!(out, "\"{}\":", self.text)?;
                // Directly to the output: a value may be large.
                Ok(serde_json::to_writer(out, text)?)
            }
            _ => write!(out, "\"{}\":\"{}\"", self.hex, Form::Hex.write(bytes)),
        }
    }

    /// Removes the bytes from `object`; the error names the member.
    fn take(self, object: &mut Map<String, Value>) -> Result<Vec<u8>, String> {
        let Self { text, hex } = self;
        match (object.remove(text), object.remove(hex)) {
            (None, None) => Err(format!("there is neither `{text}` nor `{hex}`")),
            (Some(_), Some(_)) => Err(format!("there are both `{text}` and `{hex}`")),
            (Some(Value::String(value)), None) => Ok(value.into_bytes()),
            (None, Some(Value::String(digits))) => {
                Form::Hex.read(digits.as_bytes()).map_err(|error| format!("`{hex}`: {error}"))
            }
            (Some(_), None) => Err(format!("`{text}` is not a string")),
            (None, Some(_)) => Err(format!("`{hex}` is not a string")),
        }
    }
}

/// Writes an entry as an object and a line break.
pub fn write_entry(out: &mut impl Write, form: Form, key: &[u8], value: &[u8]) -> io::Result<()> {
    out.write_all(b"{")?;
    KEY.write(out, form, key)?;
    out.write_all(b",")?;
    VALUE.write(out, form, value)?;
    out.write_all(b"}\n")
}

/// Writes the key of an entry as an object and a line break.
pub fn write_key(out: &mut impl Write, form: Form, key: &[u8]) -> io::Result<()> {
    out.write_all(b"{")?;
    KEY.write(out, form, key)?;
    out.write_all(b"}\n")
}

/// Reads an entry, and counts the other members; the error describes the flaw.
pub fn read_entry(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>, usize), String> {
    let mut object = match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object,
        _ if line.trim_ascii_start().starts_with(b"[") => {
            return Err("a JSON array; jsonl needs one object per line".to_owned());
        }
        Ok(_) => return Err("the line is not one JSON object".to_owned()),
        Err(error) if error.is_eof() && line.trim_ascii_start().starts_with(b"{") => {
            return Err(
                "a JSON object that does not end; jsonl needs one object per line".to_owned()
            );
        }
        Err(error) => {
            // The error names a line of the record, which has only one.
            let (reason, column) = (error.to_string(), error.column());
            let reason = reason.split(" at line ").next().unwrap_or_default();
            return Err(format!("the line is not one JSON object: column {column}: {reason}"));
        }
    };
    let (key, value) = (KEY.take(&mut object)?, VALUE.take(&mut object)?);
    Ok((key, value, object.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, key: &[u8], value: &[u8]) -> String {
        let mut line = Vec::new();
        write_entry(&mut line, form, key, value).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn text_is_a_string_and_other_bytes_are_hexadecimal() {
        let line = written(Form::Text, "caf\u{e9}\\x41 \"\t\0".as_bytes(), b"\xff");
        let expected = "{\"key\":\"caf\u{e9}\\\\x41 \\\"\\t\\u0000\",\"value_hex\":\"ff\"}\n";
        assert_eq!(line, expected);
        let line = written(Form::Text, b"\xc3", b"");
        assert_eq!(line, "{\"key_hex\":\"c3\",\"value\":\"\"}\n");
        let line = written(Form::Hex, b"a", b"");
        assert_eq!(line, "{\"key_hex\":\"61\",\"value_hex\":\"\"}\n");
    }

    #[test]
    fn lines_of_other_programs_are_read() {
        let cases: [(&str, &[u8], &[u8]); 5] = [
            (r#"{"key":"C:\\dir\\new","value":"\\\\n \\x41"}"#, b"C:\\dir\\new", b"\\\\n \\x41"),
            (
                r#" { "value" : "\u00e9\ud83d\ude00\/" , "key" : "" } "#,
                b"",
                "\u{e9}\u{1f600}/".as_bytes(),
            ),
            (r#"{"id":7,"key":"k","tags":[{"key":1}],"value":"v"}"#, b"k", b"v"),
            (r#"{"key_hex":"00FF","value":"v"}"#, b"\x00\xff", b"v"),
            (r#"{"key":"00ff","value_hex":""}"#, b"00ff", b""),
        ];
        for (line, key, value) in cases {
            let left_out = if line.contains("tags") { 2 } else { 0 };
            let expected = Ok((key.to_vec(), value.to_vec(), left_out));
            assert_eq!(read_entry(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn errors_describe_the_flaw_of_a_line() {
        let cases = [
            (r#"{"value":"v"}"#, "neither `key` nor `key_hex`"),
            (r#"{"key":"k","Value":"v"}"#, "neither `value` nor `value_hex`"),
            (r#"{"key":"k","key_hex":"6b","value":"v"}"#, "both `key` and `key_hex`"),
            (r#"{"key":"k","value":null,"value_hex":null}"#, "both `value` and `value_hex`"),
            (r#"{"key":7,"value":"v"}"#, "`key` is not a string"),
            (r#"{"key":"k","value_hex":[]}"#, "`value_hex` is not a string"),
            (r#"{"key_hex":"0","value":"v"}"#, "`key_hex`: hexadecimal needs two digits"),
            (r#"{"key":"k","value_hex":"zz"}"#, "`value_hex`: only the digits"),
            (r#"{"key":"k","value":"v"} {}"#, "not one JSON object: column 25: trailing"),
            (r#"{"key":"\ud800","value":"v"}"#, "not one JSON object: column "),
            ("[]", "a JSON array; jsonl needs one object per line"),
            (" [{\"key\":\"k\",\"value\":\"v\"},", "a JSON array; jsonl needs one object per line"),
            ("{", "a JSON object that does not end; jsonl needs one object per line"),
            ("{\"key\":\"k", "a JSON object that does not end"),
            ("", "not one JSON object"),
        ];
        for (line, message) in cases {
            let error = read_entry(line.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        assert!(read_entry(b"{\"key\":\"\xff\",\"value\":\"\"}").is_err(), "no UTF-8");
    }
}
