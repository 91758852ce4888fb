//! Calls that have one home, or a better way.
//!
//! Each row of [`RULES`] names the words, where they hold, the files that are their home, and what
//! to do instead. Only code counts: comments and strings may name anything.

use super::imports::paths_below;
use super::source::Source;
use super::{Finding, Tree};

/// Where a rule holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The library, its tests excepted.
    Library,
    /// The library and the programs, their tests excepted.
    Production,
    /// The programs alone.
    Program,
    /// Every Rust file.
    Everywhere,
}

/// The programs: they speak the public API.
const PROGRAMS: [&str; 2] = ["crates/chelonia-cli/src/", "crates/bench/src/"];

struct Rule {
    words: &'static [&'static str],
    scope: Scope,
    /// Paths below the package's `src` that may say it: a folder ends with a slash.
    homes: &'static [&'static str],
    instead: &'static str,
}

const RULES: [Rule; 13] = [
    Rule {
        words: &["std::fs", "fs::File", "OpenOptions"],
        scope: Scope::Library,
        homes: &["storage/io/"],
        instead: "go through `storage::io::Directory`, so that tests can cut the power",
    },
    Rule {
        words: &["Instant::now", "SystemTime::now"],
        scope: Scope::Library,
        homes: &["runtime/clock.rs"],
        instead: "take the time from a `runtime::clock::Clock` that was handed in",
    },
    Rule {
        words: &["thread::spawn", "thread::Builder", "thread::scope"],
        scope: Scope::Library,
        homes: &["runtime/workers.rs", "flush/background.rs"],
        instead: "use `runtime::workers::Workers`; background threads start in `flush`",
    },
    Rule {
        words: &["thread::sleep"],
        scope: Scope::Library,
        homes: &["runtime/clock.rs"],
        instead: "wait on a condition variable, or through `runtime::clock::Clock::sleep`",
    },
    Rule {
        words: &["std::sync::atomic", "std::sync::Mutex", "std::sync::RwLock", "parking_lot::"],
        scope: Scope::Library,
        // The lock in `zstd.rs` is held for a push or a pop: no order of events matters.
        homes: &["runtime/sync/", "runtime/coverage.rs", "base/stream/zstd.rs"],
        instead: "take locks and atomics from `base::sync`",
    },
    Rule {
        words: &["println!", "print!", "eprintln!", "eprint!"],
        scope: Scope::Library,
        homes: &[],
        instead: "return an error or count an event: a library does not speak to terminals",
    },
    Rule {
        words: &["process::exit", "process::abort"],
        scope: Scope::Library,
        homes: &[],
        instead: "return an error: the process is the caller's",
    },
    Rule {
        words: &["env::var", "env::var_os", "env::vars"],
        scope: Scope::Library,
        homes: &[],
        instead: "make it an option: the environment of the process decides nothing here",
    },
    Rule {
        words: &[".unwrap()", ".unwrap_err()"],
        scope: Scope::Production,
        homes: &[],
        instead: "return an error, or `expect` with the reason why it cannot fail",
    },
    Rule {
        words: &["chelonia::internals"],
        scope: Scope::Program,
        homes: &[],
        instead: "call the public API: feature `internals` is for tests and `crates/torture`",
    },
    Rule { words: &["dbg!"], scope: Scope::Everywhere, homes: &[], instead: "remove it" },
    Rule {
        words: &["todo!", "unimplemented!"],
        scope: Scope::Everywhere,
        homes: &[],
        instead: "finish it, or leave it out",
    },
    Rule {
        words: &["#[ignore"],
        scope: Scope::Everywhere,
        homes: &[],
        instead: "make the test fast or remove it: an ignored test tests nothing",
    },
];

