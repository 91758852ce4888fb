//! Types of options: levels of durability, kinds of keys, lengths, sizes and counts with units. An
//! error names the allowed values.

use crate::workload::random::scale;
use clap::ValueEnum;
use std::ffi::OsString;
use std::path::PathBuf;

/// The failures that a write survives once its call has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Durability {
    /// Nothing: it may still be buffered in the process
    Memory,
    /// The end of the process: logged, not synced
    Process,
    /// A power cut: logged and synced
    Sync,
}

impl Durability {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Process => "process",
            Durability::Sync => "sync",
        }
    }
}

/// Which keys records have; see `workload/keys.rs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// All over the key space.
    Random,
    /// Ascending.
    Sequential,
    /// Ascending, but so many percent anywhere.
    Mixed(u64),
    /// Nearly ascending.
    Timestamps,
    /// Near places that move on.
    Moving,
    /// One per line.
    File(PathBuf),
}

impl KeyKind {
    /// Reads an option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let allowed = "allowed are random, sequential, timestamps, moving, mixed:P with P from 0 \
                       to 100, and file:PATH";
        match text.split_once(':') {
            None if text == "random" => Ok(KeyKind::Random),
            None if text == "sequential" => Ok(KeyKind::Sequential),
            None if text == "timestamps" => Ok(KeyKind::Timestamps),
            None if text == "moving" => Ok(KeyKind::Moving),
            Some(("mixed", percent)) => match percent.parse() {
                Ok(percent) if percent <= 100 => Ok(KeyKind::Mixed(percent)),
                _ => Err(allowed.to_owned()),
            },
            Some(("file", path)) if !path.is_empty() => Ok(KeyKind::File(PathBuf::from(path))),
            _ => Err(allowed.to_owned()),
        }
    }

    /// The form on a command line: a path may be any bytes.
    pub fn argument(&self) -> OsString {
        match self {
            KeyKind::File(path) => {
                let mut argument = OsString::from("file:");
                argument.push(path);
                argument
            }
            other => other.to_string().into(),
        }
    }
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyKind::Random => f.write_str("random"),
            KeyKind::Sequential => f.write_str("sequential"),
            KeyKind::Mixed(percent) => write!(f, "mixed:{percent}"),
            KeyKind::Timestamps => f.write_str("timestamps"),
            KeyKind::Moving => f.write_str("moving"),
            KeyKind::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Lengths in bytes, all equally likely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeRange {
    /// The least.
    pub min: usize,
    /// The greatest.
    pub max: usize,
}

impl SizeRange {
    /// From `min` to `max`.
    pub fn new(min: usize, max: usize) -> Self {
        Self { min, max }
    }

    /// One length.
    #[cfg(test)]
    pub fn fixed(size: usize) -> Self {
        Self::new(size, size)
    }

    /// Reads an option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<usize>().ok();
        let range = match text.split_once("..") {
            Some((min, max)) => number(min).zip(number(max.strip_prefix('=').unwrap_or(max))),
            None => number(text).map(|size| (size, size)),
        };
        match range {
            Some((min, max)) if min <= max => Ok(Self::new(min, max)),
            _ => Err("allowed are a number of bytes, or a range such as 16..64".to_owned()),
        }
    }

    /// The length that random bits choose.
    pub fn of(self, bits: u64) -> usize {
        let span = u64::try_from(self.max - self.min).unwrap_or(u64::MAX);
        self.min + usize::try_from(scale(bits, span + 1)).unwrap_or(0)
    }

    /// The mean.
    #[expect(clippy::cast_precision_loss, reason = "a mean for people and ratios")]
    pub fn mean(self) -> f64 {
        (self.min + self.max) as f64 / 2.0
    }
}

impl std::fmt::Display for SizeRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{}..{}", self.min, self.max)
        }
    }
}

/// Reads a size: a number and a unit, powers of 1000 (`MB`) or of 1024 (`MiB`).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let allowed = || "allowed are a number and a unit: 850MB, 1GiB, 64kB".to_owned();
    let (number, unit) = split_number(text).ok_or_else(allowed)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(allowed()),
    };
    number.checked_mul(factor).ok_or_else(|| "the size is too large".to_owned())
}

/// Reads a count: a number, `k`, `M` and `G` being powers of 1000, underscores allowed.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let allowed = || "allowed are a number, and k, M or G behind it: 20M".to_owned();
    let text = text.replace('_', "");
    let (number, unit) = split_number(&text).ok_or_else(allowed)?;
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(allowed()),
    };
    number.checked_mul(factor).ok_or_else(|| "the number is too large".to_owned())
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_have_units() {
        assert_eq!(parse_size("850MB"), Ok(850_000_000));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_count("20M"), Ok(20_000_000));
        assert_eq!(parse_count("200_000"), Ok(200_000));
        assert!(parse_size("99999999TB").is_err() && parse_count("1.5M").is_err());
        let range = SizeRange::parse("10..12").unwrap();
        let lengths: Vec<usize> = [0, u64::MAX / 2, u64::MAX].map(|bits| range.of(bits)).into();
        assert_eq!(lengths, [10, 11, 12]);
    }
}
