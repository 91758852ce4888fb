//! The seam itself, and a battery that every store of this build passes.

use super::*;

#[test]
fn entries_and_answers_come_back() {
    let mut entries = Entries::default();
    entries.push(b"a", b"1");
    entries.push(b"", b"");
    entries.push(b"bc", b"23");
    let all: Vec<_> = entries.iter().collect();
    assert_eq!(all, [(&b"a"[..], &b"1"[..]), (b"", b""), (b"bc", b"23")]);
    let mut answers = Answers::default();
    answers.push(Some(b"one"));
    answers.push(None::<&[u8]>);
    answers.push(Some(b""));
    let all: Vec<_> = answers.iter().collect();
    assert_eq!(all, [Some(&b"one"[..]), None, Some(b"")]);
}

#[test]
fn names_are_unique_and_ours_come_first() {
    let names = names();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert_eq!(names[0], "turtle");
    assert!(all().iter().take_while(|kind| kind.open.is_some()).count() >= 1);
}

#[test]
fn a_store_that_was_not_built_says_what_it_needs() {
    let absent =
        Kind { name: "other", open: None, package: Some("libother-dev"), uses_page_cache: false };
    let message = absent.check_built().unwrap_err().to_string();
    assert!(message.contains("--features other") && message.contains("libother-dev"));
}
