//! Mutants in the engine `bminus`: mistakes that places written in turn invite.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "dead-stamps-believed",
        bug: "what a crashed absorb left is believed once later absorbs have newer stamps",
        file: "pages/homes/stamps.rs",
        text: "stamp <= self.stamp && !self.dead.contains(stamp)",
        instead: "stamp <= self.stamp",
    },
    Mutant {
        name: "failed-stamp-believed",
        bug: "the stamp of a failed absorb is not dead, only those of crashes",
        file: "engines/bminus/absorb/mod.rs",
        text: "let was_tainted = self.tainted.swap(true, Ordering::SeqCst);",
        instead: "let was_tainted = self.tainted.load(Ordering::SeqCst);",
    },
    Mutant {
        name: "place-needed-by-a-snapshot-written",
        bug: "only the newest version's image is kept when a place is chosen",
        file: "pages/homes/places.rs",
        text: "held.any_in(stamp..next.unwrap_or(Generation(u64::MAX)))",
        instead: "{ let _ = held; next.is_none() }",
    },
    Mutant {
        name: "home-free-at-once",
        bug: "a home that a page has left is used again while older versions have the page there",
        file: "pages/homes/region.rs",
        text: "self.is_writable(storage) && !held.any_in(self.born..since)",
        instead: "{ let _ = (since, held); self.is_writable(storage) }",
    },
    Mutant {
        name: "known-too-long",
        bug: "what was known of a home is believed although its node was changed since",
        file: "pages/homes/region.rs",
        text: "(as_of.0 != 0 && as_of >= changed).then(",
        instead: "(as_of.0 != 0 && changed.0 != u64::MAX).then(",
    },
    Mutant {
        name: "delta-forgets",
        bug: "a delta has only the segments that the last update changed",
        file: "pages/homes/segments.rs",
        text: "let mut set = self.0;",
        instead: "let mut set = 0;",
    },
    Mutant {
        name: "suspect-ignored",
        bug: "a place that cannot be read is taken for the rest of a torn write",
        file: "engines/bminus/read/pages.rs",
        text: "if sum != self.facts.sum {",
        instead: "if sum != self.facts.sum && sum == 1 {",
    },
    Mutant {
        name: "cleared-list-too-long",
        bug: "ranges of dead stamps are dropped before what has them is overwritten",
        file: "engines/bminus/absorb/clear.rs",
        text: "unreadable.append(&mut clear_dead(self.storage(), region, &version.parts.view)?);",
        instead: "unreadable.extend(clear_dead(self.storage(), region, &Default::default())?);",
    },
    Mutant {
        name: "taint-cleared-with-the-list",
        bug: "a version that only drops dead stamps says that nothing was left before it",
        file: "engines/bminus/absorb/clear.rs",
        text: "        drop(clearing);\n        self.write_parts",
        instead: "        drop(clearing);\n        self.tainted.store(false, \
                  crate::runtime::sync::Ordering::SeqCst);\n        self.write_parts",
    },
    Mutant {
        name: "torn-left-when-cleared",
        bug: "a torn write is left when its stamp is dropped: a later one can make it whole",
        file: "engines/bminus/absorb/clear.rs",
        text: "self.storage().zero_many(&unreadable)?;",
        instead: "let _ = &unreadable;",
    },
];
