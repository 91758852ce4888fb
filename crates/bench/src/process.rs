//! The kernel's statistics of this process, and the machine.
//!
//! | figure | from | meaning |
//! | --- | --- | --- |
//! | `cpu_user`, `cpu_sys` | `stat` | of all threads, in steps of 10 ms |
//! | `read_bytes` | `io` | fetched from the device by reads |
//! | `write_bytes` | `io` | direct writes, and pages of files when they were first dirtied |
//! | `cancelled_bytes` | `io` | of those, pages that were dropped with their file before |
//! | `rss_bytes`, `rss_peak_bytes` | `status` | resident, mapped files included |

use crate::failure::{Failure, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Ticks of processor time in a second: fixed in the kernel's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// The unit of a file's allocated blocks.
const ALLOCATION_BYTES: u64 = 512;

/// Resources used by the process since its start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// Seconds in the program.
    pub cpu_user: f64,
    /// Seconds in the kernel.
    pub cpu_sys: f64,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Bytes written to devices.
    pub write_bytes: u64,
    /// Bytes of those that were never written after all.
    pub cancelled_bytes: u64,
}

impl Usage {
    /// The usage until now.
    pub fn now() -> Result<Self> {
        let (cpu_user, cpu_sys) = cpu_of(&read("stat")?).ok_or_else(|| strange("stat"))?;
        let io = read("io")?;
        let field = |name: &str| field(&io, name).ok_or_else(|| strange("io"));
        Ok(Self {
            cpu_user,
            cpu_sys,
            read_bytes: field("read_bytes")?,
            write_bytes: field("write_bytes")?,
            cancelled_bytes: field("cancelled_write_bytes")?,
        })
    }

    /// The usage since `start`.
    pub fn since(self, start: Usage) -> Self {
        Self {
            cpu_user: self.cpu_user - start.cpu_user,
            cpu_sys: self.cpu_sys - start.cpu_sys,
            read_bytes: self.read_bytes.saturating_sub(start.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(start.write_bytes),
            cancelled_bytes: self.cancelled_bytes.saturating_sub(start.cancelled_bytes),
        }
    }
}

/// Resident memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Now.
    pub rss_bytes: u64,
    /// The most since the last [`reset_peak`].
    pub rss_peak_bytes: u64,
}

impl Memory {
    /// Now.
    pub fn now() -> Result<Self> {
        let status = read("status")?;
        let kib = |name: &str| field(&status, name).ok_or_else(|| strange("status"));
        Ok(Self { rss_bytes: kib("VmRSS")? << 10, rss_peak_bytes: kib("VmHWM")? << 10 })
    }
}

/// The peak of resident memory starts again from now; false if the kernel does not allow it, and
/// the peak goes on counting from the start of the process.
pub fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Bytes allocated to the files below `folder`; holes do not count.
pub fn disk_bytes(folder: &Path) -> Result<u64> {
    let what = || format!("look into {}", folder.display());
    let mut total = 0;
    for entry in std::fs::read_dir(folder).map_err(|error| Failure::failed(what(), error))? {
        let entry = entry.map_err(|error| Failure::failed(what(), error))?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => total += disk_bytes(&entry.path())?,
            Ok(metadata) => total += metadata.blocks() * ALLOCATION_BYTES,
            // A file that the store has just removed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::failed(what(), error)),
        }
    }
    Ok(total)
}

/// The machine in a line: processor, number of them, memory, kernel.
pub fn machine() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu_info = text("/proc/cpuinfo");
    let model = cpu_info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": ")).map_or("processor", |(_, name)| name);
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field(&text("/proc/meminfo"), "MemTotal").unwrap_or(0) >> 20;
    let kernel = text("/proc/sys/kernel/osrelease");
    format!("{count} x {}, {memory} GiB, Linux {}", model.trim(), kernel.trim())
}

fn read(name: &str) -> Result<String> {
    std::fs::read_to_string(format!("/proc/self/{name}"))
        .map_err(|error| Failure::failed(format!("read {name} of this process"), error))
}

fn strange(name: &str) -> Failure {
    Failure::failed(format!("read {name} of this process"), "it has not the expected fields")
}

/// The number behind `name:`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, rest) = lines.find(|(before, _)| *before == name)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// User and system seconds; fields are counted behind the program's name, which may hold anything.
#[expect(clippy::cast_precision_loss, reason = "ticks are far below 2^53")]
fn cpu_of(stat: &str) -> Option<(f64, f64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut seconds = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(ticks as f64 / TICKS_PER_SECOND)
    };
    Some((seconds()?, seconds()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let start = Usage::now().unwrap();
        let memory = Memory::now().unwrap();
        assert!(memory.rss_bytes > 1 << 16 && memory.rss_peak_bytes >= memory.rss_bytes / 2);
        let used = Usage::now().unwrap().since(start);
        assert!(used.cpu_user >= 0.0 && used.cpu_user < 600.0);
        assert!(machine().contains("Linux"));
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0";
        assert_eq!(cpu_of(stat), Some((1.5, 0.25)));
        assert_eq!(cpu_of("nonsense"), None);
        assert_eq!(field("Vm: 1 kB\nVmRSS:\t 12 kB\n", "VmRSS"), Some(12));
        assert_eq!(field("read_bytes: x", "read_bytes"), None);
    }

    #[test]
    fn disk_space_is_that_of_allocated_blocks() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/data"), vec![1; 100_000]).unwrap();
        let sparse = std::fs::File::create(directory.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let used = disk_bytes(directory.path()).unwrap();
        assert!(used < 1 << 24, "{used}");
        assert!(disk_bytes(&directory.path().join("none")).is_err());
    }
}
