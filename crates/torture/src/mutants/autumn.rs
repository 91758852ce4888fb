//! Mutants in the engine `autumn`, and in the handling of full devices. Their authors did not write
//! the tests.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "newer-behind-older",
        bug: "a memtable is placed behind the older sequences of level 0",
        file: "engines/autumn/mod.rs",
        text: "next.level0.insert(0, Arc::new(sequence));",
        instead: "next.level0.push(Arc::new(sequence));",
    },
    Mutant {
        name: "bottom-everywhere",
        bug: "tombstones are dropped in levels that have older entries below",
        file: "engines/autumn/merge/merging.rs",
        text: "bottom: version.levels[level + 1..].iter().all(|below| below.is_empty()),",
        instead: "bottom: true,",
    },
    Mutant {
        name: "moved-past-older",
        bug: "a table of level 0 moves down past older tables with the same keys",
        file: "engines/autumn/merge/level0_picker.rs",
        text: "                && (0..at.len()).all(|other| \
               other == place || !meets(next(other)))\n",
        instead: "",
    },
    Mutant {
        name: "barrier-ignored",
        bug: "a table is written across the range of an unmerged table of its level",
        file: "engines/autumn/merge/unit.rs",
        text: "let is_across = barriers.peek().is_some_and(|barrier| **barrier <= *key);",
        instead: "let is_across = false;",
    },
    Mutant {
        name: "sunk-comes-back",
        bug: "the part of a level 0 table that was merged down is still read there",
        file: "engines/autumn/merge/unit.rs",
        text: "            rest.first = to.clone();\n",
        instead: "            let _ = to;\n",
    },
    Mutant {
        name: "large-gone-twice",
        bug: "a table forgets which of its large values were released before",
        file: "engines/autumn/merge/unit.rs",
        text: "rest.large_skipped += large;",
        instead: "rest.large_skipped = *large;",
    },
    Mutant {
        name: "shape-forgotten",
        bug: "a changed level shape is not stored",
        file: "state/keyspace.rs",
        text: "        *current = current.with_live(live)?;\n",
        instead: "        let _ = current.with_live(live)?;\n        let _ = &mut current;\n",
    },
    Mutant {
        name: "older-saved-last",
        bug: "in a salvage older values replace newer ones",
        file: "engines/autumn/check/salvage.rs",
        text: "    sequences.reverse();\n",
        instead: "",
    },
    Mutant {
        name: "filled-to-the-end",
        bug: "puts fill the device until nothing can be flushed",
        file: "disk_full/accept.rs",
        text: "        if spent > known.enough_until {\n",
        instead: "        if spent.min(0) > known.enough_until {\n",
    },
];
