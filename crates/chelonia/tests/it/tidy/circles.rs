//! Files of a crate that import each other in a circle.
//!
//! A file imports another if its code names a path that ends at something the other file defines,
//! whether in a `use` or in the middle of a line:
//!
//! - A name that a file re-exports counts for the file that defines it, so a `mod.rs` that
//!   re-exports its children is no circle. A file that imports a sibling through such a re-export
//!   of its own folder is a finding of its own; the crate root, the public API, is excepted.
//! - A file may use what the own file of its folder defines, for example the type that it has
//!   methods of, though that file uses it: the two count as one.
//! - Tests are ignored, and so are calls of methods: an `impl` may be in another file than its
//!   type.
//!
//! Of each set of files that reach each other, one shortest circle is reported, with a name that
//! each of its steps imports.

use super::source::{Source, is_word};
use super::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum length of a chain of re-exports that is followed.
const HOPS_MAX: usize = 8;

/// A path of module or item names from the root of the crate.
type Path = Vec<String>;

/// A name that a file brings into its scope.
struct Import {
    /// Where the statement begins.
    position: usize,
    /// From the root of the crate; the path of the item.
    path: Path,
    /// Its name in the file; `*` for all of a module.
    name: String,
    /// The statement has a visibility.
    is_public: bool,
}

/// A file as a module of its crate.
struct File<'s> {
    source: &'s Source,
    module: Path,
    imports: Vec<Import>,
}

/// The files of a crate by the path of their module.
type Crate<'s> = BTreeMap<Path, File<'s>>;

/// An import of one file by another: the position in the importing file, and the name.
type Arrows = BTreeMap<Path, BTreeMap<Path, (usize, String)>>;

/// Circles among the files of each crate, and imports through a re-export of the own folder.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = tree.sources.iter().filter(|source| !source.is_test_file());
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    for source in sources {
        let Some((root, path)) = source.path.split_once("/src/") else { continue };
        // The root of a library is the root; a program beside it names it by its crate.
        let is_program = path == "main.rs" && tree.paths.contains(&format!("{root}/src/lib.rs"));
        if !is_program && !path.starts_with("bin/") {
            let module = super::imports::module_path(path);
            let file = File { source, module: module.clone(), imports: Vec::new() };
            crates.entry(root).or_default().insert(module, file);
        }
    }
    for files in crates.values_mut() {
        let modules: BTreeSet<Path> = files.keys().cloned().collect();
        for file in files.values_mut() {
            file.imports = imports(file, &modules);
        }
        let (arrows, detours) = arrows(files);
        findings.extend(detours);
        for circle in circles(&arrows) {
            findings.push(finding(files, &arrows, &circle));
        }
    }
    findings
}

/// Says what ties a circle, at the place of its first import.
fn finding(files: &Crate<'_>, arrows: &Arrows, circle: &[Path]) -> Finding {
    let mut chain = format!("`{}`", files[&circle[0]].source.path);
    for (at, from) in circle.iter().enumerate() {
        let to = &circle[(at + 1) % circle.len()];
        let (_, name) = &arrows[from][to];
        chain.push_str(&format!(" takes `{name}` of `{}`", files[to].source.path));
        if at + 1 < circle.len() {
            chain.push_str(", which");
        }
    }
    let source = files[&circle[0]].source;
    let (position, _) = arrows[&circle[0]][&circle[1]];
    let message = format!(
        "a circle of imports: {chain}: move what they share to the lower file, or pass data \
         instead of a type"
    );
    Finding::new(&source.path, source.line(position), message)
}

/// The imports between files, and imports that take the detour over their own folder.
fn arrows(files: &Crate<'_>) -> (Arrows, Vec<Finding>) {
    let (mut arrows, mut detours) = (Arrows::new(), Vec::new());
    for file in files.values() {
        for (position, path) in named(file, files) {
            let Some((first, target, name)) = resolve(files, &path) else { continue };
            if target != first && !first.is_empty() && file.module.starts_with(&first) {
                let message = format!(
                    "`{name}` comes through a re-export of the own folder: import it from `{}`, \
                     which defines it",
                    files[&target].source.path
                );
                let line = file.source.line(position);
                detours.push(Finding::new(&file.source.path, line, message));
            }
            if !file.module.starts_with(&target) {
                let of_file = arrows.entry(file.module.clone()).or_default();
                of_file.entry(target).or_insert((position, name));
            }
        }
    }
    detours.dedup();
    (arrows, detours)
}

/// The module that `path` names something of, the module that defines it, and its name there.
fn resolve(files: &Crate<'_>, path: &[String]) -> Option<(Path, Path, String)> {
    let mut path = path.to_vec();
    let mut first = None;
    for _ in 0..HOPS_MAX {
        let length = (0..=path.len()).rev().find(|length| files.contains_key(&path[..*length]))?;
        let module = path[..length].to_vec();
        let first = first.get_or_insert_with(|| module.clone());
        let Some(name) = path.get(length) else {
            let name = module.last().cloned().unwrap_or_default();
            return Some((first.clone(), module, name));
        };
        let reexports = files[&module].imports.iter().filter(|import| import.is_public);
        let Some(import) = reexports.into_iter().find(|import| import.name == *name) else {
            return Some((first.clone(), module, name.clone()));
        };
        let mut next = import.path.clone();
        next.extend_from_slice(&path[length + 1..]);
        path = next;
    }
    None
}

