//! Invalid calls: each returns an error that names the argument, and changes nothing.

use chelonia::limits::{BATCH_BYTES_MAX, KEY_BYTES_MAX, MEMORY_BYTES_MIN, VALUE_BYTES_MAX};
use chelonia::{Database, ErrorKind, KeyspaceOptions, TurtleOptions};

fn kind<T>(result: chelonia::Result<T>) -> ErrorKind {
    result.err().expect("it should fail").kind()
}

fn open(path: &std::path::Path) -> Database {
    Database::builder(path).memory(MEMORY_BYTES_MIN).open().unwrap()
}

#[test]
fn keys_and_values_up_to_their_limits_and_not_beyond() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    let long_key = vec![9; KEY_BYTES_MAX];
    let long_value = vec![5; VALUE_BYTES_MAX];
    keyspace.insert(&long_key, &long_value).unwrap();
    keyspace.insert("", "the empty key is a key").unwrap();
    keyspace.insert("empty", "").unwrap();
    assert_eq!(kind(keyspace.insert(vec![9; KEY_BYTES_MAX + 1], "")), ErrorKind::InvalidArgument);
    assert_eq!(kind(keyspace.remove(vec![9; KEY_BYTES_MAX + 1])), ErrorKind::InvalidArgument);
    let too_long = vec![5; VALUE_BYTES_MAX + 1];
    let error = keyspace.insert("k", too_long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("VALUE_BYTES_MAX"), "{error}");

    let mut batch = database.batch();
    let value = vec![1; 30_000];
    for number in 0..=BATCH_BYTES_MAX / value.len() {
        batch.insert(&keyspace, number.to_be_bytes(), &value);
    }
    let error = batch.commit().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("BATCH_BYTES_MAX"), "{error}");
    let mut batch = database.batch();
    batch.insert(&keyspace, "a", "b").insert(&keyspace, vec![9; KEY_BYTES_MAX + 1], "");
    assert_eq!(kind(batch.commit()), ErrorKind::InvalidArgument);
    // The batch stays invalid until it is cleared.
    assert_eq!(kind(batch.commit()), ErrorKind::InvalidArgument);
    assert_eq!(batch.len(), 1);
    batch.clear();
    batch.remove(&keyspace, "a").commit().unwrap();

    for round in 0..3 {
        assert_eq!(keyspace.iter().count(), 3, "round {round}");
        assert!(keyspace.get(&long_key).unwrap().unwrap() == long_value);
        assert_eq!(keyspace.get("").unwrap().unwrap(), b"the empty key is a key");
        assert_eq!(keyspace.get("empty").unwrap().unwrap(), b"");
        assert!(keyspace.get(vec![9; KEY_BYTES_MAX + 1]).unwrap().is_none());
        match round {
            0 => database.checkpoint().unwrap(),
            _ => assert!(database.verify().unwrap().is_clean()),
        }
    }
    database.close().unwrap();
    let database = open(&path);
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    assert!(keyspace.get(&long_key).unwrap().unwrap() == long_value);
}

#[test]
fn ranges_that_end_before_they_begin_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&directory.path().join("database"));
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("b", "1").unwrap();
    assert_eq!(kind(keyspace.range("c".."a").next().unwrap()), ErrorKind::InvalidArgument);
    assert_eq!(kind(keyspace.range("c".."a").next_back().unwrap()), ErrorKind::InvalidArgument);
    assert_eq!(keyspace.range("c".."a").count(), 1);
    let mut reversed = database.snapshot().range(&keyspace, "c".."a");
    assert_eq!(kind(reversed.next().unwrap()), ErrorKind::InvalidArgument);
    assert!(reversed.next().is_none());
    assert_eq!(keyspace.range("b".."b").count(), 0);
    assert_eq!(keyspace.range("b"..="b").count(), 1);
}

