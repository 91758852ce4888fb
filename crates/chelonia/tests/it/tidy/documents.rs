//! Paths, links and dependencies that documents and comments name exist.
//!
//! A path in back-ticks in a document or comment must be the end of a path of the repository, at a
//! component: `storage/block.rs` is enough. A link in a document must lead to a file. Every
//! dependency has a row with its reason in `CONTRIBUTING.md`. No file names a path of the machine
//! it was written on or a host that is not on the list.

use super::source::line_of;
use super::{Finding, Tree};
use std::collections::BTreeSet;

const HOUSE_RULES: &str = "CONTRIBUTING.md";

/// Hosts that documents may link to. The last is in the first line of every SVG.
const HOSTS: [&str; 9] = [
    "apache.org",
    "crates.io",
    "doc.rust-lang.org",
    "docs.rs",
    "github.com",
    "keepachangelog.com",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
];

/// The first components of paths that belong to a machine, not to the project.
const MACHINE: [&str; 6] = ["work", "root", "home", "tmp", "Users", "mnt"];

/// Every document, comment and manifest.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        if path.ends_with(".md") {
            let prose = without_fences(text);
            findings.extend(named_paths(tree, path, &prose));
            findings.extend(links(tree, path, &prose));
        }
        findings.extend(foreign(path, text));
    }
    for source in &tree.sources {
        findings.extend(named_paths(tree, &source.path, &source.comments));
        findings.extend(foreign(&source.path, &source.text));
    }
    findings.extend(dependencies(tree));
    findings
}

/// The document with its fenced blocks blank.
fn without_fences(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        let blank = line.chars().map(|c| if c == '\n' { c } else { ' ' });
        if fenced || is_fence { prose.extend(blank) } else { prose.push_str(line) }
    }
    prose
}

/// The texts in back-ticks on one line, with their positions.
fn ticked(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let mut at = start;
        for (index, part) in line.split('`').enumerate() {
            if index % 2 == 1 {
                found.push((at, part));
            }
            at += part.len() + 1;
        }
        start += line.len();
    }
    found
}

