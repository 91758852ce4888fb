//! Complete runs on a map in memory: a correct one passes every phase, and every kind of fault in a
//! store fails the run.

use super::*;
use crate::stores::{Answers, Entries, Session};
use clap::Parser;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A fault in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// It takes its time.
    Slow,
    /// Writes wait for a commit, as in a store without a log.
    Batches,
    /// One insert in a hundred is lost.
    LosesInsert,
    /// One update in ten is lost.
    LosesUpdate,
    /// A byte of a value is another.
    Damages,
    /// A neighbour's value is given.
    Confuses,
    /// An absent key has a value.
    Invents,
    /// Scans leave out their second entry, and give one more at the end.
    Skips,
    /// Scans end one entry too early.
    EndsEarly,
    /// Scans see what was loaded and none of the updates, but for their first entry.
    ScansOld,
    /// Scans go down.
    GoesDown,
    /// Removes do nothing.
    KeepsRemoved,
    /// The last answer of several is of another key.
    MixesAnswers,
}

/// The least time of a call of the slow one.
const SLOW_MICROS: f64 = 2000.0;

const FAULTS: [(&str, Fault); 14] = [
    ("sound", Fault::None),
    ("slow", Fault::Slow),
    ("batches", Fault::Batches),
    ("loses-insert", Fault::LosesInsert),
    ("loses-update", Fault::LosesUpdate),
    ("damages", Fault::Damages),
    ("confuses", Fault::Confuses),
    ("invents", Fault::Invents),
    ("skips", Fault::Skips),
    ("ends-early", Fault::EndsEarly),
    ("scans-old", Fault::ScansOld),
    ("goes-down", Fault::GoesDown),
    ("keeps-removed", Fault::KeepsRemoved),
    ("mixes-answers", Fault::MixesAnswers),
];

struct Model {
    map: Mutex<Map>,
    /// The first values.
    loaded: Mutex<Map>,
    fault: Fault,
    writes: AtomicU64,
    was_settled: AtomicBool,
}

fn open_model(options: &StoreOptions) -> Result<Box<dyn Store>> {
    let (_, fault) = FAULTS.into_iter().find(|(name, _)| *name == options.engine).unwrap();
    Ok(Box::new(Model {
        map: Mutex::default(),
        loaded: Mutex::default(),
        fault,
        writes: AtomicU64::new(0),
        was_settled: AtomicBool::new(false),
    }))
}

impl Store for Model {
    fn facts(&self) -> Facts {
        let commit_every = if self.fault == Fault::Batches { 1000 } else { 1 };
        Facts { version: "0".to_owned(), settings: vec![("map", "yes".to_owned())], commit_every }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(ModelSession { model: self, waiting: Vec::new() }))
    }

    fn settle(&self, _: Duration) -> Result<Settled> {
        self.was_settled.store(true, Ordering::Relaxed);
        Ok(Settled::Done)
    }

    fn close(self: Box<Self>) -> Result<()> {
        assert!(self.was_settled.load(Ordering::Relaxed));
        Ok(())
    }
}

struct ModelSession<'a> {
    model: &'a Model,
    waiting: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl ModelSession<'_> {
    fn take_time(&self) {
        if self.model.fault == Fault::Slow {
            clock::sleep(Duration::from_secs_f64(SLOW_MICROS / 1e6));
        }
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.take_time();
        self.waiting.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        if self.model.fault != Fault::Batches {
            self.apply();
        }
    }

    fn apply(&mut self) {
        let mut map = self.model.map.lock().unwrap();
        for (key, value) in self.waiting.drain(..) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
    }
}

