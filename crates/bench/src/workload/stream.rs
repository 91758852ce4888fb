//! The operations of one thread in one phase.
//!
//! A stream is a function of phase, seed and thread alone: it does not know how fast the store is
//! or what it answered. Where an operation depends on what was done (the latest record, the head of
//! a queue), the stream says which in relative terms and the driver finds it.

use crate::workload::phases::Phase;
use crate::workload::random::{Random, mix};
use crate::workload::zipf::{ScrambledZipf, Zipf};
use std::sync::Arc;

/// Records read by one call of `m`.
pub const MULTI_GET_RECORDS: u64 = 64;

/// The longest scan of `e`.
pub const SCAN_RECORDS_MAX: u64 = 100;

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Insert the next record of this thread.
    InsertNext,
    /// Update this record.
    Update(u64),
    /// Get this record.
    Get(u64),
    /// Get the record that was inserted as the `age`-last by thread `thread`.
    GetLatest {
        /// Whose.
        thread: u64,
        /// 0 is the last one.
        age: u64,
    },
    /// Get a key that is not there.
    GetAbsent(u64),
    /// Get this record and update it.
    ReadModifyWrite(u64),
    /// Scan from this record.
    Scan {
        /// Where it begins.
        record: u64,
        /// How many records.
        length: u64,
    },
    /// Get [`MULTI_GET_RECORDS`] records that follow from a seed.
    MultiGet(u64),
    /// Insert at the tail of this thread's queue.
    QueuePush,
    /// Scan the head of this thread's queue.
    QueueScan,
    /// Delete the head of this thread's queue.
    QueuePop,
}

/// How records are chosen.
#[derive(Clone, Debug)]
enum Choice {
    Uniform,
    Zipfian(Arc<ScrambledZipf>),
    Latest(Arc<Zipf>),
}

/// State shared by the streams of all threads of a phase.
#[derive(Clone, Debug)]
pub struct Workload {
    phase: Phase,
    records: u64,
    threads: u64,
    seed: u64,
    choice: Choice,
}

impl Workload {
    /// `phase` over the records 0 .. `records`, which have been loaded, by `threads` threads.
    pub fn new(phase: Phase, records: u64, threads: u64, seed: u64) -> Self {
        let choice = match phase {
            Phase::A | Phase::B | Phase::C | Phase::F => {
                Choice::Zipfian(Arc::new(ScrambledZipf::new(records)))
            }
            Phase::D => Choice::Latest(Arc::new(Zipf::new(records / threads))),
            _ => Choice::Uniform,
        };
        Self { phase, records, threads, seed, choice }
    }

    /// The operations of `thread`; those of the warm-up are others than those that are timed.
    pub fn stream(&self, thread: u64, warm_up: bool) -> Stream {
        let phase = Phase::ALL.iter().position(|phase| *phase == self.phase).unwrap_or(0);
        let phase = u64::try_from(phase).unwrap_or(0);
        let parts = [self.seed, phase, thread, u64::from(warm_up)];
        let seed = parts.into_iter().fold(0, |seed, part| mix(seed ^ part));
        Stream { workload: self.clone(), random: Random::new(seed), step: 0 }
    }
}

/// See [`Workload::stream`]; it has no end.
#[derive(Clone, Debug)]
pub struct Stream {
    workload: Workload,
    random: Random,
    step: u64,
}

impl Stream {
    /// The next operation.
    pub fn next(&mut self) -> Operation {
        self.step += 1;
        let percent = self.random.below(100);
        match self.workload.phase {
            Phase::Load => Operation::InsertNext,
            Phase::A if percent < 50 => Operation::Update(self.record()),
            Phase::B if percent < 5 => Operation::Update(self.record()),
            Phase::F if percent < 50 => Operation::ReadModifyWrite(self.record()),
            Phase::A | Phase::B | Phase::C | Phase::F | Phase::Cu => Operation::Get(self.record()),
            Phase::D if percent < 5 => Operation::InsertNext,
            Phase::D => self.latest(),
            Phase::Cm => Operation::GetAbsent(self.record()),
            Phase::E if percent < 5 => Operation::Update(self.record()),
            Phase::E => {
                let record = self.record();
                Operation::Scan { record, length: 1 + self.random.below(SCAN_RECORDS_MAX) }
            }
            Phase::Q => match self.step % 3 {
                1 => Operation::QueuePush,
                2 => Operation::QueueScan,
                _ => Operation::QueuePop,
            },
            Phase::M => Operation::MultiGet(self.random.next()),
            Phase::O => Operation::Update(self.record()),
            Phase::Scans(_) => {
                let length = self.workload.phase.scans().unwrap_or(1);
                Operation::Scan { record: self.record(), length }
            }
        }
    }

    fn record(&mut self) -> u64 {
        match &self.workload.choice {
            Choice::Zipfian(zipf) => zipf.draw(&mut self.random),
            Choice::Uniform | Choice::Latest(_) => self.random.below(self.workload.records),
        }
    }

    fn latest(&mut self) -> Operation {
        let age = match &self.workload.choice {
            Choice::Latest(zipf) => zipf.draw(&mut self.random),
            _ => 0,
        };
        Operation::GetLatest { thread: self.random.below(self.workload.threads), age }
    }
}

