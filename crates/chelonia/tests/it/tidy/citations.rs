//! Numbers that are cited are defined.
//!
//! | cited | defined |
//! | --- | --- |
//! | `promise 5` | in the list of promises of `docs/durability.md` |
//! | `invariant 2` | in the numbered list of the file's own `//!`, or of a file that is named |
//! | `rule R7` | nowhere: write what the rule says |

use super::source::{find_words, is_word, line_of};
use super::{Finding, Source, Tree};

const PROMISES: &str = "docs/durability.md";

/// Every comment and every document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let promises = tree.text(PROMISES).split("\n## ").find(|part| part.starts_with("Promises"));
    let promises = numbers(promises.unwrap_or("").lines());
    let mut findings = Vec::new();
    for source in &tree.sources {
        findings.extend(undefined(&source.path, &source.comments, &promises));
        findings.extend(invariants(source));
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        findings.extend(undefined(path, text, &promises));
    }
    findings
}

/// The numbers that the lines of a list begin with.
fn numbers<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<u32> {
    lines.filter_map(|line| line.trim_start().split_once(". ")?.0.parse().ok()).collect()
}

/// The word after `position`: letters and digits.
fn next_word(text: &str, position: usize) -> &str {
    let rest = text[position..].trim_start();
    &rest[..rest.bytes().take_while(|byte| is_word(*byte)).count()]
}

/// Promises that are not made, and rules by number.
fn undefined(path: &str, text: &str, promises: &[u32]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in ["promise", "promises", "rule", "Rule", "rules"] {
        for position in find_words(text, word) {
            // In back-ticks it is an example of a citation.
            if text[..position].ends_with('`') {
                continue;
            }
            let cited = next_word(text, position + word.len());
            let digits = cited.trim_start_matches(|first: char| first.is_ascii_uppercase());
            let Ok(number) = digits.parse::<u32>() else { continue };
            if !word.starts_with("promise") || !promises.contains(&number) {
                let message = format!("`{word} {cited}` is not defined: write what it says");
                findings.push(Finding::new(path, line_of(text, position), message));
            }
        }
    }
    findings
}

/// Invariants by number that the head of the file does not list.
fn invariants(source: &Source) -> Vec<Finding> {
    let head = source.text.lines().map_while(|line| line.strip_prefix("//!"));
    let listed = numbers(head);
    let mut findings = Vec::new();
    for word in ["invariant", "Invariant", "invariants"] {
        for position in find_words(&source.comments, word) {
            let Ok(number) = next_word(&source.comments, position + word.len()).parse() else {
                continue;
            };
            let sentence = source.comments[position..].split("\n\n").next().unwrap_or("");
            let names_file = sentence.lines().next().is_some_and(|line| line.contains(".rs`"));
            let is_example = source.comments[..position].ends_with('`');
            if !is_example && !names_file && !listed.contains(&number) {
                let message = format!("invariant {number} is not in the list at the file's head");
                findings.push(Finding::new(&source.path, source.line(position), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        check(&Tree::of(files)).len()
    }

    #[test]
    fn promises_that_are_cited_are_made() {
        let promises = "# D\n\n## Promises\n\n1. A.\n2. B\n   c.\n\n## More\n\n3. C.\n";
        for (cited, bad) in [("promise 2", 0), ("promises 1", 0), ("promise 3", 1)] {
            let text = format!("See {cited}.\n");
            assert_eq!(count(&[(PROMISES, promises), ("README.md", &text)]), bad, "{cited}");
            let text = format!("//! See {cited}.\n");
            assert_eq!(count(&[(PROMISES, promises), ("crates/a/src/a.rs", &text)]), bad);
        }
    }

    #[test]
    fn rules_have_no_numbers() {
        for cited in ["rule R7", "Rule R10", "rule 3"] {
            assert_eq!(count(&[("crates/a/src/a.rs", &format!("// As {cited} says.\n"))]), 1);
        }
        assert_eq!(count(&[("crates/a/src/a.rs", "// The rule of the house.\n")]), 0);
    }

    #[test]
    fn invariants_that_are_cited_are_listed() {
        let of = |text: &str| count(&[("crates/a/src/a.rs", text)]);
        assert_eq!(of("//! A.\n//! 1. B.\n\n// SAFETY: invariant 1.\nfn f() {}\n"), 0);
        assert_eq!(of("//! A.\n//! 1. B.\n\n// SAFETY: invariant 2.\nfn f() {}\n"), 1);
        assert_eq!(of("//! A.\n\n// The invariants 1 to 4 of `node.rs`.\n"), 0);
    }
}
