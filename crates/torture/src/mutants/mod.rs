//! Mutants: bugs that are planted in a copy of the store, one at a time, to see whether the tests
//! find them. A test that finds nothing proves little; a runner that finds every mutant proves
//! something.
//!
//! A mutant is a small change to one file of the library, by its text: what stands there, and what
//! stands there instead. So production code knows nothing of mutants, and any mistake that
//! somebody could make can be one. A test holds that each text stands in its file exactly once;
//! whoever changes such a line changes its mutant.
//!
//! ```text
//!   copy of the checkout -- replace text --> build --> torture until a unit fails --> restore
//! ```
//!
//! The list was written from the bugs that other stores had, by their rows in `docs/testing.md`,
//! and from the rules of order in `docs/durability.md`, before any of them was run. Those in
//! `autumn.rs` came later, from people who read the engine to find what no test would.

mod autumn;
mod db;
mod engine;
mod log;
mod mutation_runner;
mod storage;

pub use mutation_runner::{Mutants, run};

/// A bug that can be planted.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What it is called.
    pub name: &'static str,
    /// What is wrong then, and where something like it happened.
    pub bug: &'static str,
    /// The file that it is planted in, below the library's sources.
    pub file: &'static str,
    /// What stands there.
    pub text: &'static str,
    /// What stands there instead.
    pub instead: &'static str,
}

/// All of them.
pub fn all() -> Vec<Mutant> {
    [log::MUTANTS, storage::MUTANTS, db::MUTANTS, engine::MUTANTS, autumn::MUTANTS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_mutant_has_its_place() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chelonia/src");
        let mut names = BTreeSet::new();
        for mutant in all() {
            assert!(names.insert(mutant.name), "{} is there twice", mutant.name);
            let source = std::fs::read_to_string(sources.join(mutant.file)).unwrap();
            let count = source.matches(mutant.text).count();
            assert_eq!(count, 1, "the text of {} is {count} times in {}", mutant.name, mutant.file);
            assert_ne!(mutant.text, mutant.instead, "{}", mutant.name);
        }
        assert!(names.len() >= 30);
    }
}