impl Session for ModelSession<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let number = self.model.writes.fetch_add(1, Ordering::Relaxed);
        let is_there = self.model.map.lock().unwrap().contains_key(key);
        let is_lost = match self.model.fault {
            Fault::LosesInsert => !is_there && number % 100 == 7,
            Fault::LosesUpdate => is_there && number % 10 == 7,
            _ => false,
        };
        if !is_there && self.model.fault == Fault::ScansOld {
            self.model.loaded.lock().unwrap().insert(key.to_vec(), value.to_vec());
        }
        if !is_lost {
            self.write(key, Some(value));
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        if self.model.fault != Fault::KeepsRemoved {
            self.write(key, None);
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        assert_eq!(self.model.fault, Fault::Batches, "only a store without a log is asked");
        self.apply();
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.take_time();
        let map = self.model.map.lock().unwrap();
        let found = match self.model.fault {
            Fault::Confuses => map.range(key.to_vec()..).nth(1).map(|(_, value)| value),
            Fault::Invents => map.range(key.to_vec()..).next().map(|(_, value)| value),
            _ => map.get(key),
        };
        value.extend_from_slice(found.map_or(&[], Vec::as_slice));
        if self.model.fault == Fault::Damages {
            value[20] ^= 1;
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], count: usize, entries: &mut Entries) -> Result<()> {
        let map = self.model.map.lock().unwrap();
        let loaded = self.model.loaded.lock().unwrap();
        let found: Vec<_> = map.range(from.to_vec()..).take(count + 1).collect();
        let mut chosen: Vec<usize> = (0..found.len().min(count)).collect();
        match self.model.fault {
            Fault::Skips if found.len() > 2 => chosen[1..].iter_mut().for_each(|index| *index += 1),
            Fault::EndsEarly => drop(chosen.pop()),
            Fault::GoesDown => chosen.reverse(),
            _ => {}
        }
        chosen.retain(|index| *index < found.len());
        for index in chosen {
            let (key, value) = found[index];
            let is_old = self.model.fault == Fault::ScansOld && index > 0;
            entries.push(key, if is_old { &loaded[key] } else { value });
        }
        Ok(())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], answers: &mut Answers) -> Result<()> {
        let map = self.model.map.lock().unwrap();
        for (index, key) in keys.iter().enumerate() {
            let is_mixed = self.model.fault == Fault::MixesAnswers && index + 1 == keys.len();
            answers.push(map.get(if is_mixed { &keys[0] } else { key }));
        }
        Ok(())
    }
}

