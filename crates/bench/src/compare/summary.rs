//! Medians and bounds over the repeats of a phase of a store.

use crate::record::Record;

/// A figure over the repeats.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The one in the middle; of an even number, the mean of the two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of some figures; `None` of none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let (min, max) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let median = if figures.len().is_multiple_of(2) {
            f64::midpoint(figures[middle - 1], figures[middle])
        } else {
            figures[middle]
        };
        Some(Self { median, min, max })
    }
}

/// The repeat that a result belongs to.
pub fn repeat_of(record: &Record) -> u64 {
    record.settings["repeat"].as_u64().unwrap_or(1)
}

/// The results of one store in one phase.
pub fn of_phase<'a>(
    records: &'a [Record],
    engine: &'a str,
    phase: &'a str,
) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.engine == engine && record.phase == phase)
}

/// A figure of one store in one phase, over the repeats.
pub fn figure(
    records: &[Record],
    engine: &str,
    phase: &str,
    of: impl Fn(&Record) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(of_phase(records, engine, phase).filter_map(of))
}

/// How many times as fast a store is as the baseline, each repeat on its own.
pub fn ratio(records: &[Record], engine: &str, baseline: &str, phase: &str) -> Option<Spread> {
    let ratios = of_phase(records, engine, phase).filter_map(|record| {
        let repeat = repeat_of(record);
        let other = of_phase(records, baseline, phase).find(|other| repeat_of(other) == repeat)?;
        (other.kops > 0.0).then(|| record.kops / other.kops)
    });
    Spread::of(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;
    use serde_json::json;

    #[test]
    fn medians_and_bounds() {
        assert_eq!(Spread::of([]), None);
        let spread = Spread::of([3.0, 1.0, 8.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 8.0));
        assert!((Spread::of([4.0, 1.0]).unwrap().median - 2.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_of_the_same_repeat() {
        let mut records = Vec::new();
        for (repeat, ours, other) in [(1, 10.0, 5.0), (2, 30.0, 10.0), (3, 8.0, 8.0)] {
            for (engine, kops) in [("ours", ours), ("other", other)] {
                let mut record = sample(engine, "c", kops);
                record.settings["repeat"] = json!(repeat);
                records.push(record);
            }
        }
        let spread = ratio(&records, "ours", "other", "c").unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        // A repeat that the baseline has not is in no ratio.
        records.pop();
        let spread = ratio(&records, "ours", "other", "c").unwrap();
        assert_eq!((spread.min, spread.max), (2.0, 3.0));
        assert_eq!(ratio(&records, "ours", "other", "e"), None);
        assert_eq!(figure(&records, "ours", "c", |record| Some(record.kops)).unwrap().max, 30.0);
    }
}