/// Every path from the root that the code of a file names, with its position.
fn named(file: &File<'_>, files: &Crate<'_>) -> Vec<(usize, Path)> {
    let source = file.source;
    let mut found = Vec::new();
    let statements = statements(source);
    let in_statement = |position: usize| {
        statements.iter().any(|(start, end, _)| (*start..*end).contains(&position))
    };
    let uses = |name: &str, of: &Source| {
        let words = of.find_words(name).into_iter();
        words.filter(|at| !in_statement(*at) && !of.is_test(*at)).collect::<Vec<_>>()
    };
    for import in &file.imports {
        let is_module = files.contains_key(&import.path);
        if is_module && import.name != "*" {
            // Follow the names that come through it.
            for position in uses(&import.name, source) {
                let after = position + import.name.len();
                if source.code[..position].ends_with("::") {
                    continue;
                }
                if let Some(rest) = source.code[after..].strip_prefix("::") {
                    let mut path = import.path.clone();
                    path.extend(names(rest));
                    found.push((position, path));
                }
            }
        } else if !import.is_public || !uses(&import.name, source).is_empty() {
            found.push((import.position, import.path.clone()));
        }
    }
    let children = files
        .keys()
        .filter(|module| module.len() == file.module.len() + 1 && module.starts_with(&file.module));
    let children = children.filter_map(|module| module.last());
    for root in children.map(String::as_str).chain(["crate", "self", "super"]) {
        for position in uses(root, source) {
            let before = &source.code[..position];
            if before.ends_with("::") || !source.code[position + root.len()..].starts_with("::") {
                continue;
            }
            let path = names(&source.code[position..]);
            found.extend(from_root(&path, &file.module).map(|path| (position, path)));
        }
    }
    found
}

/// The names of the path at the front of `code`.
fn names(code: &str) -> Path {
    let mut names = Vec::new();
    let mut rest = code;
    loop {
        let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
        if length == 0 {
            return names;
        }
        names.push(rest[..length].to_owned());
        match rest[length..].strip_prefix("::") {
            Some(after) => rest = after,
            None => return names,
        }
    }
}

