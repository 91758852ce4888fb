//! Mutants in the engine `treeline`: mistakes that pages updated in place invite.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "slot-in-use-written",
        bug: "a page is written to a slot that a held version or the durable root refers to",
        file: "pages/group.rs",
        text: ".filter(is_writable)",
        instead: "",
    },
    Mutant {
        name: "gathered-under-a-sweep",
        bug: "small staged memtables are merged while a job sweeps them",
        file: "engines/treeline/absorb.rs",
        text: "parts.sinking.max(self.claimed.load(Ordering::SeqCst));",
        instead: "parts.sinking;",
    },
    Mutant {
        name: "page-before-cached",
        bug: "the page before stays in the cache when its slot is written again",
        file: "pages/group.rs",
        text: "            self.cached.forget(block);\n",
        instead: "",
    },
    Mutant {
        name: "newer-hidden-too",
        bug: "staged memtables that are not being swept are hidden below the swept keys too",
        file: "engines/treeline/version.rs",
        text: "if place < first {",
        instead: "if place < first && self.sinking == 0 {",
    },
    Mutant {
        name: "bound-one-key-left",
        bug: "the bound of a divided page is the last key of its left part",
        file: "engines/treeline/sweep/change.rs",
        text: "Some(separator(&last.last, &image.first))",
        instead: "Some(last.last.clone())",
    },
    Mutant {
        name: "tombstones-end-above-pages",
        bug: "the merge of staged memtables drops tombstones before they reach the pages",
        file: "engines/treeline/sweep/update.rs",
        text: "Merge::new(sources, Direction::Ascending, Tombstones::Keep)",
        instead: "Merge::new(sources, Direction::Ascending, Tombstones::Drop)",
    },
    Mutant {
        name: "slot-free-at-once",
        bug: "pages updated in place are not reported as lost",
        file: "engines/treeline/sweep/update.rs",
        text: "self.output.lose(touched.iter().map(",
        instead: "drop(touched.iter().map(",
    },
];
