//! `--wait`: waits for a database that is open elsewhere.
//!
//! The lock of a database cannot be waited for, so the open is retried. Any other error ends the
//! wait.

use crate::output::complain;
use chelonia::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// The interval between two attempts.
const INTERVAL: Duration = Duration::from_millis(50);

/// Calls `attempt` until the database at `path` is not open elsewhere, for at most `wait`. Prints
/// once that it waits.
#[expect(clippy::disallowed_methods, reason = "a user waits here, in real time, and nothing else")]
pub fn until_free<T>(
    path: &Path,
    wait: Duration,
    mut attempt: impl FnMut() -> chelonia::Result<T>,
) -> chelonia::Result<T> {
    let start = Instant::now();
    let mut is_reported = false;
    loop {
        let result = attempt();
        let Err(error) = &result else { return result };
        if error.kind() != ErrorKind::AlreadyOpen || wait.is_zero() {
            return result;
        }
        if !std::mem::replace(&mut is_reported, true) {
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
    fn only_an_open_database_is_waited_for() {
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
