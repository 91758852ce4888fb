//! The runs of `growth`, its points, and the law that it finds.

use super::*;
use crate::figures::drawing::scene::Shape;
use crate::figures::options::tests::figure;
use crate::figures::tests::growth_results;

#[test]
fn the_plan_has_every_size_twice_with_a_third_of_it_as_memory() {
    let plan = plan(&figure(&["growth"]));
    let seen: Vec<(u64, u64, Vec<u64>)> = plan
        .iter()
        .map(|run| {
            let options = &run.options;
            let distances = options.checkpoint_distance.clone();
            (options.records.unwrap() / 1_000_000, options.memory, distances)
        })
        .collect();
    let memories = [213_333_333, 426_666_666, 853_333_333, 1_706_666_666, 3_413_333_333];
    let both =
        |(millions, memory)| [(millions, memory, vec![]), (millions, memory, vec![27_000_000])];
    let expected: Vec<_> = [5, 10, 20, 40, 80].into_iter().zip(memories).flat_map(both).collect();
    assert_eq!(seen, expected);
    for run in &plan {
        run.options.check().unwrap();
        assert_eq!(run.engine, "turtle");
        assert_eq!(run.options.phases, [Phase::Load, Phase::Cu]);
        assert_eq!(run.options.ops, run.options.records.unwrap() / 10);
        assert_eq!(run.options.cap, Some(600));
    }
}

#[test]
fn one_distance_may_be_given_and_stores_without_a_dial_have_one_series() {
    let line = [
        "growth",
        "--engines",
        "lmdb,turtle",
        "--records",
        "400k",
        "--repeats",
        "2",
        "--ops",
        "900",
    ];
    let plan = plan(&figure(&[&line[..], &["--checkpoint-distance", "3MB"]].concat()));
    assert_eq!(plan.len(), 2 * 5 * 3);
    assert!(plan.iter().all(|run| run.options.ops == 900));
    let of = |engine: &str, distances: &[u64]| {
        let is_such =
            |run: &&Planned| run.engine == engine && run.options.checkpoint_distance == distances;
        plan.iter().filter(is_such).count()
    };
    assert_eq!((of("lmdb", &[]), of("turtle", &[]), of("turtle", &[3_000_000])), (10, 10, 10));
    // No run is taken for another one.
    for (index, run) in plan.iter().enumerate() {
        assert!(plan[index + 1..].iter().all(|other| other != run));
    }
    assert_eq!(figure(&["growth", "--records", "7"]).growth_sizes(), [3, 7, 14, 28]);
}

#[test]
fn points_are_medians_by_size_and_a_load_that_was_cut_has_none() {
    let all = series(&growth_results());
    let labels: Vec<String> = all.iter().map(Series::label).collect();
    let expected = ["turtle, distance by the store", "turtle, distance 8 kB", "lmdb (no dial)"];
    assert_eq!(labels, expected);
    let sizes = |index: usize| -> Vec<u64> {
        let series: &Series = &all[index];
        series.sizes.iter().map(|one| one.records).collect()
    };
    assert_eq!(sizes(0), [250, 500, 1000, 2000, 4000]);
    assert_eq!((sizes(1), sizes(2)), (sizes(0), vec![250, 500, 1000, 2000]));
    let last = all[1].sizes.last().unwrap();
    assert_eq!((last.data, last.memory), (512_000, 170_666));
    assert_eq!((last.distance, last.doublings()), (Some(8000), Some(6.0)));
    let of = |measure: Measure| {
        let spread = last.value(measure).unwrap();
        [spread.median, spread.min, spread.max]
    };
    assert_eq!(of(Measure::Amplification), [5.0, 4.75, 5.25]);
    assert_eq!(of(Measure::Reads), [1.5, 1.5, 1.5]);
    assert_eq!(of(Measure::InsertTime), [1000.0, 1000.0, 1000.0]);
    assert_eq!(of(Measure::GetTime), [2000.0, 2000.0, 2000.0]);
    // A store that chose it reports it.
    assert_eq!(all[0].sizes[2].distance, Some(10_666));
}

#[test]
fn the_law_of_the_results_is_found_drawn_and_reported() {
    let results = growth_results();
    let all = series(&results);
    assert!(all[0].fit.is_none() && all[2].fit.is_none());
    let fit = all[1].fit.unwrap();
    let off = [fit.a - 2.0, fit.b - 0.5, fit.error_max].map(f64::abs);
    assert!(off.iter().all(|off| *off < 1e-9), "{fit:?}");
    let drawing = draw(&results);
    let is_printed = drawing.scene.shapes.iter().any(|shape| match shape {
        Shape::Text(text) => text.text.contains("= 2.000 + 0.500 log2(data / distance)"),
        _ => false,
    });
    let strokes = drawing.scene.shapes.iter().filter(|shape| match shape {
        Shape::Line { color, width, .. } => (*color, *width) == (INK, 1.2),
        _ => false,
    });
    assert!(is_printed && strokes.count() > 10);
    let with_fit: Vec<&Vec<String>> =
        drawing.points.rows.iter().filter(|row| !row[10].is_empty()).collect();
    assert_eq!(with_fit.len(), 5);
    assert!(with_fit.iter().all(|row| row[1] == "write_amplification" && row[2] == "fixed"));
    assert_eq!(
        with_fit[4][7..],
        ["5.000", "4.750", "5.250", "5.000", "2.000", "0.500000", "0.000"].map(str::to_owned)
    );
}

#[test]
fn a_distance_that_was_not_taken_is_reported_and_the_law_is_of_what_was() {
    let mut results = growth_results();
    for record in &mut results {
        if dial(record) == Some(Dial::Fixed(8000)) && record.settings["records"] == 250 {
            record.settings["store"]["checkpoint_distance"] = "4000 bytes".into();
        }
    }
    let all = series(&results);
    assert_eq!(all[1].sizes[0].doublings(), Some(3.0));
    assert!(all[1].fit.unwrap().error_max > 0.01);
    let within = Measured { distance: Some(32_000), ..all[1].sizes[0].clone() };
    assert_eq!((within.data, within.doublings()), (32_000, None));
    let said = about(&all);
    assert!(said.contains(&"turtle, distance 8 kB: it acted on another at some sizes.".into()));
    assert_eq!(said[0], "Memory is 0.33 times the data at every size.");
}

#[test]
fn the_sizes_that_run_by_default_all_stand_on_the_axes() {
    let mut results = growth_results();
    for record in &mut results {
        let records = record.settings["records"].as_u64().unwrap() * 20_000;
        record.settings["records"] = records.into();
    }
    let scene = draw(&results).scene;
    assert_eq!(scene.faults(), [""; 0]);
    for size in ["5,000,000", "10,000,000", "20,000,000", "40,000,000", "80,000,000"] {
        let is_it = |shape: &&Shape| matches!(shape, Shape::Text(text) if text.text == size);
        assert_eq!(scene.shapes.iter().filter(is_it).count(), MEASURES.len(), "{size}");
    }
}
