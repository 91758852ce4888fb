//! Tests that exactly the planned call fails, in the planned way.

use super::super::WriteRequest;
use super::super::crash::{CrashDirectory, Survivors};
use super::super::memory::MemoryDirectory;
use super::*;
use crate::base::error::ErrorKind;
use crate::base::limits::BLOCK_BYTES_U64;

fn over_memory() -> (FaultDirectory, FaultPlan) {
    let plan = FaultPlan::new();
    let directory = FaultDirectory::new(Arc::new(MemoryDirectory::new()), plan.clone()).unwrap();
    (directory, plan)
}

/// One call of each kind, or two; the first failure ends it.
fn workload(directory: &FaultDirectory) -> Result<()> {
    let _lock = directory.lock(true, true)?;
    let file = directory.open("data", OpenMode::CreateNew, Access::Direct)?;
    file.allocate(0, 8192)?;
    file.write_at(&[1; 8192], 0)?;
    let first = WriteRequest { offset: 0, bytes: &[3; 100] };
    file.write_many(&[first, WriteRequest { offset: 4096, bytes: &[4; 100] }])?;
    file.write_zeros(0, 4096)?;
    file.sync()?;
    let mut region = file.map(0, 4096)?;
    region.write(0, &[2; 100])?;
    region.write(100, &[2; 100])?;
    file.set_size(16384)?;
    file.punch_hole(4096, 4096)?;
    let (mut one, mut other) = ([0; 100], [0; 100]);
    let first = ReadRequest { offset: 0, buffer: &mut one };
    file.read_many(&mut [first, ReadRequest { offset: 50, buffer: &mut other }])?;
    file.read_at(&mut one, 100)?;
    file.size()?;
    directory.sync()?;
    directory.list()?;
    directory.remove("data")
}

#[test]
fn every_call_can_be_made_to_fail_once_and_for_good() {
    let (directory, counts) = over_memory();
    workload(&directory).unwrap();
    assert_eq!(counts.failures(), 0);
    for call in Call::ALL {
        let calls = counts.calls(call);
        assert!(calls > 0, "the workload does not do {call:?}");
        for after in 0..calls {
            for failure in [Failure::Io, Failure::NoSpace, Failure::IoHalfDone, Failure::IoAllDone]
            {
                let (directory, plan) = over_memory();
                plan.fail(Fault::once(call, after).with(failure));
                let kind = workload(&directory).unwrap_err().kind();
                let full = failure == Failure::NoSpace;
                assert_eq!(kind, if full { ErrorKind::NoSpace } else { ErrorKind::Io });
                assert_eq!((plan.failures(), plan.calls(call)), (1, after + 1));
            }
        }
        let (directory, plan) = over_memory();
        plan.fail(Fault::once(call, calls));
        workload(&directory).unwrap();
        plan.fail(Fault::sticky(call, 0));
        for _ in 0..2 {
            workload(&directory).unwrap_err();
            directory.inner.remove("data").ok();
        }
        plan.heal();
        workload(&directory).unwrap();
    }
}

#[test]
fn faults_are_of_the_files_they_name() {
    let (directory, plan) = over_memory();
    let open = |name| directory.open(name, OpenMode::CreateNew, Access::Direct).unwrap();
    let (log, data) = (open("log-1"), open("data"));
    plan.fail(Fault { call: None, ..Fault::sticky(Call::Write, 1).on("log-") });
    data.write_at(&[1], 0).unwrap();
    log.write_at(&[1], 0).unwrap();
    data.write_at(&[1], 0).unwrap();
    assert_eq!(log.sync().unwrap_err().file(), Some("log-1"));
    log.write_at(&[1], 0).unwrap_err();
    data.sync().unwrap();
    assert_eq!((plan.calls_on(Call::Write, "log"), plan.calls(Call::Write)), (2, 4));
}

#[test]
fn a_write_may_fail_half_done_or_done() {
    for (failure, right) in [
        (Failure::Io, [0, 0, 0, 0]),
        (Failure::IoHalfDone, [1, 1, 0, 0]),
        (Failure::IoAllDone, [1, 1, 1, 1]),
    ] {
        let (directory, plan) = over_memory();
        let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        file.set_size(4).unwrap();
        let mut region = file.map(0, 4).unwrap();
        plan.fail(Fault::once(Call::Write, 0).with(failure));
        plan.fail(Fault::once(Call::RegionWrite, 0).with(failure));
        for mapped in [false, true] {
            let outcome = if mapped { region.write(0, &[1; 4]) } else { file.write_at(&[1; 4], 0) };
            outcome.unwrap_err();
            let mut bytes = [9; 4];
            file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, right);
            file.write_at(&[0; 4], 0).unwrap();
        }
    }
}

