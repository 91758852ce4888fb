//! The import table of `docs/ARCHITECTURE.md`.
//!
//! The table is read from the document, so the two cannot differ. A row names a folder or file of
//! `crates/chelonia/src` and what it may import; the cell is read in clauses, parted by semicolons:
//!
//! - `everything above` allows each row above; else each path in back-ticks is allowed, with
//!   all that lies below it;
//! - `of X only Y, Z` narrows an allowed `X` to the paths after `only`;
//! - `never ...` is for people: what is not allowed is denied without it.
//!
//! The crate root, its feature-gated door `internals` and its `tests` are above the table.
//! Importing a module that is allowed in part is fine; what is then named through it is looked
//! at. An engine may never import another engine.

use super::source::{Source, is_word};
use super::{Finding, Tree};
use std::collections::BTreeSet;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";

/// A row of the table.
#[derive(Debug)]
struct Row {
    module: String,
    allowed: Vec<String>,
}

/// Every import of the library against the table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let rows = match table(tree.text(DOCUMENT)) {
        Ok(rows) => rows,
        Err(message) => return vec![Finding::new(DOCUMENT, 1, message)],
    };
    let mut findings = Vec::new();
    for source in &tree.sources {
        let Some(path) = source.library_path() else { continue };
        let module = module_path(path);
        let is_ours = |name: &&String| !["internals", "tests"].contains(&name.as_str());
        let Some(name) = module.first().filter(is_ours) else { continue };
        let Some(row) = rows.iter().find(|row| row.module == *name) else {
            let message = format!("`{name}` has no row in the import table: give it one");
            findings.push(Finding::new(&source.path, 1, message));
            continue;
        };
        for (position, import) in imports(source, &module) {
            if let Some(message) = judge(row, &module, &import) {
                findings.push(Finding::new(&source.path, source.line(position), message));
            }
        }
    }
    findings
}

/// The rule that `import` in `module` breaks, if any.
fn judge(row: &Row, module: &[String], import: &[String]) -> Option<String> {
    let joined = import.join("::");
    let first = import.first()?;
    if *first == row.module {
        let engine = (row.module == "engines").then(|| module.get(1)).flatten()?;
        let other = import.get(1).filter(|other| *other != engine)?;
        let is_module = import.len() > 2 && other.starts_with(|c: char| c.is_ascii_lowercase());
        return is_module.then(|| {
            format!("engine `{engine}` imports engine `{other}`: move what both need to a part")
        });
    }
    let allowed = row.allowed.iter().any(|allowed| {
        joined == *allowed
            || joined.strip_prefix(allowed.as_str()).is_some_and(|rest| rest.starts_with("::"))
    });
    let leads_there = row.allowed.iter().any(|allowed| {
        allowed.strip_prefix(joined.as_str()).is_some_and(|rest| rest.starts_with("::"))
    });
    (!allowed && !leads_there).then(|| {
        format!(
            "`{}` may not import `{joined}` ({DOCUMENT}): import it from its own module, call \
             through the seam, or move what is needed down",
            row.module
        )
    })
}

/// Reads the table.
fn table(document: &str) -> Result<Vec<Row>, String> {
    let mut lines = document.lines().skip_while(|line| !line.starts_with("| module | may import"));
    if lines.next().is_none() {
        return Err("the import table (`| module | may import |`) is missing".to_owned());
    }
    let mut rows: Vec<Row> = Vec::new();
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [module, cell] = cells[..] else {
            return Err(format!("a row of the import table has not two cells: {line}"));
        };
        let above: Vec<String> = rows.iter().map(|row| row.module.clone()).collect();
        let allowed = allowed(cell, &above);
        rows.push(Row { module: module.trim_matches('`').to_owned(), allowed });
    }
    if rows.is_empty() { Err("the import table is empty".to_owned()) } else { Ok(rows) }
}

fn allowed(cell: &str, above: &[String]) -> Vec<String> {
    let mut allowed = Vec::new();
    for clause in cell.split(';').map(str::trim) {
        let mut named = clause.split('`').skip(1).step_by(2).map(str::to_owned);
        if clause.starts_with("never") {
            continue;
        } else if clause.starts_with("of ") {
            let narrowed = named.next();
            allowed.retain(|path| Some(path) != narrowed.as_ref());
            allowed.extend(named);
        } else if clause.starts_with("everything above") {
            allowed.extend_from_slice(above);
        } else {
            allowed.extend(named);
        }
    }
    allowed
}

/// The module that a file below `src` is: `storage/io/mod.rs` is `storage`, `io`.
pub fn module_path(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = matches!(path, "lib" | "main");
    path.split('/').filter(|_| !is_root).map(str::to_owned).collect()
}

/// The paths from the crate's root that the code names, each with its position.
fn imports(source: &Source, module: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = paths_below(source, "crate");
    // Names that come through an imported module.
    let modules = found.iter().filter(|(_, path)| path.len() == 1).map(|(_, path)| path[0].clone());
    for imported in modules.collect::<BTreeSet<_>>() {
        let through = paths_below(source, &imported).into_iter();
        let through = through.filter(|(position, _)| !source.code[..*position].ends_with("::"));
        found.extend(through.map(|(position, mut path)| {
            path.insert(0, imported.clone());
            (position, path)
        }));
    }
    for position in source.find_words("super") {
        if source.code[..position].ends_with("super::") {
            continue;
        }
        let mut base = module.to_vec();
        if source.is_in_test_item(position) {
            base.push("tests".to_owned());
        }
        let mut at = position;
        while source.code[at..].starts_with("super::") {
            base.pop();
            at += "super::".len();
        }
        let mut paths = Vec::new();
        read_tree(source.code.as_bytes(), at, &base, &mut paths);
        found.extend(paths.into_iter().map(|path| (position, path)));
    }
    found
}

