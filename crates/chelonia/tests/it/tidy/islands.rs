//! Unsafe code is in islands only.
//!
//! An island is a file that may contain the word `unsafe` in its code. An attribute after its
//! documentation says so; the workspace denies unsafe code everywhere else.

use super::{Finding, Tree};

/// The islands, below the library's `src`: a folder ends with a slash. A module may be one file or
/// a folder, so some of them stand here in both forms.
const ISLANDS: [&str; 13] = [
    "memtable/art/",
    "memtable/art.rs",
    "memtable/arena.rs",
    "records/",
    "kernels/",
    "kernels.rs",
    "storage/cache/",
    "storage/cache.rs",
    "storage/io/",
    "memory/epoch.rs",
    "memory/fork.rs",
    "memory/pages.rs",
    "memory/slab.rs",
];

/// The islands of other packages, below the root. Those of the benchmark are libraries of others
/// that are in C, or that map files into memory; none is in a build without features. The others
/// make calls to the kernel that have no safe door, or run before the standard library does.
const OTHER_ISLANDS: [&str; 7] = [
    "crates/bench/src/stores/lmdb.rs",
    "crates/bench/src/stores/rocksdb/ffi.rs",
    "crates/bench/src/transfers/rocksdb.rs",
    "crates/bench/src/stores/wiredtiger/ffi.rs",
    "crates/chelonia-cli/src/descriptors.rs",
    "crates/chelonia/tests/it/fork.rs",
    "crates/torture/src/suite/process/shutdown.rs",
];

/// The declaration of an island.
const DECLARATION: &str = "#![expect(unsafe_code, reason = \"an island: ";

/// Every file against the list, every crate against the denial.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let Some(first) = source.find_words("unsafe").first().copied() else { continue };
        let is_island = OTHER_ISLANDS.contains(&source.path.as_str())
            || source.library_path().is_some_and(|path| {
                ISLANDS.iter().any(|island| {
                    path == *island || (island.ends_with('/') && path.starts_with(island))
                })
            });
        let message = if !is_island {
            "unsafe code outside the islands: give the island that needs it a safe function"
        } else if !source.text.replace("\n    ", " ").contains(DECLARATION)
            && !source.text.contains("#![expect(\n    unsafe_code,")
        {
            "an island declares itself after its documentation: \
             `#![expect(unsafe_code, reason = \"an island: ...\")]`"
        } else {
            continue;
        };
        findings.push(Finding::new(&source.path, source.line(first), message));
    }
    findings.extend(denials(tree));
    findings
}

/// Every package takes the lints of the workspace, which deny unsafe code.
fn denials(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        let is_workspace = path == "Cargo.toml";
        let needed =
            if is_workspace { "unsafe_code = \"deny\"" } else { "[lints]\nworkspace = true" };
        if !text.contains(needed) {
            findings.push(Finding::new(
                path,
                1,
                format!("unsafe code is not denied: add `{needed}`"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "#![expect(unsafe_code, reason = \"an island: raw\")]\nfn f() { unsafe {} }\n";

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn unsafe_code_stays_on_the_islands() {
        for island in ["memtable/art/node.rs", "kernels/x86.rs", "storage/io/direct.rs"] {
            assert_eq!(count(&format!("crates/chelonia/src/{island}"), CODE), 0, "{island}");
        }
        for other in ["memtable/mod.rs", "storage/block.rs", "base/bytes.rs", "kernelsx.rs"] {
            assert_eq!(count(&format!("crates/chelonia/src/{other}"), CODE), 1, "{other}");
        }
        assert_eq!(count("crates/chelonia-cli/src/main.rs", CODE), 1);
        assert_eq!(count("crates/bench/src/stores/rocksdb/ffi.rs", CODE), 0);
        assert_eq!(count("crates/bench/src/stores/rocksdb/mod.rs", CODE), 1);
        assert_eq!(count("crates/chelonia/src/stores/rocksdb/ffi.rs", CODE), 1);
        assert_eq!(count("crates/chelonia/src/base/bytes.rs", "// unsafe\n\"unsafe\""), 0);
    }

    #[test]
    fn islands_and_packages_say_so() {
        assert_eq!(count("crates/chelonia/src/memory/slab.rs", "fn f() { unsafe {} }"), 1);
        assert_eq!(count("Cargo.toml", "[workspace]"), 1);
        assert_eq!(count("crates/x/Cargo.toml", "[lints]\nworkspace = true\n"), 0);
        assert_eq!(count("crates/x/Cargo.toml", "[package]"), 1);
    }
}
