//! Complete systems in one thread: the committing thread does background work, time is simulated,
//! calls fail as planned and the power is cut. A run is determined by its seed.
//!
//! ```text
//!   open -- commits, reads, snapshots, syncs, checkpoints, full devices, failing calls -- end
//!     ^                                                                                    |
//!     '---- maybe a few opens that fail -- power cut, death of the process, or close <-----'
//! ```

mod life;
mod world;

use crate::suite::support::{below, one_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::{Rng, unreachable_blocks};
use chelonia::{Database, ErrorKind};
use life::{End, Life, fault};
use world::{Known, State, World, read};

/// One seed in this many has many short lives: what crashes leave adds up, until it is cleared.
const MANY_LIVES_ONE_IN: u64 = 16;

/// More than the opens after which engine `bminus` clears what crashes have left.
const MANY_LIVES: usize = 45;

/// A unit is a seed.
pub struct Simulation;

impl Test for Simulation {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn about(&self) -> &'static str {
        "one seed, one run: commits, reads, full devices, failing calls, power cuts, recoveries"
    }

    fn short_units(&self) -> u64 {
        200
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "seeds", count: 2_000 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut tally = Tally::default();
        let mut rng = unit.rng();
        let mut world = World::new(&mut rng);
        let mut possible = vec![State::new()];
        let mut database = world.open().unwrap();
        let has_many_lives = rng.one_in(MANY_LIVES_ONE_IN);
        let lives = if has_many_lives { MANY_LIVES } else { 2 + below(&mut rng, 5) };
        for _ in 0..lives {
            let found = read(&database).unwrap();
            assert!(possible.contains(&found), "the open shows a state that is not possible");
            let steps =
                if has_many_lives { below(&mut rng, 25) } else { 10 + below(&mut rng, 150) };
            let end = one_of(&mut rng, &[End::Close, End::Death, End::PowerCut]);
            // Some opens may fail; the power may also be cut after each of them.
            let opens = rng.below(3);
            let failing: Vec<bool> = (0..opens).map(|_| rng.one_in(2)).collect();
            let power_cut = end == End::PowerCut || failing.contains(&true);
            let mut life =
                Life::begin(&world, database, Known::exactly(found), &mut rng, &mut tally);
            life.live(steps);
            possible = life.end(end == End::Close, power_cut);
            world.die(end == End::PowerCut, &mut rng);
            tally.add("power cuts", u64::from(power_cut));
            database = open_at_last(&mut world, &failing, &mut rng, &mut tally);
        }
        let found = read(&database).unwrap();
        assert!(possible.contains(&found), "the last open shows a state that is not possible");
        let report = database.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        database.checkpoint().unwrap();
        assert_eq!(unreachable_blocks(&database).unwrap(), 0, "space is leaked");
        tally.add("seeds", 1);
        tally
    }
}

/// Opens, after some opens in which calls fail or the power is cut.
fn open_at_last(world: &mut World, failing: &[bool], rng: &mut Rng, tally: &mut Tally) -> Database {
    for power_cut in failing {
        world.plan.fail(fault(rng));
        match world.open() {
            Ok(database) => drop(database),
            Err(error) => {
                tally.add("opens that failed", 1);
                assert_ne!(error.kind(), ErrorKind::Corrupt, "no block is damaged here: {error}");
                assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
            }
        }
        world.die(*power_cut, rng);
    }
    world.open().unwrap()
}