#[test]
fn zeros_may_be_written_half() {
    for (failure, right) in [
        (Failure::Io, [1, 1, 1, 1]),
        (Failure::IoHalfDone, [0, 0, 1, 1]),
        (Failure::IoAllDone, [0, 0, 0, 0]),
    ] {
        let (directory, plan) = over_memory();
        let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
        file.write_at(&[1; 4], 0).unwrap();
        plan.fail(Fault::once(Call::Write, 0).with(failure));
        assert_eq!(file.write_zeros(0, 4).unwrap_err().kind(), ErrorKind::Io);
        let mut bytes = [9; 4];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes, plan.calls(Call::Write)), (right, 2));
    }
}

#[test]
fn each_write_of_a_batch_is_a_call_and_a_failed_one_ends_it() {
    let (directory, plan) = over_memory();
    let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
    let requests: Vec<_> =
        (0..4).map(|at| WriteRequest { offset: at * 4, bytes: &[1; 4] }).collect();
    file.set_size(16).unwrap();
    plan.fail(Fault::once(Call::Write, 2).with(Failure::IoHalfDone));
    let error = file.write_many(&requests).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::Io, Some("a")));
    assert_eq!((plan.calls(Call::Write), plan.failures()), (3, 1));
    let mut bytes = [9; 16];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
    file.write_many(&requests).unwrap();
    assert_eq!(plan.calls(Call::Write), 7);
}

#[test]
fn a_failed_sync_may_be_forgotten_by_the_system() {
    let (crash, plan) = (CrashDirectory::new(), FaultPlan::new());
    let directory = FaultDirectory::new(Arc::new(crash.clone()), plan.clone()).unwrap();
    let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
    directory.sync().unwrap();
    file.write_at(&[1; 4], 0).unwrap();
    plan.fail(Fault::once(Call::Sync, 0).with(Failure::IoForgetting));
    file.sync().unwrap_err();
    file.sync().unwrap();
    let lost = crash.journal().image(crash.boundary(), Survivors::None);
    assert!(lost["a"].is_empty());
    plan.heal();
    file.sync().unwrap();
    let kept = crash.journal().image(crash.boundary(), Survivors::None);
    assert_eq!(kept["a"], [1; 4]);
}

#[test]
fn a_full_device_refuses_what_takes_space_until_there_is_some() {
    let inner = MemoryDirectory::new();
    inner.open("old", OpenMode::CreateNew, Access::Direct).unwrap().set_size(4096).unwrap();
    let plan = FaultPlan::new();
    let directory = FaultDirectory::new(Arc::new(inner), plan.clone()).unwrap();
    plan.set_capacity(Some(4 * BLOCK_BYTES_U64));
    let file = directory.open("a", OpenMode::CreateNew, Access::Direct).unwrap();
    file.allocate(0, 2 * BLOCK_BYTES_U64).unwrap();
    let full = |outcome: Result<()>| outcome.unwrap_err().kind() == ErrorKind::NoSpace;
    assert!(full(file.allocate(0, 4 * BLOCK_BYTES_U64)));
    assert_eq!(plan.taken_bytes(), 3 * BLOCK_BYTES_U64);
    file.write_at(&[1; 8192], 0).unwrap();
    file.write_at(&[1; 4096], 8192).unwrap();
    assert!(full(file.write_at(&[1], 12_288)));
    assert!(full(file.write_zeros(12_288, 4096)));
    assert_eq!(file.size().unwrap(), 12_288);
    file.set_size(1 << 20).unwrap();
    // Three ways to free space.
    file.punch_hole(0, 4096).unwrap();
    file.write_at(&[1], 12_288).unwrap();
    directory.remove("old").unwrap();
    file.write_at(&[1], 0).unwrap();
    assert!(full(file.write_at(&[1], 16_384)));
    plan.set_capacity(Some(5 * BLOCK_BYTES_U64));
    file.write_at(&[1], 16_384).unwrap();
    file.set_size(0).unwrap();
    assert_eq!(plan.taken_bytes(), 0);
    assert_eq!(plan.failures(), 0);
}
