//! Results of tiny runs as they are stored, and every figure drawn from them.

use crate::driver::latency::Kind;
use crate::figures::data::tests::result;
use crate::figures::drawing::style::WIDTH;
use crate::figures::drawing::svg::tests::check_well_formed;
use crate::figures::{Name, data_of, figure, options};
use crate::record::{self, Record};
use serde_json::json;

/// A load without its settle is faster and writes less: nothing quoted may be taken from it.
fn alone(phase: &str) -> f64 {
    if phase == "load" { 0.5 } else { 0.0 }
}

/// Loads of turtle and rocksdb at two distances, three repeats, and of lmdb, which has no dial.
pub fn wm_results() -> Vec<Record> {
    let mut records = Vec::new();
    for repeat in 1..=3_u32 {
        for engine in ["turtle", "rocksdb", "lmdb"] {
            for distance in [1_000_000_u64, 4_000_000] {
                if engine == "lmdb" && distance > 1_000_000 {
                    continue;
                }
                for phase in ["load", "load+settle"] {
                    let mut record = result(engine, phase, 500.0);
                    record.settings["repeat"] = json!(repeat);
                    record.settings["checkpoint_distance_bytes"] =
                        if engine == "lmdb" { json!([]) } else { json!([distance]) };
                    record.settings["capped"] = json!(engine == "lmdb");
                    let amplification = if distance > 1_000_000 { 3.0 } else { 6.0 };
                    record.write_amplification =
                        Some(amplification + f64::from(repeat) - alone(phase));
                    record.detail = Some(json!({"latency_us_mean": {"insert": f64::from(repeat)}}));
                    records.push(record);
                }
            }
        }
    }
    records
}

/// Two settings of memory, three repeats; lmdb does not come to `c`.
pub fn ycsb_results() -> Vec<Record> {
    let mut records = Vec::new();
    for repeat in 0..3_u32 {
        for memory in [33_554_432_u64, 67_108_864] {
            for (engine, factor) in [("turtle", 1.0), ("lmdb", 0.1)] {
                let kops = (800.0 + 100.0 * f64::from(repeat)) * factor;
                for phase in ["load", "load+settle", "a", "a+settle", "c"] {
                    if (engine, phase) == ("lmdb", "c") {
                        continue;
                    }
                    let mut record = result(engine, phase, kops + alone(phase));
                    record.settings["repeat"] = json!(repeat + 1);
                    record.settings["memory_bytes"] = json!(memory);
                    records.push(record);
                }
            }
        }
    }
    records
}

/// Complete runs at two settings of memory and three distances, and loads of half the records.
pub fn sensitivity_results() -> Vec<Record> {
    let mut records = Vec::new();
    let settings = [(1000, 1_u64 << 25), (1000, 1 << 26), (500, 1 << 26)];
    for (count, memory) in settings {
        for (distance, amplification) in [(1_000_000, 8.0), (2_000_000, 4.0), (4_000_000, 2.0)] {
            let phases: &[&str] = match count {
                1000 => &["load", "load+settle", "a", "a+settle", "c"],
                _ => &["load", "load+settle"],
            };
            for phase in phases {
                let mut record = result("turtle", phase, 100.0 + amplification + alone(phase));
                record.settings["records"] = json!(count);
                record.settings["memory_bytes"] = json!(memory);
                record.settings["checkpoint_distance_bytes"] = json!([distance]);
                record.write_amplification = Some(amplification - alone(phase));
                records.push(record);
            }
        }
    }
    records
}

/// Five sizes, three repeats: turtle as it sets its distance, and with 8 kB, whose write
/// amplification is 2 and a half for each doubling from there to the data; lmdb, whose greatest
/// load the cap ended.
pub fn growth_results() -> Vec<Record> {
    let mut records = Vec::new();
    let ways = [("turtle", json!([])), ("turtle", json!([8000])), ("lmdb", json!([]))];
    for (repeat, off) in [(1, 0.0), (2, -0.25), (3, 0.25)] {
        for (doublings, times) in [(2.0, 1), (3.0, 2), (4.0, 4), (5.0, 8), (6.0, 16)] {
            for (engine, distances) in &ways {
                let is_fixed = *distances == json!([8000]);
                let law = if is_fixed { 2.0 + 0.5 * doublings } else { 3.0 };
                let is_capped = *engine == "lmdb" && times == 16;
                for phase in ["load", "load+settle", "cu", "cm"] {
                    if is_capped && !phase.starts_with("load") {
                        continue;
                    }
                    let mut record = result(engine, phase, 100.0 + alone(phase));
                    record.write_amplification = Some(law + off - alone(phase));
                    record.live_bytes = 32_000 * times;
                    record.read_bytes = record.ops * 6144;
                    record.cpu_user += if phase == "cu" { 1.0 } else { 0.0 };
                    record.settings["repeat"] = json!(repeat);
                    record.settings["records"] = json!(250 * times);
                    record.settings["memory_bytes"] = json!(32_000 * times / 3);
                    record.settings["checkpoint_distance_bytes"] = distances.clone();
                    record.settings["capped"] = json!(is_capped);
                    if *engine == "turtle" && !is_fixed {
                        let distance = format!("{} bytes", 8000 * times / 3);
                        record.settings["store"]["checkpoint_distance"] = json!(distance);
                    }
                    records.push(record);
                }
            }
        }
    }
    records
}

