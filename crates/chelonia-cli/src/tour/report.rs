//! What the tour shows: a line when a step is done, a bar while it runs, a table at the end.

use crate::failure::Result;
use crate::output::{Align, Output, Table, bytes, grouped, output};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// Measures a step.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    start: Instant,
}

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "the tour measures, and nothing depends on it")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time since the start.
    pub fn elapsed(self) -> Duration {
        self.start.elapsed()
    }
}

/// A row of the table: what was done, how often, how much, how fast.
#[derive(Debug)]
pub struct Row {
    /// In a few words.
    pub what: String,
    /// How many operations.
    pub count: u64,
    /// How many bytes of keys and values; 0 if that means nothing here.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// (data and log bytes written) / (bytes of keys and values), where it was measured.
    pub write_amplification: Option<f64>,
    /// Blocks that an operation had to read from the device, where it was measured.
    pub blocks_read: Option<f64>,
}

impl Row {
    /// `count` operations in the time of `watch`.
    pub fn new(what: impl Into<String>, count: u64, bytes: u64, watch: Stopwatch) -> Self {
        let time = watch.elapsed();
        let what = what.into();
        Self { what, count, bytes, time, write_amplification: None, blocks_read: None }
    }

    /// Operations a second; a single one, or none, is no rate.
    fn per_second(&self) -> Option<u64> {
        if self.count < 2 {
            return None;
        }
        let nanos = self.time.as_nanos().max(1);
        let rate = u128::from(self.count) * 1_000_000_000 / nanos;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    fn size(&self) -> String {
        if self.bytes == 0 { String::new() } else { bytes(self.bytes) }
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "count": self.count,
            "bytes": self.bytes,
            "seconds": self.time.as_secs_f64(),
            "operations_per_second": self.per_second(),
            "write_amplification": self.write_amplification,
            "blocks_read_per_operation": self.blocks_read,
        })
    }
}

fn ratio(number: Option<f64>) -> String {
    number.map_or_else(String::new, |number| format!("{number:.2}"))
}

/// Collects rows and speaks to the user.
pub struct Report {
    out: Output,
    json: bool,
    rows: Vec<Row>,
    watch: Stopwatch,
}

impl Report {
    /// An empty report; with `json` nothing is printed before the end.
    pub fn new(json: bool) -> Self {
        Self { out: output(), json, rows: Vec::new(), watch: Stopwatch::start() }
    }

    /// Prints a line for people.
    pub fn say(&mut self, line: impl AsRef<str>) -> Result<()> {
        if !self.json {
            writeln!(self.out, "{}", line.as_ref())?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Adds a row and prints it as a line.
    pub fn add(&mut self, row: Row) -> Result<()> {
        let mut line = format!("  {}: {}", row.what, grouped(row.count));
        if row.bytes > 0 {
            line.push_str(&format!(" ({})", bytes(row.bytes)));
        }
        line.push_str(&format!(" in {:.2} s", row.time.as_secs_f64()));
        if let Some(factor) = row.write_amplification {
            line.push_str(&format!(", write amplification {factor:.2}"));
        }
        if let Some(blocks) = row.blocks_read {
            line.push_str(&format!(", {blocks:.2} blocks read for each"));
        }
        self.rows.push(row);
        self.say(line)
    }

    /// A bar on standard error that vanishes when it is finished; hidden where nobody looks.
    pub fn bar(&self, length: u64) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let template = "  {bar:40} {percent:>3}% {human_pos}/{human_len} {per_sec} {eta}";
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar
    }

    /// Prints the table and what to try next.
    pub fn finish(mut self, next: &[String]) -> Result<()> {
        let seconds = self.watch.elapsed().as_secs_f64();
        if self.json {
            let steps: Vec<Value> = self.rows.iter().map(Row::json).collect();
            writeln!(self.out, "{}", json!({ "seconds": seconds, "steps": steps }))?;
            return Ok(self.out.flush()?);
        }
        let mut table = Table::with_heading(&[
            ("what", Align::Left),
            ("count", Align::Right),
            ("size", Align::Right),
            ("seconds", Align::Right),
            ("per second", Align::Right),
            ("write amp.", Align::Right),
            ("blocks read", Align::Right),
        ]);
        for row in &self.rows {
            table.row([
                row.what.clone(),
                grouped(row.count),
                row.size(),
                format!("{:.2}", row.time.as_secs_f64()),
                row.per_second().map_or_else(String::new, grouped),
                ratio(row.write_amplification),
                ratio(row.blocks_read),
            ]);
        }
        writeln!(self.out)?;
        table.write(&mut self.out, "")?;
        writeln!(self.out, "\nEverything compared equal. {seconds:.1} seconds in all.")?;
        for line in next {
            writeln!(self.out, "{line}")?;
        }
        Ok(self.out.flush()?)
    }
}