/// A path as it is written in `module`, from the root. None if it has too many `super`.
fn from_root(path: &[String], module: &[String]) -> Option<Path> {
    let mut base = module.to_vec();
    let mut rest = path;
    match rest.first().map(String::as_str) {
        Some("crate") => (base, rest) = (Vec::new(), &rest[1..]),
        Some("self") => rest = &rest[1..],
        _ => {}
    }
    while rest.first().is_some_and(|name| name == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// The `use` statements outside of tests: start, end, and whether each has a visibility.
fn statements(source: &Source) -> Vec<(usize, usize, bool)> {
    let mut found = Vec::new();
    for position in source.find_words("use") {
        let before = source.code[..position].trim_end();
        let begins = before.is_empty() || before.ends_with([';', '}', '{', ')', ']']);
        let is_public = before.ends_with("pub") || before.ends_with(')');
        // `impl Trait + use<'a>` is none.
        if (!begins && !is_public) || source.is_test(position) {
            continue;
        }
        if let Some(length) = source.code[position..].find(';') {
            found.push((position, position + length, is_public));
        }
    }
    found
}

/// The imports of a file from its own crate.
fn imports(file: &File<'_>, modules: &BTreeSet<Path>) -> Vec<Import> {
    let mut found = Vec::new();
    for (position, end, is_public) in statements(file.source) {
        let mut members = Vec::new();
        let tree = file.source.code[position + "use".len()..end].trim();
        take_apart(tree, &[], &mut members);
        for (path, name) in members {
            let Some(first) = path.first() else { continue };
            let mut child = file.module.clone();
            child.push(first.clone());
            let is_ours = ["crate", "self", "super"].contains(&first.as_str());
            if is_ours || modules.contains(&child) {
                let path = from_root(&path, &file.module);
                found.extend(path.map(|path| Import { position, path, name, is_public }));
            }
        }
    }
    found
}

/// The members of a use tree: their paths, and their names in the file.
fn take_apart(tree: &str, prefix: &[String], members: &mut Vec<(Path, String)>) {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{') {
        let group = group.strip_suffix('}').unwrap_or(group);
        let (mut depth, mut start) = (0_usize, 0);
        for (at, byte) in group.bytes().chain([b',']).enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => {
                    take_apart(&group[start..at], prefix, members);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let length = tree.bytes().take_while(|byte| is_word(*byte) || *byte == b'*').count();
    if length == 0 {
        return;
    }
    let (name, rest) = tree.split_at(length);
    let mut path = prefix.to_vec();
    if name == "*" {
        members.push((path, name.to_owned()));
        return;
    }
    if name != "self" || prefix.is_empty() {
        path.push(name.to_owned());
    }
    if let Some(below) = rest.trim_start().strip_prefix("::") {
        take_apart(below, &path, members);
        return;
    }
    let renamed = rest.trim().strip_prefix("as ").map(str::trim);
    let own = path.last().cloned().unwrap_or_default();
    members.push((path, renamed.map_or(own, str::to_owned)));
}

/// One shortest circle of each strongly connected component.
fn circles(arrows: &Arrows) -> Vec<Vec<Path>> {
    let mut circles: Vec<Vec<Path>> = Vec::new();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for start in arrows.keys() {
        if seen.contains(start) {
            continue;
        }
        let forward = ways(arrows, start);
        let component: Vec<&Path> = forward
            .keys()
            .copied()
            .filter(|file| *file == start || ways(arrows, file).contains_key(start))
            .collect();
        let shortest = component.iter().filter_map(|file| back(arrows, file));
        if let Some(circle) = shortest.min_by_key(Vec::len) {
            circles.push(circle);
            seen.extend(component);
        }
    }
    circles
}

/// The files that can be reached from `start`, each with the file before it.
fn ways<'a>(arrows: &'a Arrows, start: &'a Path) -> BTreeMap<&'a Path, &'a Path> {
    let mut before = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for next in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
            if !before.contains_key(next) {
                before.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    before
}

/// A shortest circle through `start`.
fn back(arrows: &Arrows, start: &Path) -> Option<Vec<Path>> {
    let before = ways(arrows, start);
    let mut circle = Vec::new();
    let mut file = *before.get(start)?;
    while file != start {
        circle.push(file.clone());
        file = before[file];
    }
    circle.push(start.clone());
    circle.reverse();
    Some(circle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings in a crate of these files.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(path, _)| format!("crates/chelonia/src/{path}")).collect();
        let texts = files.iter().map(|(_, text)| *text);
        let files: Vec<(&str, &str)> = paths.iter().map(String::as_str).zip(texts).collect();
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_names_its_chain() {
        let (a, c) = ("use super::b::B;", "struct C;");
        let b = "use crate::run::{c::{self, D}, e};\nfn f() -> c::C {}";
        assert_eq!(findings(&[("run/a.rs", a), ("run/b.rs", b), ("run/c.rs", c)]), [""; 0]);
        let c = "struct C;\nfn f(a: &super::a::A) {}";
        let found = findings(&[("run/a.rs", a), ("run/b.rs", b), ("run/c.rs", c)]);
        assert_eq!(found.len(), 1);
        let chain = "crates/chelonia/src/run/a.rs:1: a circle of imports: \
                     `crates/chelonia/src/run/a.rs` takes `B` of `crates/chelonia/src/run/b.rs`, \
                     which takes `C` of `crates/chelonia/src/run/c.rs`, \
                     which takes `A` of `crates/chelonia/src/run/a.rs`:";
        assert!(found[0].starts_with(chain), "{}", found[0]);
    }

    #[test]
    fn a_folder_may_re_export_its_files_which_do_not_import_through_it() {
        let face = "pub use a::A;\npub(crate) use self::b::B as C;\nmod a;\nmod b;";
        let b = "use super::a::A;";
        assert_eq!(findings(&[("run/mod.rs", face), ("run/a.rs", ""), ("run/b.rs", b)]), [""; 0]);
        let b = "use super::A;";
        let found = findings(&[("run/mod.rs", face), ("run/a.rs", ""), ("run/b.rs", b)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("import it from `crates/chelonia/src/run/a.rs`"), "{}", found[0]);
        // The detour is no way out.
        let a = "use crate::run::C;";
        let b = "use crate::run::A;";
        let found = findings(&[("run/mod.rs", face), ("run/a.rs", a), ("run/b.rs", b)]);
        assert_eq!(found.len(), 3, "{found:?}");
        // From outside it is the way in, and counts for the file that defines the name.
        let log = "use crate::run::A;";
        let a = "use crate::log::L;";
        let files = [("run/mod.rs", face), ("run/a.rs", a), ("run/b.rs", ""), ("log.rs", log)];
        assert_eq!(findings(&files).len(), 1);
    }

    #[test]
    fn the_own_file_of_a_folder_is_no_circle_with_its_files_but_with_others() {
        for face in ["use self::a::A;", "pub use a::A;\nfn f(a: A) {}", "fn f(a: a::A) {}"] {
            let files = [("run/mod.rs", face), ("run/a.rs", "use super::Shared;")];
            assert_eq!(findings(&files), [""; 0], "{face}");
            let a = "use crate::log::Log;";
            let files = [("run/mod.rs", face), ("run/a.rs", a), ("log.rs", "use crate::run::Run;")];
            assert_eq!(findings(&files).len(), 1, "{face}");
        }
    }

    #[test]
    fn tests_comments_and_other_crates_make_no_circle() {
        let test = "#[cfg(test)]\nmod tests { use crate::b::B; }\n// crate::b::B\n";
        assert_eq!(findings(&[("a.rs", test), ("b.rs", "use crate::a::A;")]), [""; 0]);
        let other = "use std::a::A;\nuse bytes::b;";
        assert_eq!(findings(&[("a.rs", other), ("b.rs", "use crate::a::A;")]), [""; 0]);
    }
}