/// Two stores with distributions that end far out.
pub fn latency_results() -> Vec<Record> {
    let mut records = Vec::new();
    for (engine, factor) in [("turtle", 1.0), ("lmdb", 10.0)] {
        for (phase, kind) in [("load", Kind::Insert), ("c", Kind::Get)] {
            let mut record = result(engine, phase, 100.0);
            let steps = [(1.0, 0.0), (2.0, 0.5), (2.0, 0.5), (20.0, 0.99), (40.0, 0.99995)];
            let mut steps: Vec<(f64, f64)> =
                steps.map(|(micros, share)| (micros * factor, share)).to_vec();
            steps.push((90.0 * factor, 1.0));
            record.detail = Some(json!({"latency_us_distribution": {kind.name(): steps}}));
            records.push(record);
        }
    }
    records
}

/// Three seconds of two stores.
pub fn memory_results() -> Vec<Record> {
    let mut records = Vec::new();
    for engine in ["turtle", "lmdb"] {
        for (phase, samples) in [
            ("load", [(0.25, 10_000_000), (0.5, 30_000_000)]),
            ("load+settle", [(1.0, 40_000_000), (1.5, 20_000_000)]),
            ("a", [(2.0, 25_000_000), (3.0, 28_000_000)]),
        ] {
            let mut record = result(engine, phase, 100.0);
            record.detail = Some(json!({"rss_bytes_over_time": samples}));
            records.push(record);
        }
    }
    records
}

/// Three seconds of one store, less than one of another.
pub fn stall_results() -> Vec<Record> {
    let mut slow = result("turtle", "load", 330.0);
    slow.detail = Some(json!({"kops_by_second": [500.0, 40.0, 450.0]}));
    slow.seconds = 3.1;
    let mut fast = result("lmdb", "load", 90.0);
    fast.detail = Some(json!({"kops_by_second": []}));
    vec![slow, fast]
}

/// The store and three fixed distances; the shortest ended in the last phase.
pub fn dial_results() -> Vec<Record> {
    let mut records = Vec::new();
    let runs = [(None, 270.0, 1.25), (Some(8), 100.0, 1.0), (Some(16), 200.0, 2.0)];
    for (distance, kops, seconds) in runs.into_iter().chain([(Some(32), 300.0, 1.5)]) {
        for phase in ["load", "load+settle", "a"] {
            if distance == Some(8) && phase == "load+settle" {
                continue;
            }
            let mut record = result("turtle", phase, kops);
            record.seconds = seconds;
            let distances: Vec<u64> = distance.iter().map(|distance| distance << 20).collect();
            record.settings["checkpoint_distance_bytes"] = json!(distances);
            records.push(record);
        }
    }
    records
}

/// Trees of two ratios at two sizes.
pub fn levels_results() -> Vec<Record> {
    let mut records = Vec::new();
    for (ratio, percent) in [(2, 100), (2, 40), (5, 100), (5, 40)] {
        for times in [1_u64, 64] {
            for phase in ["load", "load+settle"] {
                let mut record = result("autumn", phase, 100.0);
                record.settings["records"] = json!(1000 * times);
                record.settings["checkpoint_distance_bytes"] = json!([1000]);
                record.settings["shape"] = json!({"size_ratio": ratio, "scaling_percent": percent});
                record.live_bytes = 128_000 * times;
                record.levels = Some(times.ilog2().into());
                records.push(record);
            }
        }
    }
    records
}

