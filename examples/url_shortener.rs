//! A URL shortener with a secondary index.
//!
//! ```text
//!   keyspace "links"    code -> URL       the data
//!   keyspace "codes"    URL  -> code      the index: one code for each URL, all URLs of a site
//!   keyspace "counters" "next" -> number of the next code, 8 bytes big-endian
//! ```
//!
//! Data, index and counter change in one batch, so no crash leaves one without the others.
//!
//! Run it: `cargo run -p chelonia-examples --bin url_shortener`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use chelonia::{Database, Keyspace, KeyspaceOptions, Value};
use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Shortener {
    database: Database,
    links: Keyspace,
    codes: Keyspace,
    counters: Keyspace,
    /// Held from the read of an entry to the write that depends on it: there are no transactions.
    writing: Mutex<()>,
}

impl Shortener {
    fn open(path: &Path) -> chelonia::Result<Self> {
        let database = Database::open(path)?;
        let keyspace = |name| database.keyspace(name, KeyspaceOptions::default());
        Ok(Self {
            links: keyspace("links")?,
            codes: keyspace("codes")?,
            counters: keyspace("counters")?,
            writing: Mutex::new(()),
            database,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // A thread that panicked left nothing half done: batches are atomic.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The code of `url`: a new one, unless it has one already.
    fn shorten(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        let _writing = self.lock();
        if let Some(code) = self.codes.get(url)? {
            return Ok(code);
        }
        let next = match self.counters.get("next")? {
            Some(number) => u64::from_be_bytes(number[..].try_into()?),
            None => 1,
        };
        let code = in_base_36(next);
        let mut batch = self.database.batch();
        batch.insert(&self.links, &code, url).insert(&self.codes, url, &code);
        batch.insert(&self.counters, "next", (next + 1).to_be_bytes());
        batch.commit()?;
        Ok(code.into())
    }

    /// The URL of a code. Reads need no lock.
    fn resolve(&self, code: &[u8]) -> chelonia::Result<Option<Value>> {
        self.links.get(code)
    }

    /// Removes a link from the data and from the index; false if there is none.
    fn remove(&self, code: &[u8]) -> chelonia::Result<bool> {
        let _writing = self.lock();
        let Some(url) = self.links.get(code)? else { return Ok(false) };
        self.database.batch().remove(&self.links, code).remove(&self.codes, &url).commit()?;
        Ok(true)
    }

    /// The URLs that begin with `site` and their codes, in order: a range of the index.
    fn of_site(&self, site: &str) -> chelonia::Result<Vec<String>> {
        let entries = self.codes.prefix(site);
        let line =
            |url: &[u8], code: &[u8]| format!("{} -> {}", code.escape_ascii(), url.escape_ascii());
        entries.map(|entry| entry.map(|(url, code)| line(&url, &code))).collect()
    }
}

fn in_base_36(mut number: u64) -> Vec<u8> {
    let mut digits = Vec::new();
    while number > 0 {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
    }
    digits.reverse();
    digits
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let shortener = Shortener::open(&directory.path().join("links"))?;

    let book = shortener.shorten("https://doc.rust-lang.org/book/")?;
    let std = shortener.shorten("https://doc.rust-lang.org/std/")?;
    shortener.shorten("https://crates.io/crates/chelonia")?;
    assert_eq!(shortener.shorten("https://doc.rust-lang.org/book/")?, book);

    let url = shortener.resolve(&book)?.ok_or("the link was stored above")?;
    println!("code {} stands for {}", book.escape_ascii(), url.escape_ascii());
    println!("links to doc.rust-lang.org: {:?}", shortener.of_site("https://doc.rust-lang.org/")?);

    assert!(shortener.remove(&std)? && shortener.resolve(&std)?.is_none());
    println!("after a removal: {:?}", shortener.of_site("https://doc.rust-lang.org/")?);
    Ok(())
}
