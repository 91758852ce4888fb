//! The real file system: permissions, links, pipes, and what the system has cached.

use super::*;

#[test]
fn only_the_owner_may_look() {
    over_real(|path, directory| {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path), 0o700);
        directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        let _lock = directory.lock(true, true).unwrap();
        assert_eq!(mode(&path.join("a")), 0o600);
        assert_eq!(mode(&path.join(LOCK_FILE)), 0o600);
    });
}

#[test]
fn links_and_directories_are_not_files() {
    over_real(|path, directory| {
        directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        std::os::unix::fs::symlink("a", path.join("link")).unwrap();
        std::fs::create_dir(path.join("sub")).unwrap();
        for name in ["link", "sub"] {
            for mode in [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew] {
                assert!(directory.open(name, mode, Access::Direct).is_err(), "{name} {mode:?}");
            }
        }
        assert_eq!(directory.list().unwrap(), ["a"]);
        std::os::unix::fs::symlink("a", path.join(LOCK_FILE)).unwrap();
        assert!(directory.lock(true, true).is_err());
    });
}

#[test]
fn pipes_are_refused_without_waiting_for_their_other_end() {
    over_real(|path, directory| {
        for name in ["a", LOCK_FILE] {
            let path = path.join(name);
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        }
        let mut ends = Vec::new();
        thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for mode in [OpenMode::Read, OpenMode::Write] {
                    for access in ACCESSES {
                        let refused = directory.open("a", mode, access).unwrap_err();
                        assert!(refused.to_string().contains("not a regular file"), "{refused}");
                    }
                }
                assert!(directory.lock(false, false).is_err());
                assert!(directory.lock(true, true).is_err());
                sender.send(()).unwrap();
            });
            let over = receiver.recv_timeout(std::time::Duration::from_secs(60));
            if over.is_err() {
                // Open the other end of each pipe, so that the blocked thread continues and fails.
                for name in ["a", LOCK_FILE] {
                    let end = std::fs::File::options().read(true).write(true).open(path.join(name));
                    ends.push(end);
                }
            }
            over.unwrap();
        });
        assert_eq!(directory.list().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_path_that_cannot_be_the_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let kind = |path: &Path, create| DirectDirectory::open(path, create).unwrap_err().kind();
    assert_eq!(kind(&place.path().join("none"), false), ErrorKind::NotFound);
    assert_eq!(kind(&place.path().join("none/below"), true), ErrorKind::NotFound);
    let file = place.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for create in [false, true] {
        assert_eq!(kind(&file, create), ErrorKind::InvalidArgument);
    }
    let directory = DirectDirectory::open(&place.path().join("new"), true).unwrap();
    assert_eq!(directory.lock(false, false).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(directory.lock(true, false).unwrap_err().kind(), ErrorKind::NotFound);
    DirectDirectory::open(&place.path().join("new"), true).unwrap();
}

#[test]
fn a_real_file_outlives_its_directory() {
    let place = tempfile::tempdir().unwrap();
    let content = random_bytes(6, 100_000);
    for round in 0..2 {
        let directory = DirectDirectory::open(place.path(), true).unwrap();
        let _lock = directory.lock(true, true).unwrap();
        if round == 0 {
            let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
            file.write_at(&content, 0).unwrap();
            file.sync().unwrap();
            directory.sync().unwrap();
        } else {
            let file = directory.open("a", OpenMode::Read, Access::Buffered).unwrap();
            assert!(read(&*file, 0, 100_000) == *content);
        }
    }
}

#[test]
fn an_open_reads_what_the_device_has_and_not_what_the_system_has_cached() {
    let place = tempfile::tempdir().unwrap();
    let directory = DirectDirectory::open(place.path(), true).unwrap();
    if directory.facts().name == "tmpfs" {
        // There is nothing but the cache.
        return;
    }
    let path = place.path().join("data");
    std::fs::write(&path, vec![7; 16 * BLOCK_BYTES]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let cached = || {
        use rustix::io::ReadWriteFlags;
        let mut bytes = vec![0; 16 * BLOCK_BYTES];
        let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
        rustix::io::preadv2(&file, into, 0, ReadWriteFlags::NOWAIT).unwrap_or(0)
    };
    assert_eq!(cached(), 16 * BLOCK_BYTES);
    // The system keeps pages that another processor has just handled.
    let mut opens = (0..100).map(|_| directory.open("data", OpenMode::Write, Access::Direct));
    let opened = opens.find_map(|file| Some(file.unwrap()).filter(|_| cached() == 0));
    let opened = opened.expect("an open leaves cached pages");
    let mut block = vec![0; BLOCK_BYTES];
    opened.read_at(&mut block, 0).unwrap();
    assert!(block.iter().all(|byte| *byte == 7));
}
