//! Mutants in runs: mistakes that values in several blocks, and compressed ones, invite.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "overflow-taken-for-head",
        bug: "a walk goes on behind an unreadable block of an overflow as if a head came next",
        file: "run/read/verify/walk.rs",
        text: "            None => self.next_head(last, BlockKind::Data, end, report),",
        instead: "            None => last + 1,",
    },
    Mutant {
        name: "overflow-dropped",
        bug: "the last entry of a block has only the part of its value that is in the block",
        file: "run/block/search.rs",
        text: "let overflow = if is_last { self.layout.overflow } else { 0 };",
        instead: "let overflow = if is_last { 0 } else { self.layout.overflow };",
    },
    Mutant {
        name: "shared-block-passed",
        bug: "a descending scan does not look for the end of an overflow in a block it has left",
        file: "run/read/cursor.rs",
        text: "        self.is_shared = receives(head)?;",
        instead: "        self.is_shared = false;",
    },
    Mutant {
        name: "any-dictionary",
        bug: "a merge keeps compressed values although the new run has another dictionary",
        file: "run/build/mod.rs",
        text: "if own == Some(value.dictionary().id()) {",
        instead: "if own.is_some() {",
    },
    Mutant {
        name: "dictionary-kept-back",
        bug: "a run of values that were compressed before comes without its dictionary",
        file: "run/build/mod.rs",
        text: "            self.has_compressed = true;\n",
        instead: "",
    },
];
