//! Words that were given up, and the words to use instead.
//!
//! A word of the field replaced each of them; they do not come back as a part of an identifier, in
//! a comment or in a document. In back-ticks a document may quote what a test of that name is
//! called.

use super::source::line_of;
use super::{Finding, Tree};

/// Given up, and what to say instead.
const WORDS: [(&str, &str); 14] = [
    ("toll", "read cost"),
    ("tolls", "read costs"),
    ("dues", "read costs"),
    ("lull", "write-idle period"),
    ("lulls", "write-idle periods"),
    ("finalized", "immutable (of a memtable)"),
    ("finalizes", "rotates (a memtable)"),
    ("canary", "mutant"),
    ("canaries", "mutants"),
    ("doubtful", "suspect"),
    ("shelves", "read sources"),
    ("residence", "node cache"),
    ("residents", "node clock"),
    ("vain", "for nothing, without effect"),
];

/// Every identifier, comment and document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        // This file names them.
        if source.path.ends_with("tidy/vocabulary.rs") {
            continue;
        }
        findings.extend(given_up(&source.path, &source.code));
        findings.extend(given_up(&source.path, &source.comments));
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("` `");
        // Lines are counted in the text: quotes hold none.
        findings.extend(given_up(path, &prose));
    }
    findings
}

/// The places of words that were given up, alone or as a part of an identifier.
fn given_up(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut start = 0;
    for (position, character) in text.char_indices().chain([(text.len(), ' ')]) {
        let ends_word = !character.is_ascii_alphabetic();
        let begins_word = character.is_ascii_uppercase()
            && text[..position].ends_with(|before: char| before.is_ascii_lowercase());
        if ends_word || begins_word {
            let word = text[start..position].to_ascii_lowercase();
            if let Some((_, instead)) = WORDS.iter().find(|(given_up, _)| *given_up == word) {
                let message = format!("`{word}` was given up: say {instead}");
                findings.push(Finding::new(path, line_of(text, start), message));
            }
            start = if ends_word { position + character.len_utf8() } else { position };
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_words_are_found_everywhere() {
        let count = |path: &str, text: &str| check(&Tree::of(&[(path, text)])).len();
        for (text, findings) in [
            ("fn a() { let toll_bytes = 1; }", 1),
            ("struct ReadLull;", 1),
            ("// What is finalized waits.", 1),
            ("fn tolling() { extoll(); }", 0),
            ("fn flush() {}", 0),
        ] {
            assert_eq!(count("crates/chelonia/src/a.rs", text), findings, "{text}");
        }
        assert_eq!(count("docs/a.md", "A lull begins.\n"), 1);
        assert_eq!(count("docs/a.md", "The test `a_lull_begins` holds that.\n"), 0);
    }
}
