//! Latencies of operations, one histogram per kind of operation.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longer ones count as this long.
const NANOS_MAX: u64 = 600_000_000_000;

/// Significant digits of a histogram: an error of at most one in a thousand.
const DIGITS: u8 = 3;

/// Steps of a distribution between two halvings of the rest.
const STEPS_PER_HALF: u32 = 8;

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Of a key that is new.
    Insert,
    /// Of a key that is there; also deletes.
    Update,
    /// Present or absent.
    Get,
    /// A get and an update of the same record.
    Rmw,
    /// Several entries in key order.
    Scan,
    /// Several keys in one call.
    MultiGet,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Insert, Kind::Update, Kind::Get, Kind::Rmw, Kind::Scan, Kind::MultiGet];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Insert => "insert",
            Kind::Update => "update",
            Kind::Get => "get",
            Kind::Rmw => "rmw",
            Kind::Scan => "scan",
            Kind::MultiGet => "multi_get",
        }
    }
}

/// The summary of a kind, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 99% are at most this.
    pub p99: f64,
    /// 99.9% are at most this.
    pub p999: f64,
    /// All are at most this.
    pub max: f64,
}

/// The histograms of one thread, or of all.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    kinds: BTreeMap<Kind, Histogram<u64>>,
}

impl Latencies {
    /// Counts an operation.
    pub fn record(&mut self, kind: Kind, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.of(kind).saturating_record(nanos);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Latencies) {
        for (kind, histogram) in &other.kinds {
            // Both have the same bounds, so nothing is out of range.
            let _ = self.of(*kind).add(histogram);
        }
    }

    fn of(&mut self, kind: Kind) -> &mut Histogram<u64> {
        self.kinds.entry(kind).or_insert_with(|| {
            Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("the bounds are constants")
        })
    }

    /// The summary of each kind.
    pub fn percentiles(&self) -> BTreeMap<Kind, Percentiles> {
        let of = |histogram: &Histogram<u64>| Percentiles {
            p50: micros(histogram.value_at_quantile(0.5)),
            p99: micros(histogram.value_at_quantile(0.99)),
            p999: micros(histogram.value_at_quantile(0.999)),
            max: micros(histogram.max()),
        };
        self.kinds.iter().map(|(kind, histogram)| (*kind, of(histogram))).collect()
    }

    /// The mean of each kind, in microseconds.
    pub fn means(&self) -> BTreeMap<Kind, f64> {
        let of = |histogram: &Histogram<u64>| histogram.mean() / 1000.0;
        self.kinds.iter().map(|(kind, histogram)| (*kind, of(histogram))).collect()
    }

    /// The distribution of each kind: pairs of microseconds and the share of operations that took
    /// at most so long, finer towards the end.
    pub fn distributions(&self) -> BTreeMap<Kind, Vec<(f64, f64)>> {
        let of = |histogram: &Histogram<u64>| {
            let steps = histogram.iter_quantiles(STEPS_PER_HALF);
            steps.map(|step| (micros(step.value_iterated_to()), step.quantile())).collect()
        };
        self.kinds.iter().map(|(kind, histogram)| (*kind, of(histogram))).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_the_promised_error() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        for micros in 1..=1000 {
            let half = if micros % 2 == 0 { &mut one } else { &mut other };
            half.record(Kind::Get, Duration::from_micros(micros));
        }
        other.record(Kind::Scan, Duration::from_secs(7));
        one.add(&other);
        let percentiles = one.percentiles();
        let get = percentiles[&Kind::Get];
        let expected = [(get.p50, 500.0), (get.p99, 990.0), (get.p999, 999.0), (get.max, 1000.0)];
        for (seen, expected) in expected {
            assert!((seen / expected - 1.0_f64).abs() < 0.002, "{seen} instead of {expected}");
        }
        assert!((percentiles[&Kind::Scan].max / 7e6 - 1.0).abs() < 0.002);
        assert!((one.means()[&Kind::Get] / 500.5 - 1.0).abs() < 0.002);
        let distribution = &one.distributions()[&Kind::Get];
        assert!(distribution.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
        assert!((distribution.last().unwrap().1 - 1.0).abs() < 1e-9);
    }
}
