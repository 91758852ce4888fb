//! Output for the user: a progress bar per test, failures as they happen, a table at the end.

use crate::failure::Result;
use crate::profile::Profile;
use crate::runner::journal::hex;
use crate::runner::status::{Failed, Status};
use chelonia::internals::reached as marks;
use chelonia_torture::test::{Tally, Test};
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// The length of a bar.
const STEPS: u64 = 1000;

/// Progress bars, one per test; shown on a terminal only.
pub struct Progress {
    profile: Profile,
    all: MultiProgress,
    bars: Vec<ProgressBar>,
}

impl Progress {
    /// Draws the bars.
    pub fn new(profile: Profile, tests: &[Box<dyn Test>], statuses: &[Status]) -> Self {
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("{prefix:>13} {bar:30} {percent:>3}% {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bars = tests.iter().map(|test| {
            let bar = all.add(ProgressBar::new(STEPS).with_style(style.clone()));
            bar.set_prefix(test.name());
            bar
        });
        let progress = Self { profile, bars: bars.collect(), all: all.clone() };
        progress.update(tests, statuses);
        progress
    }

    /// Redraws the bars.
    pub fn update(&self, tests: &[Box<dyn Test>], statuses: &[Status]) {
        for ((bar, test), status) in self.bars.iter().zip(tests).zip(statuses) {
            bar.set_position(steps(done(self.profile, &**test, status)));
            bar.set_message(counts_of(&**test, status));
        }
    }

    /// Reports a failure at once, because a run may take hours.
    pub fn failed(&self, test: &str, failed: &Failed) {
        let text = format!("FAILED {test} {}\n{}", again(test, failed), failed.text);
        // Without a terminal, `println` of the bars prints nothing.
        if self.all.is_hidden() {
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            let _ = self.all.println(text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let _ = self.all.clear();
    }
}

/// The filled length of a bar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`part` is from 0 to 1"
)]
fn steps(part: f64) -> u64 {
    (part * STEPS as f64) as u64
}

/// The finished part of a test, from 0 to 1.
fn done(profile: Profile, test: &dyn Test, status: &Status) -> f64 {
    match profile {
        Profile::Short => status.units() as f64 / (test.short_units() + 1) as f64,
        Profile::Long => status.done(test.targets()),
    }
}

/// The counts of a test, those with a target first.
fn counts_of(test: &dyn Test, status: &Status) -> String {
    let counts = status.counts();
    let targets = test.targets().iter().map(|target| target.what);
    let rest = counts.keys().copied().filter(|name| targets.clone().all(|what| what != *name));
    let text = targets
        .clone()
        .chain(rest)
        .map(|name| format!("{} {name}", HumanCount(status.count(name))));
    text.collect::<Vec<_>>().join(", ")
}

/// The command that repeats a unit.
fn again(test: &str, failed: &Failed) -> String {
    let features = if cfg!(feature = "shuttle") { " --features shuttle" } else { "" };
    format!(
        "(cargo run --profile sim -p chelonia-torture{features} -- --repeat {test}:{} --seed {})",
        failed.unit,
        hex(failed.seed)
    )
}

/// Prints the status of all tests.
pub fn print(
    profile: Profile,
    tests: &[Box<dyn Test>],
    statuses: &[Status],
    as_json: bool,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for (test, status) in tests.iter().zip(statuses) {
        if as_json {
            let failures = status.failures().iter().map(|failed| {
                json!({ "unit": failed.unit, "seed": hex(failed.seed), "said": failed.text })
            });
            let targets = test.targets().iter().map(|one| (one.what, one.count));
            let line = json!({
                "test": test.name(),
                "units": status.units(),
                "seconds": status.spent().as_secs_f64(),
                "counts": status.counts(),
                "targets": targets.collect::<BTreeMap<_, _>>(),
                "failures": failures.collect::<Vec<_>>(),
                "not_run": test.excuse(),
            });
            writeln!(out, "{line}")?;
        } else {
            print_test(&mut out, profile, &**test, status)?;
        }
    }
    Ok(())
}

fn print_test(
    out: &mut dyn Write,
    profile: Profile,
    test: &dyn Test,
    status: &Status,
) -> Result<()> {
    let outcome = match test.excuse() {
        _ if !status.failures().is_empty() => "FAILED".to_owned(),
        Some(excuse) => format!("skipped: {excuse}"),
        None if profile == Profile::Short || status.has_met(test.targets()) => "passed".to_owned(),
        None => format!("passed, {:.0}% of its target", 100.0 * status.done(test.targets())),
    };
    let seconds = status.spent().as_secs_f64();
    writeln!(out, "{:>13}  {outcome}", test.name())?;
    writeln!(
        out,
        "{:>13}  {} units in {seconds:.0} s: {}",
        "",
        status.units(),
        counts_of(test, status)
    )?;
    for failed in status.failures() {
        writeln!(out, "{:>13}  unit {} {}", "", failed.unit, again(test.name(), failed))?;
    }
    Ok(())
}

/// Prints the coverage marks that the run did not reach; returns how many there are.
pub fn print_marks(as_json: bool) -> Result<usize> {
    let mut out = std::io::stdout().lock();
    let (reached, missed): (Vec<_>, Vec<_>) = marks().partition(|(_, count)| *count > 0);
    if as_json {
        let counts: BTreeMap<String, u64> = reached
            .iter()
            .chain(&missed)
            .map(|(mark, count)| (format!("{mark:?}"), *count))
            .collect();
        writeln!(out, "{}", json!({ "marks": counts }))?;
    } else {
        let (count, all) = (reached.len(), reached.len() + missed.len());
        writeln!(out, "{:>13}  {count} of {all} coverage marks were reached", "marks")?;
        for (mark, _) in &missed {
            writeln!(out, "{:>13}  not reached: {mark:?}", "")?;
        }
    }
    Ok(missed.len())
}

/// Prints the counts of a unit.
pub fn print_tally(tally: &Tally, as_json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let distinct = tally.distinct().map(|(what, all)| (what, all.len() as u64));
    let counts: Vec<(&str, u64)> = tally.counts().chain(distinct).collect();
    if as_json {
        let counts: BTreeMap<&str, u64> = counts.into_iter().collect();
        writeln!(out, "{}", json!({ "counts": counts }))?;
        return Ok(());
    }
    for (what, count) in counts {
        writeln!(out, "{:>13} {what}", HumanCount(count).to_string())?;
    }
    Ok(())
}

/// Prints the list of tests.
pub fn list(tests: &[Box<dyn Test>], as_json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for test in tests {
        let targets = test.targets();
        if as_json {
            let targets: BTreeMap<_, _> =
                targets.iter().map(|target| (target.what, target.count)).collect();
            let line = json!({
                "test": test.name(), "about": test.about(), "targets": targets,
                "not_run": test.excuse(),
            });
            writeln!(out, "{line}")?;
            continue;
        }
        let excuse =
            test.excuse().map_or_else(String::new, |excuse| format!(" (skipped: {excuse})"));
        writeln!(out, "{:>13}  {}{excuse}", test.name(), test.about())?;
        for target in targets {
            writeln!(out, "{:>13}  {} {}", "", HumanCount(target.count), target.what)?;
        }
    }
    if !as_json {
        let other = match cfg!(feature = "shuttle") {
            true => "all other tests: in a build without the feature `shuttle`",
            false => "schedules: in a separate build, with `--features shuttle`",
        };
        writeln!(out, "{:>13}  {other}", "")?;
    }
    Ok(())
}
