//! Mutants: bugs planted in a copy of the store, one at a time, to check that the tests find them.
//! A test that finds nothing proves little; a suite that finds every mutant proves something.
//!
//! A mutant replaces a text in one file of the library. So the production code contains no hooks,
//! and any mistake can be a mutant. A test ensures that each text occurs exactly once in its file;
//! a change of such a line must also change its mutant.
//!
//! ```text
//!   copy of the checkout -- replace text --> build --> torture until a unit fails --> restore
//! ```
//!
//! The list was written before any mutant was run, from the bugs of other stores (see the rows in
//! `docs/testing.md`) and from the ordering rules in `docs/durability.md`. The mutants in
//! `autumn.rs` and `splinter.rs` were added later, to find bugs that no test would find.

mod autumn;
mod bminus;
mod db;
mod engine;
mod log;
mod mutation_runner;
mod runs;
mod splinter;
mod storage;
mod transactions;
mod treeline;

pub use mutation_runner::{Mutants, run};

/// A bug that can be planted.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The name.
    pub name: &'static str,
    /// The bug, and another store that had one like it.
    pub bug: &'static str,
    /// The file to change, below the library's sources.
    pub file: &'static str,
    /// The text to replace.
    pub text: &'static str,
    /// The replacement.
    pub instead: &'static str,
}

/// All mutants.
pub fn all() -> Vec<Mutant> {
    let engines = [engine::MUTANTS, autumn::MUTANTS, splinter::MUTANTS, treeline::MUTANTS];
    let engines = [&engines[..], &[bminus::MUTANTS, runs::MUTANTS]].concat().concat();
    [log::MUTANTS, storage::MUTANTS, db::MUTANTS, transactions::MUTANTS, &engines].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_text_occurs_exactly_once() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chelonia/src");
        let mut names = BTreeSet::new();
        for mutant in all() {
            assert!(names.insert(mutant.name), "two mutants are called {}", mutant.name);
            let source = std::fs::read_to_string(sources.join(mutant.file)).unwrap();
            let count = source.matches(mutant.text).count();
            assert_eq!(count, 1, "the text of {} is {count} times in {}", mutant.name, mutant.file);
            assert_ne!(mutant.text, mutant.instead, "{}", mutant.name);
        }
        assert!(names.len() >= 30);
    }
}
