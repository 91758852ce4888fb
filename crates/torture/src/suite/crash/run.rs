//! What a history left behind: its journal, the states that it went through, and which of them a
//! crash may leave (the rule is in `crash/history.rs`).

use crate::suite::support::ModelSpace;
use chelonia::LevelOptions;
use chelonia::internals::Journal;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One keyspace: by its options it is told from others of its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    pub made: u32,
    pub entries: Arc<ModelSpace>,
}

/// What a database holds.
pub type State = BTreeMap<String, Space>;

/// What may be turned at any time, and is durable with the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dials {
    pub distance: u64,
    /// Of engines that have levels.
    pub levels: Option<LevelOptions>,
}

/// The dials of each keyspace.
pub type AllDials = BTreeMap<String, Dials>;

/// What happened to dials.
pub enum Turn {
    /// This was set, or found set, for the keyspace of this name and number.
    Set(String, u32, Dials),
    /// Whatever was set is durable.
    Stored,
}

/// What shows that trees of an engine have levels and move data between them.
pub struct Told {
    /// The engine, by name.
    pub engine: &'static str,
    /// What happened to one of its trees, as the tree counts it.
    pub event: &'static str,
    /// What the test calls it.
    pub called: &'static str,
}

/// For every engine what must have happened.
pub const TELLING: [Told; 4] = {
    let (turtle, autumn) = ("turtle", "autumn");
    [
        Told { engine: turtle, event: "flushes", called: "flushes of turtle" },
        Told { engine: turtle, event: "splits_leaf", called: "split leaves of turtle" },
        Told { engine: autumn, event: "merges_level0", called: "merges of level 0 of autumn" },
        Told { engine: autumn, event: "merges_levels", called: "merges of levels of autumn" },
    ]
};

/// A history as it was recorded.
pub struct Run {
    pub journal: Journal,
    /// What it was opened with.
    pub write_share: Option<u64>,
    /// `states[i]` is the content after `i` changes.
    pub states: Vec<State>,
    /// For each change, the boundary when it began and the one when it returned.
    pub changes: Vec<(usize, usize)>,
    /// From this boundary on, so many changes survive a power cut.
    pub durable: Vec<(usize, usize)>,
    /// In their order, each with the boundary when it happened.
    pub turns: Vec<(usize, Turn)>,
    /// What trees did meanwhile, by the names of [`TELLING`].
    pub events: BTreeMap<&'static str, u64>,
}

impl Run {
    /// How many changes must at least have survived a cut at `boundary`, and how many may have.
    pub fn bounds(&self, boundary: usize, process_death: bool) -> (usize, usize) {
        let begun = self.changes.iter().filter(|(began, _)| *began < boundary).count();
        let returned = self.changes.iter().filter(|(_, ended)| *ended <= boundary).count();
        let durable = self.durable.iter().filter(|(since, _)| *since <= boundary);
        let durable = durable.map(|(_, changes)| *changes).max().unwrap_or(0);
        (if process_death { returned } else { durable }, begun)
    }

    /// The dials that a keyspace may have after a cut at `boundary`.
    pub fn dials(&self, boundary: usize, of: &str, number: u32) -> Vec<Dials> {
        let mut possible = Vec::new();
        for (_, turn) in self.turns.iter().take_while(|(when, _)| *when <= boundary) {
            match turn {
                Turn::Set(name, made, dials) if name == of && *made == number => {
                    possible.push(*dials);
                }
                Turn::Set(..) => {}
                Turn::Stored => drop(possible.drain(..possible.len().saturating_sub(1))),
            }
        }
        possible
    }
}