/// The paths below `root` that the code names, groups taken apart, each with its position.
pub fn paths_below(source: &Source, root: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for position in source.find_words(root) {
        let after = position + root.len();
        if source.code[after..].starts_with("::") {
            let mut paths = Vec::new();
            read_tree(source.code.as_bytes(), after + 2, &[], &mut paths);
            found.extend(paths.into_iter().map(|path| (position, path)));
        }
    }
    found
}

/// Reads the path or use tree at `at` that goes on from `prefix`; gives the position after it.
fn read_tree(code: &[u8], at: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut at = skip_blank(code, at);
    if code.get(at) == Some(&b'{') {
        at += 1;
        while at < code.len() && code[at] != b'}' {
            at = read_tree(code, at, prefix, found);
            // Past a rename, to the next member.
            while at < code.len() && code[at] != b',' && code[at] != b'}' {
                at += 1;
            }
            at = if code.get(at) == Some(&b',') { skip_blank(code, at + 1) } else { at };
        }
        return at + 1;
    }
    let length = code[at..].iter().take_while(|byte| is_word(**byte) || **byte == b'*').count();
    let name = String::from_utf8_lossy(&code[at..at + length]).into_owned();
    let mut path = prefix.to_vec();
    if name != "self" {
        path.push(name);
    }
    let end = at + length;
    let goes_on = code[end..].starts_with(b"::")
        && code.get(end + 2).is_some_and(|byte| is_word(*byte) || b"{*\n ".contains(byte));
    if length > 0 && goes_on {
        return read_tree(code, end + 2, &path, found);
    }
    found.push(path);
    end
}

fn skip_blank(code: &[u8], at: usize) -> usize {
    at + code[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| module | may import |
| --- | --- |
| `base` | nothing of ours |
| `storage` | `base` |
| `log` | `base`, `storage::io` |
| `engine` | `base` |
| `engines` | `base`, `engine`; never `log` |
| `db` | everything above; of `engines` only `engines::EngineKind`, `engines::open` |
";

    fn findings(path: &str, text: &str) -> Vec<String> {
        let path = format!("crates/chelonia/src/{path}");
        let tree = Tree::of(&[(DOCUMENT, TABLE), (path.as_str(), text)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn imports_go_down_only() {
        assert_eq!(findings("lib.rs", "use crate::Database;"), [""; 0]);
        assert_eq!(findings("internals.rs", "use crate::{Result, db::Database};"), [""; 0]);
        assert_eq!(findings("storage/block.rs", "use crate::base::ids::Extent;"), [""; 0]);
        assert_eq!(findings("base/ids.rs", "use crate::storage::io;").len(), 1);
        assert_eq!(findings("log/a.rs", "use crate::storage::io::File;"), [""; 0]);
        assert_eq!(findings("log/a.rs", "use crate::storage::{block, io};").len(), 1);
        assert_eq!(findings("log/a.rs", "fn f() -> crate::storage::block::X {}").len(), 1);
        assert_eq!(findings("log/a.rs", "use crate::{\n base::{a::B as C, d},\n db::E};").len(), 1);
        assert_eq!(findings("log/a.rs", "// crate::E\nlet x = \"crate::E\";"), [""; 0]);
    }

    #[test]
    fn super_paths_are_followed() {
        assert_eq!(findings("log/a.rs", "use super::b::C;"), [""; 0]);
        assert_eq!(findings("log/a.rs", "use super::super::db::C;").len(), 1);
        let test = "#[cfg(test)]\nmod tests { use super::super::b; use super::super::super::db; }";
        assert_eq!(findings("log/a.rs", test).len(), 1);
    }

    #[test]
    fn engines_do_not_know_each_other_and_db_knows_the_seam_only() {
        assert_eq!(findings("engines/turtle/a.rs", "use crate::engines::turtle::b::C;"), [""; 0]);
        assert_eq!(findings("engines/turtle/a.rs", "use crate::engines::bminus::b::C;").len(), 1);
        assert_eq!(findings("engines/mod.rs", "use crate::engines::turtle::Turtle;"), [""; 0]);
        assert_eq!(findings("db/a.rs", "use crate::engines::EngineKind;"), [""; 0]);
        assert_eq!(findings("db/a.rs", "use crate::engines::turtle::Turtle;").len(), 1);
        assert_eq!(findings("db/a.rs", "use crate::log::Log;"), [""; 0]);
        let through = "use crate::engines::{self, EngineKind};\nfn f() { engines::open(); }";
        assert_eq!(findings("db/a.rs", through), [""; 0]);
        let through = "use crate::engines;\nfn f() { engines::turtle::open(); }";
        assert_eq!(findings("db/a.rs", through).len(), 1);
    }

    #[test]
    fn strangers_need_a_row() {
        assert_eq!(findings("extra.rs", "").len(), 1);
        assert_eq!(findings("log/a.rs", "use crate::Error;").len(), 1);
        assert_eq!(check(&Tree::of(&[(DOCUMENT, "no table")])).len(), 1);
    }
}
