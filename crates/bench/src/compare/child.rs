//! Runs each store in a process of its own, so that stores share neither memory nor crashes.

use crate::cgroup::{self, Killed};
use crate::driver;
use crate::failure::{Failure, Result};
use crate::options::Options;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// The signal that the kernel sends to a process that is out of memory.
const SIGKILL: i32 = 9;

/// The exit code of a run that read a wrong value.
const CODE_WRONG: i32 = 1;

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All phases, or as far as the cap let it.
    Done,
    /// It read a wrong value.
    Wrong,
    /// It could not go on: how.
    Failed(String),
}

impl Ended {
    /// In words, for results.
    pub fn describe(&self) -> &str {
        match self {
            Ended::Done => "done",
            Ended::Wrong => "read a wrong value",
            Ended::Failed(how) => how,
        }
    }

    /// The end that `status` stands for; `killed` is the reason if it was killed.
    fn of(status: ExitStatus, killed: Killed) -> Self {
        Ended::Failed(match (status.code(), status.signal()) {
            (Some(0), _) => return Ended::Done,
            (Some(CODE_WRONG), _) => return Ended::Wrong,
            (Some(code), _) => format!("failed with exit code {code}"),
            (None, Some(SIGKILL)) => match killed {
                Killed::ForMemory(bytes) => format!("killed for memory beyond {bytes} bytes"),
                Killed::Unknown => "killed, probably for its memory".to_owned(),
                Killed::Otherwise => "killed, not for its memory".to_owned(),
            },
            (None, signal) => format!("died by signal {}", signal.unwrap_or(0)),
        })
    }
}

/// Runs `engine`; results go to the file `part`, progress and errors to our standard error.
pub fn run(engine: &str, options: &Options, part: &Path) -> Result<Ended> {
    remove(part)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed("find this program to run it again", error))?;
    let mut child = Command::new(program)
        .arg("run")
        .args(["--engine", engine])
        .args(options.arguments())
        .arg("--json")
        .arg(part)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Failure::failed("run this program again", error))?;
    let process = child.id();
    let status = child.wait().map_err(|error| Failure::failed("wait for a run", error))?;
    let ended = Ended::of(status, cgroup::bury(process));
    if ended != Ended::Done {
        // The run may have ended before it removed its database, and the others need the space.
        driver::clean_up(options, engine)?;
    }
    Ok(ended)
}

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_description() {
        // The raw status of a process: its exit code in the second byte, its signal in the first.
        let of = |status: i32| Ended::of(ExitStatus::from_raw(status), Killed::Unknown);
        assert_eq!(of(0), Ended::Done);
        assert_eq!(of(1 << 8), Ended::Wrong);
        assert_eq!(of(3 << 8).describe(), "failed with exit code 3");
        assert_eq!(of(9).describe(), "killed, probably for its memory");
        let killed = |killed| Ended::of(ExitStatus::from_raw(9), killed);
        let message = killed(Killed::ForMemory(950));
        assert_eq!(message.describe(), "killed for memory beyond 950 bytes");
        assert_eq!(killed(Killed::Otherwise).describe(), "killed, not for its memory");
        assert_eq!(of(11).describe(), "died by signal 11");
    }
}