fn looks_like_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/*".contains(&byte);
    let is_file = [".rs", ".md"].iter().any(|end| text.ends_with(end) && text.len() > end.len());
    let is_folder = ["crates/", "docs/", "src/", ".ci/", ".github/", "examples/"]
        .iter()
        .any(|start| text.starts_with(start));
    text.bytes().all(plain) && (is_file || is_folder)
}

fn named_paths(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (position, name) in ticked(text) {
        if looks_like_path(name) && !exists(tree, name) {
            let message = format!("`{name}` is not there: name what is, or remove the sentence");
            findings.push(Finding::new(path, line_of(text, position), message));
        }
    }
    findings
}

/// True if `name` is the end of a file's or folder's path; a star stands for any rest.
fn exists(tree: &Tree, name: &str) -> bool {
    let (name, open) = match name.split_once('*') {
        Some((head, _)) => (head, true),
        None => (name.trim_end_matches('/'), false),
    };
    tree.paths.iter().any(|path| {
        path.match_indices(name).any(|(start, _)| {
            let rest = &path[start + name.len()..];
            let begins = start == 0 || path.as_bytes()[start - 1] == b'/';
            begins && (open || rest.is_empty() || rest.starts_with('/'))
        })
    })
}

fn links(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (position, _) in text.match_indices("](") {
        let target = text[position + 2..].split([')', '#', '\n']).next().unwrap_or("");
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let resolved = resolve(path, target);
        let found = tree.paths.iter().any(|path| {
            *path == resolved || path.starts_with(&format!("{}/", resolved.trim_end_matches('/')))
        });
        if !found {
            let message =
                format!("the link to `{target}` leads nowhere: correct it or write the page");
            findings.push(Finding::new(path, line_of(text, position), message));
        }
    }
    findings
}

/// The path of `target` as seen from the file `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Paths of a machine and hosts that nobody listed.
fn foreign(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for first in MACHINE {
        let word = format!("/{first}/");
        for (position, _) in text.match_indices(&word) {
            let before = text[..position].chars().next_back();
            let begins = before.is_none_or(|c| c.is_whitespace() || "\"'`(=:<>,".contains(c));
            // `://` is a link's.
            if begins && !text[..position].ends_with(":/") {
                let message =
                    format!("`{word}` is a place on one machine: name it relative to the project");
                findings.push(Finding::new(path, line_of(text, position), message));
            }
        }
    }
    for (position, mark) in text.match_indices("://") {
        let after = &text[position + mark.len()..];
        let length = after.bytes().take_while(|b| b.is_ascii_alphanumeric() || b".-".contains(b));
        let host = after[..length.count()].trim_end_matches('.');
        if host.contains('.') && !HOSTS.contains(&host) {
            let message =
                format!("`{host}` is not on the list of hosts: link elsewhere, or list it");
            findings.push(Finding::new(path, line_of(text, position), message));
        }
    }
    findings
}

/// Dependencies and their reasons, both ways.
fn dependencies(tree: &Tree) -> Vec<Finding> {
    let explained = explained(tree.text(HOUSE_RULES));
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        for (line, name) in dependency_names(text) {
            if !name.starts_with("chelonia") && !explained.contains(&name) {
                let message = format!("`{name}` has no row in {HOUSE_RULES}: say why we need it");
                findings.push(Finding::new(path, line, message));
            }
            used.insert(name);
        }
    }
    for name in explained.difference(&used) {
        let message = format!("`{name}` is explained but not used: remove the row");
        findings.push(Finding::new(HOUSE_RULES, 1, message));
    }
    findings
}

/// The names in the first column of the table headed `| dependency |`.
fn explained(text: &str) -> BTreeSet<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| dependency |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.split('`').nth(1)).map(str::to_owned).collect()
}

/// The names in the dependency tables of a manifest, each with its line.
pub fn dependency_names(manifest: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut within = false;
    for (index, line) in manifest.lines().enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            within = header.ends_with("dependencies");
            if let Some((table, name)) = header.rsplit_once('.')
                && table.ends_with("dependencies")
            {
                names.push((index + 1, name.to_owned()));
            }
        } else if within && line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let name = line.split(['.', '=', ' ']).next().unwrap_or("");
            names.push((index + 1, name.to_owned()));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn named_paths_and_links_exist() {
        let code = ("crates/chelonia/src/storage/block.rs", "//! See `docs/a.md`, `block.rs`.\n");
        let good = "`storage/block.rs` `crates/chelonia/src` `docs/` `storage/*` `a.b` [a](a.md)\n";
        assert_eq!(findings(&[code, ("docs/a.md", good)]), [""; 0]);
        assert_eq!(findings(&[("docs/a.md", "```\n`docs/none.md`\n```\n")]), [""; 0]);
        for bad in ["`lock.rs`", "`storage/none.rs`", "`docs/b.md`", "`docs/x*`", "[b](b.md)"] {
            assert_eq!(findings(&[code, ("docs/a.md", bad)]).len(), 1, "{bad}");
        }
        assert_eq!(findings(&[code]).len(), 1);
    }

    #[test]
    fn dependencies_have_reasons() {
        let rules = |row: &str| format!("| dependency | why |\n| --- | --- |\n{row}");
        let manifest =
            "[dependencies]\nclap.workspace = true\nchelonia = { path = \".\" }\n\n[x]\ny = 1\n";
        let of = |rules: &str, manifest: &str| {
            findings(&[(HOUSE_RULES, rules), ("crates/a/Cargo.toml", manifest)]).len()
        };
        assert_eq!(of(&rules("| `clap` | arguments |\n"), manifest), 0);
        assert_eq!(of(&rules(""), manifest), 1);
        assert_eq!(of(&rules("| `clap` | a |\n| `old` | b |\n"), manifest), 1);
        assert_eq!(of(&rules(""), "[target.'cfg(x)'.dev-dependencies]\na = \"1\"\n"), 1);
        assert_eq!(of(&rules(""), "[dependencies.a]\nversion = \"1\"\n"), 1);
    }

    #[test]
    fn machine_paths_and_unlisted_hosts_are_found() {
        for first in MACHINE {
            assert_eq!(findings(&[("README.md", &format!("in `/{first}/x`\n"))]).len(), 1);
        }
        assert_eq!(findings(&[("README.md", "a/home/b https://docs.rs/work/x\n")]), [""; 0]);
        let strange = concat!("https:", "//packages.example.com/a\n");
        assert_eq!(findings(&[("README.md", strange)]).len(), 1);
    }
}
