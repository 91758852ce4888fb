//! The house rules, as a test over the files of the repository.
//!
//! Every rule is a function from files to [`Finding`]s; a finding names the file and the line and
//! says what to do. [`the_house_is_tidy`] runs all rules over the checkout that the test was built
//! from; each rule has tests with bad samples.
//!
//! | module | rules |
//! | --- | --- |
//! | `source` | distinguishes code, comments, strings and tests in a Rust file |
//! | `imports` | the import table of `docs/ARCHITECTURE.md` |
//! | `circles` | files that import each other in a circle |
//! | `islands` | files that may contain unsafe code |
//! | `banned` | calls that only some files may contain, or that have a replacement |
//! | `shape` | sizes of files and functions, width, characters, file headers, TODOs |
//! | `packages` | metadata, users of `internals`, examples that are named, run and short |
//! | `examples` | public methods without a documented example |
//! | `citations` | promises, invariants and rules cited by number are defined |
//! | `documents` | named paths exist, dependencies have reasons, no machine paths, no other hosts |
//! | `vocabulary` | words that were replaced do not come back |
//!
//! The test needs only the files: no network, no version control, no built program.

mod banned;
mod circles;
mod citations;
mod documents;
mod examples;
mod imports;
mod islands;
mod packages;
mod shape;
mod source;
mod vocabulary;

use source::Source;
use std::fmt;
use std::path::{Path, PathBuf};

/// Folders that are not ours to judge.
const SKIPPED_FOLDERS: [&str; 3] = ["target", ".git", "proptest-regressions"];

/// Folders whose files are no text, though some may look like it.
const DATA_FOLDERS: [&str; 2] = ["crates/torture/tests/golden/", "crates/torture/seeds/"];

/// Files whose text is not ours or is made by a program.
const SKIPPED_FILES: [&str; 4] = [".git", "Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE"];

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    /// `message` about line `line` (from 1) of `path`.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// The files of the repository: paths are relative to its root, with forward slashes.
#[derive(Default, Debug)]
pub struct Tree {
    /// Every file, also those that no rule reads.
    pub paths: Vec<String>,
    /// The Rust files.
    pub sources: Vec<Source>,
    /// The other files of text: path and content.
    pub texts: Vec<(String, String)>,
}

impl Tree {
    /// A tree made of samples.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.add(path, text);
        }
        tree
    }

    fn add(&mut self, path: &str, text: &str) {
        self.paths.push(path.to_owned());
        if SKIPPED_FILES.contains(&path) {
            return;
        }
        if path.ends_with(".rs") {
            self.sources.push(Source::new(path, text));
        } else {
            self.texts.push((path.to_owned(), text.to_owned()));
        }
    }

    /// The content of a file that is not Rust; empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.texts.iter().find(|(name, _)| name == path).map_or("", |(_, text)| text)
    }

    fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        list(root, root, &mut files);
        files.sort();
        let mut tree = Self::default();
        for path in files {
            if DATA_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
                tree.paths.push(path);
                continue;
            }
            let bytes = std::fs::read(root.join(&path)).expect("a listed file is readable");
            match String::from_utf8(bytes) {
                Ok(text) => tree.add(&path, &text),
                Err(_) => tree.paths.push(path),
            }
        }
        tree
    }
}

/// Adds the paths of all files below `folder` to `files`.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the checkout is readable") {
        let entry = entry.expect("a folder of the checkout is readable");
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let kind = entry.file_type().expect("a file has a type");
        if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            list(root, &entry.path(), files);
        } else if kind.is_file() && !name.ends_with(".profraw") {
            let path = entry.path();
            let path = path.strip_prefix(root).expect("an entry is below its root");
            files.push(path.to_str().expect("file names are UTF-8").replace('\\', "/"));
        }
    }
}

/// The root of the checkout.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../..").canonicalize().expect("the package is two folders below the root")
}

/// All rules.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(imports::check(tree));
    findings.extend(circles::check(tree));
    findings.extend(islands::check(tree));
    findings.extend(banned::check(tree));
    findings.extend(shape::check(tree));
    findings.extend(documents::check(tree));
    findings.extend(packages::check(tree));
    findings.extend(citations::check(tree));
    findings.extend(vocabulary::check(tree));
    findings.extend(examples::check(tree));
    findings
}

#[test]
fn the_house_is_tidy() {
    let tree = Tree::read(&root());
    assert!(tree.sources.len() > 20, "the test must find the sources it judges");
    let findings = check(&tree);
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), lines.join("\n"));
}
