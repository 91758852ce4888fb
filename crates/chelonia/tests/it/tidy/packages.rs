//! Packages: metadata of those that are published, the users of `internals`, and the examples.
//!
//! Examples are the programs of `examples`: each has a row in the README, a test that runs it, and
//! fewer than [`EXAMPLE_LINES_MAX`] lines.

use super::documents::dependency_names;
use super::{Finding, Tree};

/// The packages that are published.
const PUBLISHED: [&str; 2] = ["crates/chelonia/Cargo.toml", "crates/chelonia-cli/Cargo.toml"];

/// The keys that the manifest of a published package has, with a value or from the workspace.
const METADATA: [&str; 9] = [
    "license",
    "repository",
    "documentation",
    "readme",
    "description",
    "categories",
    "keywords",
    "rust-version",
    "include",
];

/// The packages that may enable the library's feature `internals`.
const INSIDERS: [&str; 2] = ["crates/chelonia/Cargo.toml", "crates/torture/Cargo.toml"];

const EXAMPLES: &str = "examples/Cargo.toml";
const EXAMPLE_LINES_MAX: usize = 119;

/// Every manifest and every example.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        if PUBLISHED.contains(&path.as_str()) {
            findings.extend(metadata(path, text));
        }
        if text.contains("\"internals\"") && !INSIDERS.contains(&path.as_str()) {
            let message =
                "feature `internals` is for tests and `crates/torture`: call the public API";
            findings.push(Finding::new(path, 1, message));
        }
    }
    let library = dependency_names(tree.text(PUBLISHED[0])).into_iter();
    for (line, name) in library.filter(|(_, name)| name.starts_with("chelonia-")) {
        let message = format!("the library cannot be published with `{name}`: move what needs it");
        findings.push(Finding::new(PUBLISHED[0], line, message));
    }
    findings.extend(examples(tree));
    findings.extend(oldest_rust(tree));
    findings
}

fn metadata(path: &str, text: &str) -> Vec<Finding> {
    let package = text.split("\n[").next().unwrap_or("");
    let says = |name: &str| {
        package.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.contains('=')))
    };
    let missing = METADATA.into_iter().filter(|name| !says(name));
    missing
        .map(|name| Finding::new(path, 1, format!("a published package needs the key `{name}`")))
        .collect()
}

fn examples(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tests = tree.sources.iter().find(|source| source.path == "examples/tests/run.rs");
    let tests = tests.map_or("", |source| &source.text);
    for source in &tree.sources {
        let Some(file) = source.path.strip_prefix("examples/") else { continue };
        let Some(name) = file.strip_suffix(".rs").filter(|name| !name.contains('/')) else {
            continue;
        };
        let mut find = |message: &str| findings.push(Finding::new(&source.path, 1, message));
        if !tree.text(EXAMPLES).contains(&format!("path = \"{file}\"")) {
            find("the example is not built: add a `[[bin]]` to `examples/Cargo.toml`");
        }
        if !tree.text("README.md").contains(&format!("(examples/{file})")) {
            find("README.md does not link to the example: add a row to its table");
        }
        if !tests.contains(&format!("\"CARGO_BIN_EXE_{name}\"")) {
            find("no test runs the example: add one to `examples/tests/run.rs`");
        }
        if source.text.lines().count() > EXAMPLE_LINES_MAX {
            find("the example has 120 lines or more: shorten it, or split it");
        }
    }
    findings
}

/// The README names the Rust that the manifest does.
fn oldest_rust(tree: &Tree) -> Option<Finding> {
    let mut lines = tree.text("Cargo.toml").lines();
    let version = lines.find_map(|line| line.strip_prefix("rust-version = "))?.trim_matches('"');
    let sentence = format!("Rust {version} or newer");
    let message = format!("say `{sentence}`, which is `rust-version` in Cargo.toml");
    (!tree.text("README.md").contains(&sentence)).then(|| Finding::new("README.md", 1, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        check(&Tree::of(files)).len()
    }

    #[test]
    fn published_packages_have_metadata() {
        let all: String =
            METADATA.iter().map(|name| format!("{name}.workspace = true\n")).collect();
        let manifest = format!("[package]\n{all}\n[features]\ninternals = []\n");
        assert_eq!(count(&[(PUBLISHED[0], &manifest)]), 0);
        assert_eq!(count(&[(PUBLISHED[1], &manifest)]), 0);
        assert_eq!(count(&[(PUBLISHED[1], &manifest.replace("\nkeywords", "\nnothing"))]), 1);
        let late = manifest.replace("\nreadme.workspace = true", "") + "readme = \"a\"\n";
        assert_eq!(count(&[(PUBLISHED[0], &late)]), 1);
        let torture = format!("{manifest}[dev-dependencies]\nchelonia-torture = \"1\"\n");
        assert_eq!(count(&[(PUBLISHED[0], &torture)]), 1);
    }

    #[test]
    fn internals_are_for_tests() {
        let text = "[dependencies]\nchelonia = { features = [\"internals\"] }\n";
        assert_eq!(count(&[("crates/torture/Cargo.toml", text)]), 0);
        assert_eq!(count(&[("crates/bench/Cargo.toml", text)]), 1);
    }

    #[test]
    fn examples_are_built_named_run_and_short() {
        let of = |manifest: &str, readme: &str, tests: &str, example: &str| {
            count(&[
                (EXAMPLES, manifest),
                ("README.md", readme),
                ("examples/tests/run.rs", tests),
                ("examples/a.rs", example),
            ])
        };
        let (manifest, readme) = ("[[bin]]\npath = \"a.rs\"\n", "[a](examples/a.rs)\n");
        let tests = "run(env!(\"CARGO_BIN_EXE_a\"))";
        assert_eq!(of(manifest, readme, tests, "//! A.\n"), 0);
        assert_eq!(of("", readme, tests, "//! A.\n"), 1);
        assert_eq!(of(manifest, "", tests, "//! A.\n"), 1);
        assert_eq!(of(manifest, readme, "", "//! A.\n"), 1);
        assert_eq!(of(manifest, readme, tests, &"//\n".repeat(120)), 1);
    }

    #[test]
    fn the_readme_names_the_oldest_rust() {
        let of = |readme: &str| {
            count(&[("Cargo.toml", "rust-version = \"1.95\"\n"), ("README.md", readme)])
        };
        assert_eq!(of("It builds with Rust 1.95 or newer.\n"), 0);
        assert_eq!(of("It builds with Rust 1.94 or newer.\n"), 1);
    }
}