/// Trees of two ratios, with filters and, for fewer phases, without.
pub fn shape_results() -> Vec<Record> {
    let mut records = Vec::new();
    for (ratio, percent) in [(2, 100), (2, 40), (5, 100), (5, 40)] {
        for bits in [json!(null), json!(0)] {
            let has_filters = bits.is_null();
            let phases: &[&str] = match has_filters {
                true => &["load", "load+settle", "cu", "cm", "s1", "s10", "s100", "o", "o+settle"],
                false => &["load", "load+settle", "cu", "cm"],
            };
            for phase in phases {
                let kops = if percent == 40 { 60.0 } else { 40.0 };
                let kops = if has_filters { kops } else { kops / 2.0 };
                let mut record = result("autumn", phase, kops + alone(phase));
                record.settings["shape"] = json!({
                    "size_ratio": ratio, "scaling_percent": percent, "filter_bits": bits,
                });
                records.push(record);
            }
        }
    }
    records
}

/// The results of a figure, and the rows of its points.
pub fn stored(name: Name) -> (Vec<Record>, usize) {
    match name {
        Name::Wm => (wm_results(), 5),
        Name::Ycsb => (ycsb_results(), 12),
        Name::Sensitivity => (sensitivity_results(), 30),
        Name::Dial => (dial_results(), 3 + 4 + 3),
        Name::Growth => (growth_results(), 4 * (5 + 5 + 4)),
        Name::Latency => (latency_results(), 16),
        Name::Memory => (memory_results(), 12),
        Name::Stall => (stall_results(), 4),
        Name::Levels => (levels_results(), 8),
        Name::Shape => (shape_results(), 18 * 4),
    }
}

#[test]
fn no_text_of_any_figure_is_cut_or_covered() {
    for name in Name::ALL {
        let drawing = name.draw(&stored(name).0).unwrap();
        assert_eq!(drawing.scene.faults(), [""; 0], "{}", name.name());
    }
}

#[test]
fn many_stores_fit_too() {
    for name in Name::ALL {
        let (few, _) = stored(name);
        let mut many = Vec::new();
        for engine in crate::stores::names() {
            for record in few.iter().filter(|record| record.engine == few[0].engine) {
                let mut record = record.clone();
                engine.clone_into(&mut record.engine);
                record.kops *= 1.37;
                many.push(record);
            }
        }
        let drawing = name.draw(&many).unwrap();
        assert_eq!(drawing.scene.faults(), [""; 0], "{}", name.name());
    }
}

#[test]
fn every_figure_is_drawn_from_stored_results() {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("results");
    let out = directory.path().join("figures");
    std::fs::create_dir(&from).unwrap();
    for name in Name::ALL {
        let (records, rows) = stored(name);
        record::append(&data_of(&from, name), &records).unwrap();
        let [from, out] = [&from, &out].map(|path| path.to_str().unwrap());
        let line = [name.name(), "--from", from, "--out", out];
        figure(&options::tests::figure(&line)).unwrap();
        let file =
            |ending: &str| directory.path().join(format!("figures/{}.{ending}", name.name()));
        let text = std::fs::read_to_string(file("svg")).unwrap();
        check_well_formed(&text);
        let height = name.draw(&records).unwrap().scene.height;
        assert!(text.starts_with(&format!("<svg width=\"{WIDTH}\" height=\"{height}\"")), "{text}");
        let csv = std::fs::read_to_string(file("csv")).unwrap();
        assert_eq!(csv.lines().count(), rows + 1, "{csv}");
        let columns = csv.lines().next().unwrap().split(',').count();
        assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
        assert_eq!(record::read(&file("jsonl")).unwrap(), records);
    }
}

#[test]
fn a_figure_never_lies_beside_the_results_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    for (path, count) in [(&one, 6), (&other, 4)] {
        std::fs::create_dir(path).unwrap();
        record::append(&data_of(path, Name::Wm), &wm_results()[..count]).unwrap();
    }
    let [from, out] = [&one, &other].map(|path| path.to_str().unwrap());
    let draw = |line: &[&str]| figure(&options::tests::figure(line));
    let message = draw(&["wm", "--from", from, "--out", out]).unwrap_err().to_string();
    assert!(message.contains("other results") && !other.join("wm.svg").exists(), "{message}");
    draw(&["wm", "--from", from]).unwrap();
    assert!(one.join("wm.svg").exists());
}

#[test]
fn stores_without_a_dial_are_drawn_alone_too() {
    let mut records = wm_results();
    records.retain(|record| record.engine == "lmdb");
    let drawing = Name::Wm.draw(&records).unwrap();
    assert_eq!(drawing.scene.faults(), [""; 0]);
    assert_eq!(drawing.points.rows.len(), 1);
}

#[test]
fn results_of_something_else_are_refused() {
    let message = Name::Stall.draw(&ycsb_results()).unwrap_err().to_string();
    assert!(message.contains("none of its points"), "{message}");
    for name in Name::ALL {
        assert!(name.draw(&[]).is_err());
    }
}
