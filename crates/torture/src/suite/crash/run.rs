//! The record of a history: its journal, its states, and which of them a crash may leave
//! (`crash/history.rs` has the rules).

use crate::suite::support::ModelSpace;
use chelonia::internals::Journal;
use chelonia::{LevelOptions, LogLayout};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The write share of an open, and the layout of the log if there is no database yet.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub write_share: Option<u64>,
    pub layout: LogLayout,
}

/// A keyspace; its options distinguish it from others with the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    pub made: u32,
    pub entries: Arc<ModelSpace>,
}

/// The content of a database.
pub type State = BTreeMap<String, Space>;

/// Options that can be changed at any time, durable with the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dials {
    pub distance: u64,
    /// If the engine has levels.
    pub levels: Option<LevelOptions>,
    /// If the engine is splinter.
    pub space_percent: Option<u32>,
}

/// The dials of each keyspace.
pub type AllDials = BTreeMap<String, Dials>;

/// A change of dials.
pub enum Turn {
    /// These values were set, or found, for the keyspace with this name and number.
    Set(String, u32, Dials),
    /// All values set so far are durable.
    Stored,
}

/// An event that shows that trees of an engine have levels and move data between them.
pub struct RequiredEvent {
    /// The engine, by name.
    pub engine: &'static str,
    /// The name in the statistics of a tree.
    pub event: &'static str,
    /// The name in the tally.
    pub called: &'static str,
}

/// The events that must have happened, for every engine.
pub const REQUIRED_EVENTS: [RequiredEvent; 10] = {
    let (turtle, autumn, splinter) = ("turtle", "autumn", "splinter");
    let (treeline, bminus) = ("treeline", "bminus");
    [
        RequiredEvent { engine: turtle, event: "flushes", called: "flushes of turtle" },
        RequiredEvent { engine: turtle, event: "splits_leaf", called: "split leaves of turtle" },
        RequiredEvent {
            engine: autumn,
            event: "merges_level0",
            called: "merges of level 0 of autumn",
        },
        RequiredEvent {
            engine: autumn,
            event: "merges_levels",
            called: "merges of levels of autumn",
        },
        RequiredEvent { engine: splinter, event: "flushes", called: "flushes of splinter" },
        RequiredEvent {
            engine: splinter,
            event: "leaf_merges",
            called: "merges of leaves of splinter",
        },
        RequiredEvent {
            engine: treeline,
            event: "pages_in_place",
            called: "pages in place of treeline",
        },
        RequiredEvent {
            engine: treeline,
            event: "groups_rewritten",
            called: "groups rewritten of treeline",
        },
        RequiredEvent { engine: bminus, event: "pages_written", called: "pages of bminus" },
        RequiredEvent { engine: bminus, event: "deltas_written", called: "deltas of bminus" },
    ]
};

/// A recorded history.
pub struct Run {
    pub journal: Journal,
    /// How it was opened.
    pub opening: Opening,
    /// `states[i]` is the content after `i` changes.
    pub states: Vec<State>,
    /// For each change, the boundary when it began and the one when it returned.
    pub changes: Vec<(usize, usize)>,
    /// From this boundary on, this many changes survive a power cut.
    pub durable: Vec<(usize, usize)>,
    /// Changes of dials in order, each with the boundary when it happened.
    pub turns: Vec<(usize, Turn)>,
    /// Events of the trees, by the names of [`REQUIRED_EVENTS`].
    pub events: BTreeMap<&'static str, u64>,
}

impl Run {
    /// The least and the largest number of changes that may have survived a cut at `boundary`.
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