#[test]
fn names_and_options_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = open(&path);
    let options = KeyspaceOptions::new;
    let leaves = |bytes| options().engine(TurtleOptions::new().leaf_bytes(bytes));
    assert_eq!(kind(database.keyspace("", options())), ErrorKind::InvalidArgument);
    assert_eq!(kind(database.keyspace(&"x".repeat(256), options())), ErrorKind::InvalidArgument);
    assert_eq!(kind(database.keyspace("k", leaves(1))), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(database.keyspace("k", options().filter_bits_per_key(99))),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(database.keyspace("k", options().checkpoint_distance(0))),
        ErrorKind::InvalidArgument
    );
    assert!(database.keyspaces().is_empty());
    assert_eq!(kind(database.drop_keyspace("nobody")), ErrorKind::NotFound);
    let keyspace = database.keyspace("k", leaves(1 << 20)).unwrap();
    assert_eq!(kind(database.keyspace("k", leaves(2 << 20))), ErrorKind::InvalidArgument);
    keyspace.insert("a", "b").unwrap();
    database.drop_keyspace("k").unwrap();
    assert_eq!(kind(keyspace.insert("a", "c")), ErrorKind::NotFound);
    assert_eq!(kind(keyspace.get("a")), ErrorKind::NotFound);
    assert_eq!(kind(keyspace.set_checkpoint_distance(1 << 20)), ErrorKind::NotFound);
    let again = database.keyspace("k", options()).unwrap();
    assert!(again.get("a").unwrap().is_none(), "a new keyspace of an old name is empty");
    assert_eq!(kind(keyspace.insert("a", "c")), ErrorKind::NotFound);
    drop((keyspace, again));
    database.close().unwrap();
    let reader = Database::builder(&path).read_only(true).open().unwrap();
    assert_eq!(kind(reader.keyspace("nobody", options())), ErrorKind::NotFound);
}

#[test]
fn absurd_budgets_name_the_minimum() {
    let directory = tempfile::tempdir().unwrap();
    let error = Database::builder(directory.path()).memory(1).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains(&MEMORY_BYTES_MIN.to_string()), "{error}");
    let database = open(&directory.path().join("database"));
    assert_eq!(kind(database.set_memory(1)), ErrorKind::InvalidArgument);
    database.set_memory(MEMORY_BYTES_MIN * 2).unwrap();
}

#[test]
fn an_error_ends_an_iterator() {
    let directory = tempfile::tempdir().unwrap();
    let database = open(&directory.path().join("database"));
    let other = open(&directory.path().join("other"));
    let make = |database: &Database, name: &str| {
        let keyspace = database.keyspace(name, KeyspaceOptions::new()).unwrap();
        keyspace.insert("a", "b").unwrap();
        keyspace
    };
    // Reads of a dropped keyspace fail, except those begun before the drop.
    let dropped = make(&database, "dropped");
    let begun = dropped.iter();
    let snapshot = database.snapshot();
    database.drop_keyspace("dropped").unwrap();
    assert_eq!(begun.map(Result::unwrap).count(), 1);
    assert_eq!(snapshot.iter(&dropped).map(Result::unwrap).count(), 1);
    let failed = |mut iter: chelonia::Iter, from_back: bool| {
        let first = if from_back { iter.next_back() } else { iter.next() };
        assert!(iter.next().is_none() && iter.next_back().is_none(), "the iterator does not end");
        kind(first.unwrap())
    };
    for from_back in [false, true] {
        assert_eq!(failed(dropped.iter(), from_back), ErrorKind::NotFound);
        assert_eq!(failed(dropped.prefix("a"), from_back), ErrorKind::NotFound);
        assert_eq!(failed(dropped.range("a"..), from_back), ErrorKind::NotFound);
    }
    assert_eq!(kind(dropped.first_key_value()), ErrorKind::NotFound);
    // A keyspace of another database, for a snapshot.
    let foreign = make(&other, "foreign");
    assert_eq!(failed(snapshot.iter(&foreign), false), ErrorKind::InvalidArgument);
    // A close in the middle.
    let keyspace = make(&database, "open");
    keyspace.insert("b", "c").unwrap();
    let mut begun = keyspace.iter();
    begun.next().unwrap().unwrap();
    database.close().unwrap();
    assert_eq!(failed(begun, false), ErrorKind::Stopped);
    assert_eq!(keyspace.iter().filter_map(Result::ok).count(), 0);
}
