//! Words that were replaced, and sentences without a subject.
//!
//! A word of the field replaced each word of [`WORDS`]; it must not come back as a part of an
//! identifier, in a comment or in a document. Documents may quote identifiers in back-ticks. A
//! sentence of a comment begins with its subject, a thing of the system, not with one of
//! [`OPENINGS`].

use super::source::line_of;
use super::{Finding, Tree};

/// Where a word must not be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// In all files.
    Everywhere,
    /// In the torture tests.
    Torture,
    /// In identifiers of the torture tests: in prose the word has ordinary uses.
    TortureNames,
}

/// Words, their scope, and the replacement.
const WORDS: [(&str, Scope, &str); 27] = [
    ("toll", Scope::Everywhere, "read cost"),
    ("tolls", Scope::Everywhere, "read costs"),
    ("dues", Scope::Everywhere, "read costs"),
    ("lull", Scope::Everywhere, "write-idle period"),
    ("lulls", Scope::Everywhere, "write-idle periods"),
    ("finalized", Scope::Everywhere, "immutable (of a memtable)"),
    ("finalizes", Scope::Everywhere, "rotates (a memtable)"),
    ("canary", Scope::Everywhere, "mutant"),
    ("canaries", Scope::Everywhere, "mutants"),
    ("doubtful", Scope::Everywhere, "suspect"),
    ("shelves", Scope::Everywhere, "read sources"),
    ("residence", Scope::Everywhere, "node cache"),
    ("residents", Scope::Everywhere, "node clock"),
    ("vain", Scope::Everywhere, "for nothing, without effect"),
    ("trial", Scope::Everywhere, "test, torture test"),
    ("trials", Scope::Everywhere, "tests, torture tests"),
    ("nest", Scope::Everywhere, "mutation runner"),
    ("told", Scope::Everywhere, "reported, returned, named"),
    ("untold", Scope::Everywhere, "not reported"),
    ("tell", Scope::Everywhere, "report, return, distinguish"),
    ("tells", Scope::Everywhere, "reports, returns, distinguishes"),
    ("lane", Scope::Torture, "profile"),
    ("hatch", Scope::Torture, "plant (a mutant)"),
    ("lie", Scope::Torture, "forged input"),
    ("lies", Scope::Torture, "has forged input"),
    ("whole", Scope::TortureNames, "complete, all, undamaged"),
    ("kept", Scope::TortureNames, "retained, stored, journal"),
];

/// Sentences of comments must not begin with these.
const OPENINGS: [&str; 4] = ["What ", "Who ", "Whatever ", "Whoever "];

/// Every identifier, comment and document.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        // This file names them.
        if source.path.ends_with("tidy/vocabulary.rs") {
            continue;
        }
        findings.extend(replaced(&source.path, &source.code, true));
        findings.extend(replaced(&source.path, &source.comments, false));
        findings.extend(without_subject(&source.path, &source.comments));
    }
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("` `");
        // Lines are counted in the text: quotes contain no line breaks.
        findings.extend(replaced(path, &prose, false));
    }
    findings
}

/// The places of replaced words, alone or as a part of an identifier.
fn replaced(path: &str, text: &str, is_code: bool) -> Vec<Finding> {
    let is_in_scope = |scope: Scope| match scope {
        Scope::Everywhere => true,
        Scope::Torture => path.starts_with("crates/torture/"),
        Scope::TortureNames => is_code && path.starts_with("crates/torture/"),
    };
    let mut findings = Vec::new();
    let mut start = 0;
    for (position, character) in text.char_indices().chain([(text.len(), ' ')]) {
        let ends_word = !character.is_ascii_alphabetic();
        let begins_word = character.is_ascii_uppercase()
            && text[..position].ends_with(|before: char| before.is_ascii_lowercase());
        if ends_word || begins_word {
            let word = text[start..position].to_ascii_lowercase();
            let known = WORDS.iter().find(|(replaced, ..)| *replaced == word);
            if let Some((_, _, instead)) = known.filter(|(_, scope, _)| is_in_scope(*scope)) {
                let message = format!("`{word}` was replaced: write {instead}");
                findings.push(Finding::new(path, line_of(text, start), message));
            }
            start = if ends_word { position + character.len_utf8() } else { position };
        }
    }
    findings
}

/// The sentences of comments that begin with one of [`OPENINGS`] and are not questions.
fn without_subject(path: &str, comments: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for opening in OPENINGS {
        for (position, _) in comments.match_indices(opening) {
            let before = comments[..position].trim_end();
            let begins = before.ends_with(['/', '!', '.', ':', '|']);
            let end = comments[position..].find(['.', '?', ';']).map_or(0, |end| position + end);
            if begins && comments.as_bytes().get(end) != Some(&b'?') {
                let message = format!(
                    "a sentence begins with `{}`: begin with the thing it is about",
                    opening.trim_end()
                );
                findings.push(Finding::new(path, line_of(comments, position), message));
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
    fn replaced_words_are_found_in_their_scope() {
        for (text, findings) in [
            ("fn a() { let toll_bytes = 1; }", 1),
            ("struct ReadLull;", 1),
            ("// A finalized memtable waits.", 1),
            ("fn tolling() { extoll(); }", 0),
            ("fn is_whole() { told(); }", 1),
            ("fn flush() {}", 0),
        ] {
            assert_eq!(count("crates/chelonia/src/a.rs", text), findings, "{text}");
        }
        assert_eq!(count("crates/torture/src/a.rs", "fn is_whole() { told(); }"), 2);
        assert_eq!(count("crates/torture/src/a.rs", "// A whole number of lanes lies there."), 1);
        assert_eq!(count("docs/a.md", "A lull begins.\n"), 1);
        assert_eq!(count("docs/a.md", "The test `a_lull_begins` fails.\n"), 0);
    }

    #[test]
    fn sentences_begin_with_their_subject() {
        for (text, findings) in [
            ("//! What a test shares.\n", 1),
            ("// Reads a block. Who holds it waits.\n", 1),
            ("/// A test asks. What is right?\n", 0),
            ("/// Returns what was read.\n", 0),
            ("/// A flush waits.\n", 0),
        ] {
            assert_eq!(count("crates/torture/src/a.rs", text), findings, "{text}");
        }
    }
}
