//! A process is killed while it writes or opens, several times: the database is a prefix of its
//! commits and contains every acknowledged one. In between, foreign files are created beside those
//! of the database.

use super::child::{Acknowledged, Running, check, go_on};
use crate::suite::support::{below, one_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Clock, Rng};
use std::path::Path;
use std::time::Duration;

/// Kills of a unit, all of one database.
const KILLS: u64 = 10;

/// A unit is a database that is killed ten times.
pub struct Kill;

impl Test for Kill {
    fn name(&self) -> &'static str {
        "kill"
    }

    fn about(&self) -> &'static str {
        "kills a process that writes, or opens, on the real file system"
    }

    fn short_units(&self) -> u64 {
        10
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "kills", count: 1_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("database");
        let mut rng = unit.rng();
        let overwriting = rng.one_in(3);
        let mut tally = Tally::default();
        for _ in 0..KILLS {
            let acknowledged = write_and_kill(&path, overwriting, &mut rng);
            tally.add("kills", 1);
            tally.add("kills before the first commit", u64::from(acknowledged.lines == 0));
            tally.add("commits acknowledged", acknowledged.lines);
            plant(&path, &mut rng);
            let database = check(&path, overwriting, acknowledged.all);
            // Otherwise the log grows over several deaths.
            if rng.one_in(3) {
                go_on(&database);
            }
            if rng.one_in(2) {
                database.close().unwrap();
            }
        }
        tally
    }
}

fn write_and_kill(path: &Path, overwriting: bool, rng: &mut Rng) -> Acknowledged {
    let mut child = Running::start(path, overwriting);
    if rng.one_in(4) {
        // Mostly during the open.
        Clock::real().sleep(Duration::from_micros(rng.below(30_000)));
    } else {
        child.wait_for(1 + rng.below(3_000));
    }
    child.kill(false)
}

/// Creates files beside those of the database, as other programs or people might.
fn plant(path: &Path, rng: &mut Rng) {
    let names = ["data.tmp", "data~", "core", ".nfs000001", "log", "log-", "lock.old"];
    // No database is created among foreign files, so it must exist before them.
    if path.join("data").exists() && rng.one_in(3) {
        let mut junk = vec![0; below(rng, 9_000)];
        rng.fill(&mut junk);
        std::fs::write(path.join(one_of(rng, &names)), junk).unwrap();
    }
}
