//! Examples: every public method of the library is called by a documented example, which runs as a
//! test: its own, or the one next to it above or below, for methods that are shown together.

use super::{Finding, Tree};

/// Every `pub fn` of the types that `lib.rs` exports.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let library = tree.sources.iter().filter(|source| source.library_path().is_some());
    let exports = library.clone().find(|source| source.library_path() == Some("lib.rs"));
    let exports = exports.map_or("", |source| &source.code);
    let names: Vec<&str> = exports.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    library.flat_map(|source| missing(&source.path, &source.text, &names)).collect()
}

/// The methods of one file without an example. The macro's `$name` stands for `Key` and `Value`.
fn missing(path: &str, text: &str, exported: &[&str]) -> Vec<Finding> {
    let (mut methods, mut examples) = (Vec::new(), Vec::new());
    let (mut is_exported, mut is_example, mut is_internal) = (false, false, false);
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if let Some(head) = code.strip_prefix("impl ").filter(|head| head.ends_with('{')) {
            let name = head.split(['<', ' ']).next().unwrap_or("");
            let is_macro = name == "$name" && path.ends_with("base/bytes.rs");
            is_exported = !head.contains(" for ") && (is_macro || exported.contains(&name));
        } else if line == "}" {
            is_exported = false;
        } else if let Some(doc) = code.strip_prefix("///") {
            let is_fence = doc.trim_start().starts_with("```");
            examples.extend((is_fence && !is_example).then(|| (index, String::new())));
            is_example ^= is_fence;
            if let Some((_, example)) = examples.last_mut().filter(|_| is_example) {
                *example += doc;
            }
        } else if code.starts_with("#[cfg(") {
            is_internal = code.contains("internals");
        } else if !code.starts_with("#[") {
            let is_public = !std::mem::take(&mut is_internal) && is_exported;
            if is_public && let Some(("pub " | "pub const ", rest)) = code.split_once("fn ") {
                methods.push((index, rest.split(['(', '<']).next().unwrap_or("")));
            }
        }
    }
    methods.retain(|(at, name)| {
        let before = examples.iter().rev().find(|(index, _)| index < at);
        let next = examples.iter().find(|(index, _)| index > at);
        let call = |code: &str| [".", "::"].iter().any(|it| code.contains(&format!("{it}{name}(")));
        !before.into_iter().chain(next).any(|(_, code)| call(code))
    });
    let message = |name| format!("no example calls `{name}`: add one to its documentation");
    methods.iter().map(|(at, name)| Finding::new(path, at + 1, message(name))).collect()
}

#[test]
fn public_methods_have_examples() {
    let text = "impl A {\n/// ```\n/// a.b();\n/// ```\npub fn b(&self) {}\n}\n";
    let count = |text: &str| missing("a.rs", text, &["A"]).len();
    assert_eq!((count(text), count(&text.replace("a.b()", "a.c()"))), (0, 1));
    assert_eq!(count(&text.replace("pub fn", "pub(crate) fn").replace("a.b()", "")), 0);
    assert_eq!(count(&text.replace("impl A", "impl B").replace("a.b()", "")), 0);
}
