//! The shape of Rust files: how long, how wide, of which characters, how they begin.

use super::source::{closing_brace, is_word, line_of};
use super::{Finding, Source, Tree};

/// A file covers one concept; a longer file covers several.
const FILE_LINES_MAX: usize = 1_000;

/// From the line of `fn` to the line of the closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The same for functions of tests: scripts may be longer than logic.
const TEST_FUNCTION_LINES_MAX: usize = 120;

const WIDTH_MAX: usize = 100;

/// Files that may be longer than [`FILE_LINES_MAX`], each with its own bound. It only shrinks.
const LONG_FILES: [(&str, usize); 0] = [];

/// Every Rust file against every rule of shape; trailing blanks in every text.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        findings.extend(file_size(source));
        findings.extend(function_sizes(source));
        findings.extend(lines(source));
        findings.extend(notes(source));
        if !source.text.starts_with("//!") {
            let message = "a file begins with `//!`: its purpose, invariants and limits";
            findings.push(Finding::new(&source.path, 1, message));
        }
    }
    for (path, text) in &tree.texts {
        findings.extend(blanks(path, text));
    }
    findings
}

fn file_size(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let ratchet = LONG_FILES.iter().find(|(path, _)| *path == source.path);
    let max = ratchet.map_or(FILE_LINES_MAX, |(_, max)| *max);
    let message = format!("{lines} lines, at most {max}: split it by noun, tests to a sibling");
    (lines > max).then(|| Finding::new(&source.path, lines, message))
}

fn function_sizes(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for position in source.find_words("fn") {
        let Some(name) = name_after(&source.code[position + 2..]) else { continue };
        let Some(open) = body(&source.code, position) else { continue };
        let end = closing_brace(&source.code, open);
        let lines = line_of(&source.code, end) - line_of(&source.code, position) + 1;
        let max =
            if source.is_test(position) { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
        if lines > max {
            let message = format!("`{name}` has {lines} lines, at most {max}: name its parts");
            findings.push(Finding::new(&source.path, source.line(position), message));
        }
    }
    findings
}

/// The name after `fn`; none if it is a type.
fn name_after(code: &str) -> Option<&str> {
    let code = code.trim_start();
    let length = code.bytes().take_while(|byte| is_word(*byte)).count();
    (length > 0).then(|| &code[..length])
}

/// Where the body of the function at `position` opens; none if it has none.
fn body(code: &str, position: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, byte) in code.bytes().enumerate().skip(position) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(index),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn lines(source: &Source) -> Vec<Finding> {
    let mut findings = blanks(&source.path, &source.text);
    for (index, line) in source.text.lines().enumerate() {
        let width = line.chars().count();
        if width > WIDTH_MAX {
            let message = format!("{width} columns, at most {WIDTH_MAX}: break the line");
            findings.push(Finding::new(&source.path, index + 1, message));
        }
        if let Some(stranger) = line.chars().find(|character| !character.is_ascii()) {
            let message = format!("{stranger:?} is not ASCII: write an escape or another word");
            findings.push(Finding::new(&source.path, index + 1, message));
        }
    }
    findings
}

fn blanks(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(path, index + 1, "blanks at the end: remove them"));
        }
        if line.contains('\t') {
            findings.push(Finding::new(path, index + 1, "a tab: write blanks, or an escape"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(path, text.lines().count(), "end the file with a line break"));
    }
    findings
}

/// A note of unfinished work names the issue that will finish it: `TODO(#12)`.
fn notes(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in ["TODO", "FIXME", "XXX", "HACK"] {
        for position in super::source::find_words(&source.comments, word) {
            let after = &source.comments[position + word.len()..];
            let number = after.strip_prefix("(#").and_then(|rest| rest.split(')').next());
            let named = word == "TODO"
                && number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            // In back-ticks it is a quotation.
            if !named && !source.comments[..position].ends_with('`') {
                let message = format!("`{word}` without an issue: finish it, or `TODO(#number)`");
                findings.push(Finding::new(&source.path, source.line(position), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/chelonia/src/run/a.rs", text)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn long_files_and_functions_are_found() {
        assert_eq!(findings("//! A.\n"), [""; 0]);
        assert_eq!(findings(&format!("//! A.\n{}", "//\n".repeat(1_000))).len(), 1);
        let of =
            |lines: usize| format!("//! A.\nfn f(x: [u8; 2]) {{\n{}}}\n", "a;\n".repeat(lines));
        assert_eq!(findings(&of(68)), [""; 0]);
        assert_eq!(findings(&of(69)).len(), 1);
        let test = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", &of(100)[7..]);
        assert_eq!(findings(&test), [""; 0]);
        let declared =
            format!("//! A.\ntrait T {{ fn f(); }}\ntype F = fn(u8);\n{}", "a;\n".repeat(99));
        assert_eq!(findings(&declared), [""; 0]);
    }

    #[test]
    fn lines_are_narrow_plain_and_clean() {
        assert_eq!(findings(&format!("//! {}\n", "a".repeat(96))), [""; 0]);
        assert_eq!(findings(&format!("//! {}\n", "a".repeat(97))).len(), 1);
        assert_eq!(findings("//! \u{e9}\n").len(), 1);
        assert_eq!(findings("//! a \n").len(), 1);
        assert_eq!(findings("//! a\tb\n").len(), 1);
        assert_eq!(findings("//! a").len(), 1);
        assert_eq!(findings("use a;\n").len(), 1);
        assert_eq!(check(&Tree::of(&[("README.md", "a \n")])).len(), 1);
    }

    #[test]
    fn unfinished_work_names_its_issue() {
        assert_eq!(findings("//! A.\n// TODO(#12): b\n"), [""; 0]);
        for note in ["TODO: b", "TODO(me)", "TODO(#)", "FIXME(#1)", "XXX", "HACK"] {
            assert_eq!(findings(&format!("//! A.\n// {note}\n")).len(), 1, "{note}");
        }
        assert_eq!(findings("//! A.\nconst TODO: &str = \"TODO\";\n"), [""; 0]);
    }
}