/// Every Rust file against every rule.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for rule in RULES.iter().filter(|rule| applies(rule, source)) {
            for word in rule.words {
                for position in occurrences(source, word) {
                    let is_exempt = rule.scope != Scope::Everywhere && source.is_test(position);
                    if !is_exempt {
                        let message = format!("`{word}` has no place here: {}", rule.instead);
                        findings.push(Finding::new(&source.path, source.line(position), message));
                    }
                }
            }
        }
        findings.extend(lint_exceptions(source));
    }
    findings
}

/// Where the code says `word`; a path of the standard library also from within a group.
fn occurrences(source: &Source, word: &str) -> Vec<usize> {
    let Some(path) = word.strip_prefix("std::") else { return source.find_words(word) };
    let path: Vec<&str> = path.split("::").collect();
    let named = paths_below(source, "std").into_iter();
    named
        .filter(|(_, named)| path.iter().eq(named.iter().take(path.len())))
        .map(|(position, _)| position)
        .collect()
}

fn applies(rule: &Rule, source: &Source) -> bool {
    let library = source.library_path();
    let program = PROGRAMS.iter().find_map(|program| source.path.strip_prefix(program));
    let path = match rule.scope {
        Scope::Everywhere => return true,
        Scope::Library => library,
        Scope::Program => program,
        Scope::Production => library.or(program),
    };
    let Some(path) = path else { return false };
    !rule.homes.iter().any(|home| path == *home || (home.ends_with('/') && path.starts_with(home)))
}

/// Exceptions from lints say why.
fn lint_exceptions(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for attribute in ["[allow(", "[expect("] {
        for (position, _) in source.code.match_indices(attribute) {
            let end = source.code[position..].find(']').map_or(source.code.len(), |n| position + n);
            if source.find_words("reason").iter().all(|at| !(position..end).contains(at)) {
                let message = "an exception from a lint without a `reason`: write the true one";
                findings.push(Finding::new(&source.path, source.line(position), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn every_rule_fails_on_its_words_outside_their_home() {
        for rule in RULES {
            for word in rule.words {
                let receiver = if word.starts_with('.') { "x" } else { "" };
                let text = format!("fn f() {{ {receiver}{word} }}");
                let package =
                    if rule.scope == Scope::Program { "chelonia-cli" } else { "chelonia" };
                let path = format!("crates/{package}/src/run/a.rs");
                assert!(count(&path, &text) >= 1, "{word}: {text}");
                for home in rule.homes {
                    let file = if home.ends_with('/') { "a.rs" } else { "" };
                    let path = format!("crates/{package}/src/{home}{file}");
                    assert_eq!(count(&path, &text), 0, "{word} in {home}");
                }
            }
        }
    }

    #[test]
    fn tests_comments_and_strings_may() {
        let path = "crates/chelonia/src/run/a.rs";
        assert_eq!(count(path, "// x.unwrap()\nlet a = \"println!\";"), 0);
        assert_eq!(count(path, "use std::{io, fs};"), 1);
        assert_eq!(count(path, "use std::sync::{Arc, atomic::AtomicU8};"), 1);
        assert_eq!(count(path, "#[cfg(test)]\nmod tests { fn f() { x.unwrap() } }"), 0);
        assert_eq!(count(path, "#[cfg(test)]\nmod tests { fn f() { todo!() } }"), 1);
        assert_eq!(
            count("crates/chelonia/tests/it/a.rs", "fn f() { std::fs::read(x).unwrap() }"),
            0
        );
        assert_eq!(count("crates/chelonia-cli/src/main.rs", "fn f() { println!(); }"), 0);
        assert_eq!(count("crates/bench/src/main.rs", "use chelonia::internals::run;"), 1);
    }

    #[test]
    fn exceptions_have_reasons() {
        let path = "crates/chelonia/src/run/a.rs";
        assert_eq!(count(path, "#[expect(dead_code)]\nfn f() {}"), 1);
        assert_eq!(count(path, "#[allow(dead_code)]\nfn f() {}"), 1);
        assert_eq!(count(path, "#[expect(dead_code, reason = \"built for later\")]\nfn f() {}"), 0);
    }
}
