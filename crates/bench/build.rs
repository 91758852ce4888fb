//! Build steps for the adapters of other stores; nothing without their features.
//!
//! | feature | step |
//! | --- | --- |
//! | `rocksdb` | links the RocksDB of the system |
//! | `wiredtiger` | links the WiredTiger of the system, compiles a shim in C for its interface |
//! | `fjall`, `redb`, `bf-tree` | their versions, from the lock file |
//!
//! If a library is missing, the build fails with the name of its package.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file with the versions that are built.
const LOCK: &str = "../../Cargo.lock";

/// The C side of the adapter for WiredTiger.
#[cfg(feature = "wiredtiger")]
const SHIM: &str = "src/stores/wiredtiger/shim.c";

fn main() -> Result<(), Box<dyn Error>> {
    say("rerun-if-changed=build.rs")?;
    if cfg!(feature = "rocksdb") {
        link("rocksdb", "librocksdb-dev")?;
    }
    #[cfg(feature = "wiredtiger")]
    {
        say(&format!("rerun-if-changed={SHIM}"))?;
        link("wiredtiger", "libwiredtiger-dev")?;
        cc::Build::new().file(SHIM).try_compile("chelonia_wiredtiger")?;
    }
    let registry = [
        (cfg!(feature = "bf-tree"), "bf-tree", "BF_TREE_VERSION"),
        (cfg!(feature = "fjall"), "fjall", "FJALL_VERSION"),
        (cfg!(feature = "redb"), "redb", "REDB_VERSION"),
    ];
    if registry.iter().any(|(is_built, ..)| *is_built) {
        say(&format!("rerun-if-changed={LOCK}"))?;
        let lock = std::fs::read_to_string(LOCK).map_err(|error| format!("{LOCK}: {error}"))?;
        for (_, package, variable) in registry.iter().filter(|(is_built, ..)| *is_built) {
            let version =
                locked(&lock, package).ok_or_else(|| format!("no {package} in {LOCK}"))?;
            say(&format!("rustc-env={variable}={version}"))?;
        }
    }
    Ok(())
}

/// Prints an instruction for cargo.
fn say(instruction: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "cargo::{instruction}")
}

/// Links the library `name` of the system.
fn link(name: &str, package: &str) -> Result<(), Box<dyn Error>> {
    let file = format!("lib{name}.so");
    let Some(folder) = find(&file) else {
        return Err(format!(
            "{file} is not installed, which the feature `{name}` needs: `apt-get install \
             {package}`, or build without the feature"
        )
        .into());
    };
    say(&format!("rustc-link-search=native={}", folder.display()))?;
    say(&format!("rustc-link-lib=dylib={name}"))?;
    Ok(())
}

/// The folder in which the linker finds `file`, if it does: a linker prints the bare name of an
/// unknown file.
fn find(file: &str) -> Option<PathBuf> {
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let output = Command::new(linker).arg(format!("-print-file-name={file}")).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let path = Path::new(text.trim());
    Some(path.canonicalize().ok().filter(|_| path.is_absolute())?.parent()?.to_path_buf())
}

/// The version of `package` in the text of the lock file.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}
