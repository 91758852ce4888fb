//! Stores of every released format can be opened.

use chelonia_torture::golden::{STORES, check};
use std::path::Path;

#[test]
fn stores_of_every_format_open() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut formats = 0;
    for format in std::fs::read_dir(golden).unwrap() {
        formats += 1;
        for name in STORES {
            let copy = tempfile::tempdir().unwrap();
            for entry in std::fs::read_dir(format.as_ref().unwrap().path().join(name)).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
            check(copy.path(), name).unwrap();
        }
    }
    assert!(formats >= 1);
}
