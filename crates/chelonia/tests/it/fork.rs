//! A child process cannot use a database that was opened before the fork.

#![expect(unsafe_code, reason = "an island: runs code between a fork and what follows it")]

use chelonia::internals::while_pins_are_locked;
use chelonia::{Database, ErrorKind, KeyspaceOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[test]
fn a_child_cannot_use_a_database_of_its_parent() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("database")).unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    let (inherited, space) = (database.clone(), keyspace.clone());
    let mut begun = database.transaction().unwrap();
    begun.get(&keyspace, "key").unwrap();
    begun.insert(&keyspace, "other", "value").unwrap();
    // More than the keys of recent commits that are checked under a lock.
    for number in 0..20_u32 {
        keyspace.insert([&[7; 1_000][..], &number.to_be_bytes()].concat(), "").unwrap();
    }
    keyspace.insert("key", "value").unwrap();
    let mut begun = Some(begun);
    let check = move || {
        let mut transaction = begun.take().unwrap();
        let errors = [
            transaction.get(&space, "key").err(),
            transaction.iter(&space).next().and_then(Result::err),
            transaction.insert(&space, "key", "other").err(),
            transaction.commit().err(),
            inherited.transaction().err(),
            space.update("key", |_| Some("other")).err(),
            space.compare_and_swap("key", None, None).err(),
            inherited.sync_later().wait().err(),
            inherited.backup("nowhere").err(),
            space.insert("key", "other").err(),
            space.get("key").err(),
            inherited.sync().err(),
            inherited.checkpoint().err(),
            inherited.clone().close().err(),
        ];
        let refused = |error: &Option<chelonia::Error>| {
            error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Stopped)
        };
        if errors.iter().all(refused) {
            Ok(())
        } else {
            Err(io::Error::other("the child used the database"))
        }
    };
    let mut command = Command::new("true");
    // SAFETY: the child allocates, which may block forever if another thread of the parent holds
    // the allocator's lock; no other thread of this test allocates during the fork, and the calls
    // of the child take no other locks.
    unsafe { command.pre_exec(check) };
    let status = command.status().unwrap();
    assert!(status.success());
    keyspace.insert("key", "again").unwrap();
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"again"[..]));
    database.close().unwrap();
}

#[test]
fn a_child_does_not_wait_for_locks_held_during_the_fork() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("database")).unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    database.checkpoint().unwrap();
    keyspace.insert("key", "other").unwrap();
    let is_refused = |error: Option<chelonia::Error>| {
        error.is_some_and(|error| error.kind() == ErrorKind::Stopped)
    };
    let mut iter = keyspace.iter();
    iter.next().unwrap().unwrap();
    let mut inherited = Some((database.snapshot(), database.snapshot().iter(&keyspace), iter));
    let (base, space) = (database.clone(), keyspace.clone());
    let check = move || {
        let (snapshot, mut unread, mut read) = inherited.take().unwrap();
        let fresh = base.snapshot();
        let ends = |iter: &mut chelonia::Iter| {
            is_refused(iter.next().and_then(Result::err)) && iter.next().is_none()
        };
        let refused = [
            is_refused(space.multi_get(["key"]).err()),
            is_refused(space.contains_key("key").err()),
            is_refused(space.first_key_value().err()),
            is_refused(space.verify().err()),
            is_refused(fresh.get(&space, "key").err()),
            is_refused(snapshot.get(&space, "key").err()),
            is_refused(snapshot.multi_get(&space, ["key"]).err()),
            is_refused(base.set_memory(64 << 20).err()),
            is_refused(base.drop_keyspace("k").err()),
            is_refused(base.verify().err()),
            ends(&mut space.iter()),
            ends(&mut fresh.iter(&space)),
            ends(&mut snapshot.iter(&space)),
            ends(&mut unread),
            ends(&mut read),
        ];
        drop((snapshot, fresh, unread, read));
        if refused.iter().all(|refused| *refused) {
            Ok(())
        } else {
            Err(io::Error::other("the child used the database"))
        }
    };
    let mut command = Command::new("true");
    // SAFETY: as above; locks of the database that are held are the subject of the test.
    unsafe { command.pre_exec(check) };
    let status = while_pins_are_locked(&database, || command.status());
    assert!(status.unwrap().success());
    drop(command);
    keyspace.insert("key", "again").unwrap();
    assert_eq!(keyspace.iter().count(), 1);
    database.close().unwrap();
}

#[test]
fn a_child_being_started_does_not_hold_the_lock_of_a_closed_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::open(&path).unwrap();
    let (go_on, waiting) = (io::pipe().unwrap(), io::pipe().unwrap());
    let (to_child, from_child) = (go_on.1.try_clone().unwrap(), waiting.0.try_clone().unwrap());
    let wait = move || {
        // The child has all files of its parent until it starts another program.
        (&waiting.1).write_all(b"x")?;
        (&go_on.0).read_exact(&mut [0])
    };
    let mut command = Command::new("true");
    // SAFETY: the child only writes to a pipe and reads from another one.
    unsafe { command.pre_exec(wait) };
    std::thread::scope(|scope| {
        let child = scope.spawn(|| command.status().unwrap());
        (&from_child).read_exact(&mut [0]).unwrap();
        database.close().unwrap();
        let again = Database::open(&path);
        (&to_child).write_all(b"x").unwrap();
        assert!(child.join().unwrap().success());
        again.unwrap();
    });
}
