//! Distinguishes code, comments and tests in a Rust file.
//!
//! [`Source::code`] and [`Source::comments`] are as long as the text and have the same lines;
//! everything else is blank. String and character literals are blank in both. No macro is
//! expanded and nothing is parsed beyond literals, comments and braces.

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// Relative to the root of the repository.
    pub path: String,
    /// As it is.
    pub text: String,
    /// The code alone.
    pub code: String,
    /// The text of the comments alone, their slashes included.
    pub comments: String,
    /// The byte ranges of `#[cfg(test)]` items.
    test_ranges: Vec<(usize, usize)>,
}

impl Source {
    /// Takes `text` apart.
    pub fn new(path: &str, text: &str) -> Self {
        let (code, comments) = separate(text);
        let test_ranges = test_ranges(&code);
        Self { path: path.to_owned(), text: text.to_owned(), code, comments, test_ranges }
    }

    /// True if all of the file belongs to tests.
    pub fn is_test_file(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.contains("/testing/")
            || self.path.ends_with("/tests.rs")
            || self.path.ends_with("/testing.rs")
            || self.path.ends_with("_tests.rs")
    }

    /// True if the byte at `position` belongs to a test.
    pub fn is_test(&self, position: usize) -> bool {
        self.is_test_file() || self.is_in_test_item(position)
    }

    /// True if the byte at `position` belongs to a `#[cfg(test)]` item of this file.
    pub fn is_in_test_item(&self, position: usize) -> bool {
        self.test_ranges.iter().any(|(start, end)| (*start..*end).contains(&position))
    }

    /// The line of the byte at `position`, from 1.
    pub fn line(&self, position: usize) -> usize {
        line_of(&self.text, position)
    }

    /// Where `word` stands in the code as a word of its own. A pattern that begins or ends with
    /// something else than a letter is not bounded there.
    pub fn find_words(&self, word: &str) -> Vec<usize> {
        find_words(&self.code, word)
    }

    /// The path below the library's `src`, if it is there: `storage/block.rs`.
    pub fn library_path(&self) -> Option<&str> {
        self.path.strip_prefix("crates/chelonia/src/")
    }
}

/// The line of the byte at `position`, from 1.
pub fn line_of(text: &str, position: usize) -> usize {
    text.as_bytes()[..position].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// True for the bytes of identifiers.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// See [`Source::find_words`].
pub fn find_words(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let (first, last) = (word.as_bytes()[0], word.as_bytes()[word.len() - 1]);
    let bounded = |position: usize| {
        let before = position.checked_sub(1).map(|index| bytes[index]);
        let after = bytes.get(position + word.len()).copied();
        let begins = !is_word(first) || !before.is_some_and(is_word);
        begins && (!is_word(last) || !after.is_some_and(is_word))
    };
    code.match_indices(word).map(|(position, _)| position).filter(|at| bounded(*at)).collect()
}

/// The position after the brace that closes the one at `open`; the end if none does.
pub fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn test_ranges(code: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (start, _) in code.match_indices(attribute) {
            let after = start + attribute.len();
            if let Some(stop) = code[after..].find(['{', ';']) {
                let stop = after + stop;
                let ends_at_once = code.as_bytes()[stop] == b';';
                ranges.push((start, if ends_at_once { stop } else { closing_brace(code, stop) }));
            }
        }
    }
    ranges
}

/// The part of the file to which a byte belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// Code and comments of `text`, each with the rest blank.
fn separate(text: &str) -> (String, String) {
    let parts = parts_of(text.as_bytes());
    let keep = |part: Part| {
        let characters = text.bytes().zip(&parts).map(|(byte, of)| match byte {
            b'\n' => '\n',
            _ if *of == part && byte.is_ascii() => char::from(byte),
            _ if *of == part => '?',
            _ => ' ',
        });
        characters.collect::<String>()
    };
    (keep(Part::Code), keep(Part::Comment))
}

fn parts_of(bytes: &[u8]) -> Vec<Part> {
    let mut parts = vec![Part::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (part, length) = match &bytes[at..] {
            [b'/', b'/', ..] => (Part::Comment, line_comment(&bytes[at..])),
            [b'/', b'*', ..] => (Part::Comment, block_comment(&bytes[at..])),
            [b'"', ..] => (Part::Literal, string(&bytes[at..])),
            [b'\'', ..] => (Part::Literal, character(&bytes[at..])),
            [b'r', ..] if !after_word(bytes, at) => (Part::Literal, raw_string(&bytes[at..])),
            [b'b' | b'c', b'r', ..] if !after_word(bytes, at) => {
                let length = raw_string(&bytes[at + 1..]);
                (Part::Literal, if length == 0 { 0 } else { length + 1 })
            }
            _ => (Part::Code, 1),
        };
        // A length of zero: it only looked like a literal (a lifetime, an identifier).
        let (part, length) = if length == 0 { (Part::Code, 1) } else { (part, length) };
        let end = (at + length).min(bytes.len());
        parts[at..end].fill(part);
        at = end;
    }
    parts
}

fn after_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn line_comment(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())
}

fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The length of the character literal at the front, 0 if it is a lifetime.
fn character(bytes: &[u8]) -> usize {
    if bytes.get(1) == Some(&b'\\') {
        let close = bytes.iter().skip(3).position(|byte| *byte == b'\'');
        return close.map_or(0, |close| close + 4);
    }
    let width = match bytes.get(1) {
        Some(0xf0..) => 4,
        Some(0xe0..) => 3,
        Some(0xc0..) => 2,
        _ => 1,
    };
    if bytes.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

/// The length of the raw string at the front, 0 if there is none.
fn raw_string(bytes: &[u8]) -> usize {
    let hashes = bytes[1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = 2 + hashes;
    let close = bytes[body..].windows(end.len()).position(|window| window == end);
    close.map_or(bytes.len(), |close| body + close + end.len())
}

#[test]
fn code_comments_and_literals_are_distinguished() {
    let text = concat!(
        "let a = \"unsafe // no\"; // unsafe in a comment\n",
        "let b = r#\"unsafe \" /* \"#; /* unsafe /* nested */ too */ let c = '\"';\n",
        "fn f<'a>(x: &'a str) -> char { '\\'' } // \"\n",
        "let d = br\"unsafe\"; let r#unsafe = b'\\\\'; let e = '{';\n",
    );
    let source = Source::new("x.rs", text);
    assert_eq!(source.code.len(), text.len());
    assert_eq!(source.find_words("unsafe").len(), 1, "{}", source.code);
    assert_eq!(source.code.matches('{').count(), 1);
    assert!(source.comments.contains("// unsafe in a comment"));
    assert!(source.comments.contains("nested */ too */"));
    assert!(!source.comments.contains("// no"));
    assert!(source.code.contains("fn f<'a>(x: &'a str)"));
}

#[test]
fn words_are_bounded_and_tests_are_found() {
    let text =
        "fn unsafely() {}\n#[cfg(test)]\nmod tests {\n fn x() { y.unwrap() }\n}\nfn z() {}\n";
    let source = Source::new("crates/chelonia/src/a.rs", text);
    assert!(source.find_words("unsafe").is_empty());
    let unwrap = source.find_words(".unwrap()")[0];
    assert!(source.is_test(unwrap));
    assert_eq!(source.line(unwrap), 4);
    assert!(!source.is_test(source.find_words("z")[0]));
    assert!(Source::new("crates/chelonia/src/a/tests.rs", "").is_test(0));
}
