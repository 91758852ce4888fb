//! Mutants in the engine `splinter`: mistakes that a tree of shared runs invites.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "flushed-below-older",
        bug: "branches that come to a pivot are put below its older ones",
        file: "engines/splinter/edit.rs",
        text: "numbered([newer, older].concat());",
        instead: "numbered([older, newer].concat());",
    },
    Mutant {
        name: "merge-on-top",
        bug: "the output of a merge is placed above branches that came meanwhile",
        file: "engines/splinter/replace.rs",
        text: "(newer.chain(outputs).collect(), older.collect())",
        instead: "(outputs.chain(newer).collect(), older.collect())",
    },
    Mutant {
        name: "tombstones-end-in-the-trunk",
        bug: "merges above leaves drop tombstones",
        file: "engines/splinter/merge.rs",
        text: "if self.whole { Tombstones::Drop } else { Tombstones::Keep };",
        instead: "Tombstones::Drop;",
    },
    Mutant {
        name: "shared-unmarked",
        bug: "a run that a flush shares between nodes is not marked, and is freed with one of them",
        file: "engines/splinter/edit.rs",
        text: "        self.leave(draft, &parts);\n",
        instead: "",
    },
    Mutant {
        name: "share-rounded-down",
        bug: "a run with few entries in the range of a child does not move there",
        file: "engines/splinter/parts.rs",
        text: "(totals.entries > 0).then_some",
        instead: "(totals.entries > 9).then_some",
    },
    Mutant {
        name: "joined-with-the-dead",
        bug: "leaves are joined although their runs have replaced entries in each other's range",
        file: "engines/splinter/edit.rs",
        text: "            || !all.all(Part::is_whole)\n",
        instead: "            || all.next().is_none()\n",
    },
];
