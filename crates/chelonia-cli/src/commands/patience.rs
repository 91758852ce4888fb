//! Waiting for a database that is open elsewhere, as long as `--wait` says.
//!
//! The lock of a database cannot be waited for, so that the open is tried again and again. All else
//! that can go wrong with it ends the waiting.

use crate::output::complain;
use chelonia::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two tries.
const INTERVAL: Duration = Duration::from_millis(50);

/// Calls `attempt`, and again while it finds the database at `path` open elsewhere, for `wait` at
/// most. That it waits is told once.
#[expect(clippy::disallowed_methods, reason = "a user waits here, in real time, and nothing else")]
pub fn until_free<T>(
    path: &Path,
    wait: Duration,
    mut attempt: impl FnMut() -> chelonia::Result<T>,
) -> chelonia::Result<T> {
    let start = Instant::now();
    let mut is_told = false;
    loop {
        let result = attempt();
        let Err(error) = &result else { return result };
        if error.kind() != ErrorKind::AlreadyOpen || wait.is_zero() {
            return result;
        }
        if !std::mem::replace(&mut is_told, true) {
            let seconds = wait.as_secs_f64();
            complain(&format!("{}: {error}: waiting at most {seconds} s", path.display()));
        }
        let left = wait.saturating_sub(start.elapsed());
        if left.is_zero() {
            return result;
        }
        std::thread::sleep(left.min(INTERVAL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chelonia::Error;

    #[test]
    fn it_tries_again_only_what_can_become_better() {
        let open = || Err::<u32, _>(Error::new(ErrorKind::AlreadyOpen, "open"));
        let path = Path::new("db");
        let long = Duration::from_secs(1_000_000);
        let mut tries = 0;
        let found = until_free(path, long, || {
            tries += 1;
            if tries < 3 { open() } else { Ok(tries) }
        });
        assert_eq!(found.unwrap(), 3);
        let mut tries = 0;
        let failed = until_free(path, Duration::ZERO, || {
            tries += 1;
            open()
        });
        assert_eq!((failed.unwrap_err().kind(), tries), (ErrorKind::AlreadyOpen, 1));
        let mut tries = 0;
        let failed = until_free(path, long, || {
            tries += 1;
            Err::<u32, _>(Error::new(ErrorKind::NotFound, "none"))
        });
        assert_eq!((failed.unwrap_err().kind(), tries), (ErrorKind::NotFound, 1));
    }
}
