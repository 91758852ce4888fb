//! Power cuts through the kernel: a file system on a loop device is shut down without a flush of
//! its journal while a process writes, mounted again, and opened. The database is a prefix of its
//! commits and contains those acknowledged at level `Sync`.
//!
//! Needs root, the loop device, and `mkfs.ext4`, `mount` and `umount`.

use super::child::{Running, check, go_on};
use super::shutdown::shut_down;
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::Clock;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Cuts of a unit, all on one file system.
const CUTS: u64 = 10;

/// The size of the file system.
const DEVICE_BYTES: u64 = 256 << 20;

/// Retries of an unmount while the file system is in use, and the time between two of them.
const UNMOUNT_TRIES: u32 = 400;
const UNMOUNT_STEP: Duration = Duration::from_millis(50);

/// A unit is a file system that loses its power ten times.
pub struct Power;

impl Test for Power {
    fn name(&self) -> &'static str {
        "power"
    }

    fn about(&self) -> &'static str {
        "shuts down a mounted ext4, without a flush, while a process writes"
    }

    fn short_units(&self) -> u64 {
        3
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "power cuts", count: 300 }]
    }

    fn excuse(&self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root may mount file systems".to_owned());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("there is no loop device".to_owned());
        }
        let missing = ["mkfs.ext4", "mount", "umount"].into_iter().find(|name| !is_there(name));
        missing.map(|name| format!("there is no program {name}"))
    }

    fn run(&self, unit: Unit) -> Tally {
        let place = tempfile::tempdir().unwrap();
        let device = place.path().join("device");
        File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES)).unwrap();
        run("mkfs.ext4", &["-q", "-F", &device.to_string_lossy()]);
        let at = place.path().join("mounted");
        std::fs::create_dir(&at).unwrap();
        let mut rng = unit.rng();
        let overwriting = rng.one_in(3);
        let mut tally = Tally::default();
        for _ in 0..CUTS {
            let mounted = Mounted::new(&device, &at);
            let mut child = Running::start(&at.join("database"), overwriting);
            child.wait_for(rng.below(1_500));
            // Later acknowledgements may rest on a sync during the shutdown, in a journal that is
            // then discarded: no device loses its power so slowly.
            let promised = child.acknowledged_so_far().synced;
            shut_down(&mounted.at).unwrap();
            let acknowledged = child.kill(true);
            drop(mounted);
            tally.add("power cuts", 1);
            tally.add("commits acknowledged", acknowledged.lines);
            let _mounted = Mounted::new(&device, &at);
            let database = check(&at.join("database"), overwriting, promised);
            if rng.one_in(3) {
                go_on(&database);
            }
        }
        tally
    }
}

/// A mounted file system; unmounted when this is dropped.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(device: &Path, at: &Path) -> Self {
        run("mount", &["-o", "loop", &device.to_string_lossy(), &at.to_string_lossy()]);
        Self { at: at.to_owned() }
    }
}

impl Mounted {
    fn unmount(&self, arguments: &[&str]) -> bool {
        let unmounted =
            Command::new("umount").args(arguments).arg(&self.at).stderr(Stdio::null()).status();
        unmounted.is_ok_and(|status| status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that another unit is starting briefly has all files open that are open here. To
        // continue then would mount a file system that is still mounted: shut down, not recovered.
        let clock = Clock::real();
        for _ in 0..UNMOUNT_TRIES {
            if self.unmount(&[]) {
                return;
            }
            clock.sleep(UNMOUNT_STEP);
        }
        // A failing unit leaves no mounted file system behind, even if files are still open.
        self.unmount(&["-l"]);
        assert!(std::thread::panicking(), "{} stays in use", self.at.display());
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    places.any(|place| place.join(program).exists())
}

/// Runs a system program.
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}