/// The records of a [`Operation::MultiGet`]; all of them differ.
pub fn multi_get_records(seed: u64, records: u64, chosen: &mut Vec<u64>) {
    chosen.clear();
    let mut random = Random::new(seed);
    let count = usize::try_from(MULTI_GET_RECORDS.min(records)).unwrap_or(0);
    while chosen.len() < count {
        let record = random.below(records);
        if !chosen.contains(&record) {
            chosen.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const RECORDS: u64 = 10_000;

    fn operations(phase: Phase, thread: u64, count: usize) -> Vec<Operation> {
        let mut stream = Workload::new(phase, RECORDS, 2, 1).stream(thread, false);
        (0..count).map(|_| stream.next()).collect()
    }

    fn name(operation: &Operation) -> &'static str {
        match operation {
            Operation::InsertNext => "insert",
            Operation::Update(_) => "update",
            Operation::Get(_) => "get",
            Operation::GetLatest { .. } => "latest",
            Operation::GetAbsent(_) => "absent",
            Operation::ReadModifyWrite(_) => "rmw",
            Operation::Scan { .. } => "scan",
            Operation::MultiGet(_) => "multi_get",
            Operation::QueuePush | Operation::QueueScan | Operation::QueuePop => "queue",
        }
    }

    #[test]
    fn phases_are_mixed_as_documented() {
        let expected: [(Phase, &[(&str, u32)]); 18] = [
            (Phase::Load, &[("insert", 100)]),
            (Phase::A, &[("update", 50), ("get", 50)]),
            (Phase::B, &[("update", 5), ("get", 95)]),
            (Phase::C, &[("get", 100)]),
            (Phase::F, &[("rmw", 50), ("get", 50)]),
            (Phase::D, &[("insert", 5), ("latest", 95)]),
            (Phase::Cu, &[("get", 100)]),
            (Phase::Cm, &[("absent", 100)]),
            (Phase::E, &[("scan", 95), ("update", 5)]),
            (Phase::Q, &[("queue", 100)]),
            (Phase::M, &[("multi_get", 100)]),
            (Phase::O, &[("update", 100)]),
            (Phase::Scans(0), &[("scan", 100)]),
            (Phase::Scans(1), &[("scan", 100)]),
            (Phase::Scans(2), &[("scan", 100)]),
            (Phase::Scans(3), &[("scan", 100)]),
            (Phase::Scans(4), &[("scan", 100)]),
            (Phase::Scans(5), &[("scan", 100)]),
        ];
        assert_eq!(expected.map(|(phase, _)| phase), Phase::ALL);
        for (phase, parts) in expected {
            let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
            for operation in operations(phase, 0, 100_000) {
                *seen.entry(name(&operation)).or_default() += 1;
            }
            assert_eq!(seen.len(), parts.len(), "{phase:?}: {seen:?}");
            for (part, percent) in parts {
                assert!((seen[part] / 100).abs_diff(percent * 10) < 5, "{phase:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn streams_repeat_and_threads_and_warm_ups_differ() {
        assert_eq!(operations(Phase::A, 0, 1000), operations(Phase::A, 0, 1000));
        assert_ne!(operations(Phase::A, 0, 1000), operations(Phase::A, 1, 1000));
        let mut warm_up = Workload::new(Phase::A, RECORDS, 2, 1).stream(0, true);
        let warm_up: Vec<Operation> = (0..1000).map(|_| warm_up.next()).collect();
        assert_ne!(operations(Phase::A, 0, 1000), warm_up);
    }

    #[test]
    fn records_are_in_range_and_spread_as_documented() {
        let share_of_top = |phase: Phase| {
            let mut counts = BTreeMap::new();
            for operation in operations(phase, 0, 100_000) {
                let (Operation::Get(record)
                | Operation::GetAbsent(record)
                | Operation::Update(record)) = operation
                else {
                    continue;
                };
                assert!(record < RECORDS);
                *counts.entry(record).or_insert(0_u32) += 1;
            }
            let mut counts: Vec<u32> = counts.into_values().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts.iter().take(100).sum::<u32>() / 1000
        };
        // The first hundredth of the ranks has about half of the draws.
        assert!((45..60).contains(&share_of_top(Phase::C)), "{}", share_of_top(Phase::C));
        assert!(share_of_top(Phase::Cu) < 4, "{}", share_of_top(Phase::Cu));
        assert!(share_of_top(Phase::Cm) < 4, "{}", share_of_top(Phase::Cm));
        assert!(share_of_top(Phase::O) < 4, "{}", share_of_top(Phase::O));
    }

    #[test]
    fn scans_latest_and_multi_gets_are_in_range() {
        let mut lengths = [0_u32; 101];
        for operation in operations(Phase::E, 1, 50_000) {
            if let Operation::Scan { record, length } = operation {
                assert!(record < RECORDS);
                lengths[usize::try_from(length).unwrap()] += 1;
            }
        }
        assert_eq!(lengths[0], 0);
        assert!(lengths[1..].iter().all(|count| (330..630).contains(count)), "{lengths:?}");
        for (power, expected) in [(0, 1), (2, 100), (5, 100_000)] {
            for operation in operations(Phase::Scans(power), 0, 1_000) {
                let Operation::Scan { record, length } = operation else { continue };
                assert!(record < RECORDS && length == expected, "{operation:?}");
            }
        }
        for operation in operations(Phase::D, 1, 10_000) {
            if let Operation::GetLatest { thread, age } = operation {
                assert!(thread < 2 && age < RECORDS / 2);
            }
        }
        let mut chosen = Vec::new();
        multi_get_records(9, RECORDS, &mut chosen);
        assert_eq!(chosen.len(), 64);
        multi_get_records(9, 3, &mut chosen);
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 2]);
    }
}
