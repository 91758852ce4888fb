//! A database that was opened before a fork is not used by the child.

#![expect(unsafe_code, reason = "an island: runs code between a fork and what follows it")]

use chelonia::internals::while_pins_are_locked;
use chelonia::{Database, ErrorKind, KeyspaceOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[test]
fn a_child_can_neither_write_nor_read_nor_close_what_its_parent_opened() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("database")).unwrap();
    let keyspace = database.keyspace("k", KeyspaceOptions::new()).unwrap();
    keyspace.insert("key", "value").unwrap();
    let (inherited, space) = (database.clone(), keyspace.clone());
    let check = move || {
        let told = [
            space.insert("key", "other").err(),
            space.get("key").err(),
            inherited.sync().err(),
            inherited.checkpoint().err(),
            inherited.clone().close().err(),
        ];
        let refused = |error: &Option<chelonia::Error>| {
            error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Stopped)
        };
        if told.iter().all(refused) { Ok(()) } else { Err(io::Error::other("it was used")) }
    };
    let mut command = Command::new("true");
    // SAFETY: the child allocates, which may wait for ever if another thread of the parent was
    // about to; no other thread of this test allocates while it forks, and what the child calls
    // takes no locks but the allocator's.
    unsafe { command.pre_exec(check) };
    let status = command.status().unwrap();
    assert!(status.success());
    keyspace.insert("key", "again").unwrap();
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"again"[..]));
    database.close().unwrap();
}

#[test]
fn a_child_waits_for_no_lock_that_its_parent_held_while_it_forked() {
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
        let told = [
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
        if told.iter().all(|told| *told) { Ok(()) } else { Err(io::Error::other("it was used")) }
    };
    let mut command = Command::new("true");
    // SAFETY: as above; locks of the database that are held are what the test is about.
    unsafe { command.pre_exec(check) };
    let status = while_pins_are_locked(&database, || command.status());
    assert!(status.unwrap().success());
    drop(command);
    keyspace.insert("key", "again").unwrap();
    assert_eq!(keyspace.iter().count(), 1);
    database.close().unwrap();
}

#[test]
fn a_child_that_is_being_started_does_not_hold_the_lock_of_what_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let database = Database::open(&path).unwrap();
    let (go_on, waiting) = (io::pipe().unwrap(), io::pipe().unwrap());
    let (said, told) = (go_on.1.try_clone().unwrap(), waiting.0.try_clone().unwrap());
    let wait = move || {
        // It has all files of its parent, until it is another program.
        (&waiting.1).write_all(b"x")?;
        (&go_on.0).read_exact(&mut [0])
    };
    let mut command = Command::new("true");
    // SAFETY: the child writes to a pipe and reads from another one, and no more.
    unsafe { command.pre_exec(wait) };
    std::thread::scope(|scope| {
        let child = scope.spawn(|| command.status().unwrap());
        (&told).read_exact(&mut [0]).unwrap();
        database.close().unwrap();
        let again = Database::open(&path);
        (&said).write_all(b"x").unwrap();
        assert!(child.join().unwrap().success());
        again.unwrap();
    });
}
