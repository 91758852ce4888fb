//! A time series with retention.
//!
//! ```text
//!   keyspace "day 20000"    sensor, 0, seconds since 1970 as 8 bytes big-endian -> f64
//!   keyspace "day 20001"    ...
//! ```
//!
//! Big-endian numbers sort as bytes in the order of time, so the samples of a sensor in a span of
//! time are one range. Each day has its own keyspace, and an old day is dropped as one keyspace,
//! which costs the same for one sample and for a million. (A database has at most 1,024 keyspaces;
//! for years of days take weeks or months.)
//!
//! Run it: `cargo run -p chelonia-examples --bin time_series`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use chelonia::{Database, Keyspace, KeyspaceOptions};
use std::error::Error;
use std::ops::Range;
use std::path::Path;

const DAY: u64 = 86_400;
const RETENTION_DAYS: u64 = 7;

struct Series {
    database: Database,
}

impl Series {
    fn open(path: &Path) -> chelonia::Result<Self> {
        Ok(Self { database: Database::open(path)? })
    }

    fn day(&self, day: u64) -> chelonia::Result<Keyspace> {
        self.database.keyspace(&format!("day {day}"), KeyspaceOptions::default())
    }

    /// The stored days, the oldest first.
    fn days(&self) -> Vec<u64> {
        let names = self.database.keyspaces().into_iter();
        let mut days: Vec<u64> =
            names.filter_map(|name| name.strip_prefix("day ")?.parse().ok()).collect();
        days.sort_unstable();
        days
    }

    /// Stores samples of one moment: all of them or none.
    fn record(&self, time: u64, samples: &[(&str, f64)]) -> chelonia::Result<()> {
        let day = self.day(time / DAY)?;
        let mut batch = self.database.batch();
        for (sensor, sample) in samples {
            batch.insert(&day, key(sensor, time), sample.to_le_bytes());
        }
        batch.commit()
    }

    /// The samples of a sensor in a span of time, which may cover several days.
    fn samples(&self, sensor: &str, span: Range<u64>) -> Result<Vec<(u64, f64)>, Box<dyn Error>> {
        let mut samples = Vec::new();
        let days = self.days().into_iter();
        for day in days.filter(|day| (span.start / DAY..=span.end / DAY).contains(day)) {
            for entry in self.day(day)?.range(key(sensor, span.start)..key(sensor, span.end)) {
                let (key, sample) = entry?;
                let time = key.last_chunk().ok_or("a key ends with a time")?;
                samples
                    .push((u64::from_be_bytes(*time), f64::from_le_bytes(sample[..].try_into()?)));
            }
        }
        Ok(samples)
    }

    /// Drops the days that ended before the retention began; gives their number.
    fn expire(&self, now: u64) -> chelonia::Result<usize> {
        let is_old = |day: &u64| day + 1 + RETENTION_DAYS <= now / DAY;
        let old: Vec<u64> = self.days().into_iter().filter(is_old).collect();
        for day in &old {
            self.database.drop_keyspace(&format!("day {day}"))?;
        }
        Ok(old.len())
    }
}

/// The 0 separates sensors if the name of one is a prefix of the other's.
fn key(sensor: &str, time: u64) -> Vec<u8> {
    [sensor.as_bytes(), &[0], &time.to_be_bytes()].concat()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let series = Series::open(&directory.path().join("samples"))?;

    // Ten days of two sensors, a sample each ten minutes.
    let start = 20_000 * DAY;
    let now = start + 10 * DAY;
    for (number, time) in (start..now).step_by(600).enumerate() {
        let hour = (time % DAY) as f64 / 3_600.0;
        let temperature = 15.0 - 5.0 * (hour / 24.0 * std::f64::consts::TAU).cos();
        series.record(time, &[("temperature", temperature), ("count", number as f64)])?;
    }
    println!("stored days {:?}", series.days());

    // A span over midnight.
    let night = series.samples("temperature", now - DAY - 7_200..now - DAY + 7_200)?;
    let average = night.iter().map(|(_, sample)| sample).sum::<f64>() / night.len() as f64;
    println!("around the last midnight: {} samples, {average:.1} degrees on average", night.len());

    let (time, count) = *series.samples("count", now - DAY..now)?.last().ok_or("no sample")?;
    println!("the last count is {count}, {} seconds ago", now - time);

    let dropped = series.expire(now)?;
    println!("dropped {dropped} days, left {:?}", series.days());
    assert_eq!((dropped, series.days().len()), (3, 7));
    Ok(())
}