#[derive(Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// A small run; its results, or why it failed.
fn run_model(name: &'static str, arguments: &[&str]) -> Result<Vec<Record>> {
    let directory = tempfile::tempdir().unwrap();
    let line = ["x", "--records", "3000", "--ops", "3000", "--scan-ops", "300", "--dir"];
    let line = [&line, &[directory.path().to_str().unwrap()][..], arguments].concat();
    let options = Line::try_parse_from(line).unwrap().options;
    let kind = Kind { name, open: Some(open_model), package: None, uses_page_cache: false };
    let mut records = Vec::new();
    run(&options, kind, true, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it is removed");
    Ok(records)
}

#[test]
fn a_sound_store_passes_every_phase() {
    for keys in ["random", "sequential", "mixed:20", "timestamps", "moving"] {
        let arguments = ["--keys", keys, "--key-size", "8..20", "--value-size", "16..200"];
        let records = run_model("sound", &arguments).unwrap();
        let phases: Vec<&str> = records.iter().map(|record| record.phase.as_str()).collect();
        let expected = "load load+settle a a+settle b b+settle c f f+settle d d+settle cu cm \
                        e e+settle q q+settle m";
        assert_eq!(phases, expected.split_whitespace().collect::<Vec<_>>());
        for record in &records {
            let expected = if record.phase.starts_with('e') { 300 } else { 3000 };
            assert!((expected..expected + 128).contains(&record.ops), "{record:?}");
            assert!(record.kops > 0.0 && record.live_bytes > 3000 * 24, "{record:?}");
            let is_timed = record.latency_us.values().all(|times| times.max >= times.p50);
            assert!(is_timed && !record.latency_us.is_empty());
        }
    }
}

#[test]
fn overwrites_are_two_per_record_whatever_the_operations_of_others() {
    for name in ["sound", "batches"] {
        let line = ["--phases", "load,o,cu", "--ops", "30", "--threads", "4"];
        let records = run_model(name, &line).unwrap();
        let phases: Vec<&str> = records.iter().map(|record| record.phase.as_str()).collect();
        assert_eq!(phases, ["load", "load+settle", "o", "o+settle", "cu"]);
        for record in &records[2..4] {
            assert_eq!((record.ops, record.live_bytes), (6000, 3000 * 128));
            assert_eq!(record.settings["user_bytes"], 6000 * 128);
            assert_eq!(record.latency_us.keys().collect::<Vec<_>>(), [&latency::Kind::Update]);
        }
        assert_eq!((&records[3].settings["settled"], records[4].ops), (&json!(true), 30));
    }
}

#[test]
fn a_store_without_a_log_passes_every_phase() {
    for threads in ["1", "2", "5"] {
        let records = run_model("batches", &["--threads", threads]).unwrap();
        assert_eq!(records.len(), 18);
        assert_eq!(records[0].settings["commit_every"], 1000);
    }
}

#[test]
fn every_fault_fails_the_phase_that_meets_it() {
    for (name, phases, expected) in [
        ("loses-insert", "load,cu", "is not there"),
        ("loses-update", "load,a", "not the newest"),
        ("loses-update", "load,f", "not the newest"),
        ("loses-update", "load,o,cu", "not the newest"),
        ("damages", "load,c", "the value is damaged"),
        ("confuses", "load,c", "another record"),
        ("invents", "load,cm", "never written"),
        ("ends-early", "load,e", "too early"),
        ("goes-down", "load,e", "is not there"),
        ("keeps-removed", "load,q", "not the next"),
        ("ends-early", "load,q", "too early"),
        ("skips", "load,q", "not the next"),
        ("scans-old", "load,a,e", "is an old one"),
        ("mixes-answers", "load,m", "another record"),
    ] {
        let failure = run_model(name, &["--phases", phases]).unwrap_err();
        assert!(
            matches!(&failure, Failure::Wrong(message) if message.contains(expected)),
            "{failure}"
        );
        assert_eq!(failure.code(), 1);
    }
    // Which record comes next is only known where keys are in order.
    let sequential = ["--phases", "load,e", "--keys", "sequential"];
    assert!(run_model("skips", &sequential).unwrap_err().to_string().contains("is not there"));
}

#[test]
fn a_phase_may_run_again_and_a_directory_is_for_one_run() {
    let records = run_model("sound", &["--phases", "load,d,d,d"]).unwrap();
    let phases: Vec<&str> = records.iter().map(|record| record.phase.as_str()).collect();
    assert_eq!(phases[2..], ["d", "d+settle", "d#2", "d#2+settle", "d#3", "d#3+settle"]);
    let directory = tempfile::tempdir().unwrap();
    let _held = lock(directory.path()).unwrap();
    let message = lock(directory.path()).unwrap_err().to_string();
    assert!(message.contains("another run"), "{message}");
}

#[test]
fn the_cap_ends_a_load_and_the_run() {
    // Two threads need three seconds at least.
    let records = run_model("slow", &["--cap", "1", "--phases", "load,c"]).unwrap();
    let phases: Vec<&str> = records.iter().map(|record| record.phase.as_str()).collect();
    assert_eq!(phases, ["load", "load+settle"]);
    assert_eq!(records[0].settings["capped"], true);
    assert!(records[0].ops < 3000 && records[0].seconds < 3.0);
}

#[test]
fn latencies_count_from_the_intended_start() {
    // Far more a second than can be done: each operation waits for all before it.
    let small = ["--records", "50", "--ops", "50", "--threads", "1", "--phases", "load,cu"];
    let records = run_model("slow", &[&small[..], &["--rate", "1G"]].concat()).unwrap();
    let paced = &records.last().unwrap().latency_us[&latency::Kind::Get];
    assert!(paced.p50 >= 24.0 * SLOW_MICROS && paced.max >= 49.0 * SLOW_MICROS, "{paced:?}");
}

#[test]
fn details_are_there_if_asked() {
    let records = run_model("sound", &["--phases", "load", "--detail"]).unwrap();
    let detail = records[0].detail.as_ref().unwrap();
    assert!(detail["kops_by_second"].is_array() && detail["rss_bytes_by_second"].is_array());
    let steps = detail["latency_us_distribution"]["insert"].as_array().unwrap();
    assert_eq!(steps.last().unwrap()[1], 1.0);
}
