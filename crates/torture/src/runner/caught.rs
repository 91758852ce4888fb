//! Catches panics of units, and attributes their messages.
//!
//! A unit runs on a thread of the runner and may start more; the first panic of any of them ends
//! it. Messages are stored here, because the thread that joins them only learns that they panicked.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

thread_local! {
    /// The slot of the unit that runs on this thread of the runner.
    static WITHIN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Messages of panics since the last failed unit.
static SAID: Mutex<Vec<(Option<usize>, String)>> = Mutex::new(Vec::new());

/// From now on stores panic messages instead of printing them.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("a panic without a message");
        let place = info.location().map_or_else(String::new, |place| format!(" ({place})"));
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        said.push((WITHIN.get(), format!("{text}{place}{trace}")));
    }));
}

/// Runs `work` as the unit in slot `within`; returns its panic messages if it panicked. Messages of
/// threads that it started cannot be distinguished from those of another unit that fails at the
/// same time.
pub fn run<T>(within: usize, work: impl FnOnce() -> T) -> Result<T, String> {
    WITHIN.set(Some(within));
    let result = catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(None);
    result.map_err(|_| {
        let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let own = |(of, _): &(Option<usize>, String)| of.is_none_or(|of| of == within);
        let lines: Vec<String> =
            said.extract_if(.., |one| own(one)).map(|(_, text)| text).collect();
        lines.join("\n")
    })
}

/// Held by tests in which units fail, because all panic messages are stored in one place.
#[cfg(test)]
pub static FAILING: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_a_unit_and_of_its_threads_are_reported() {
        let _alone = FAILING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = std::panic::take_hook();
        install();
        let fine = run(0, || 7);
        let own = run(1, || panic!("one thing"));
        let thread = run(2, || {
            std::thread::scope(|scope| {
                let _ = scope.spawn(|| panic!("another thing")).join();
            });
            panic!("joined");
        });
        std::panic::set_hook(before);
        assert_eq!(fine, Ok(7));
        let own: Result<(), String> = own;
        assert!(own.unwrap_err().contains("one thing"));
        let thread: Result<(), String> = thread;
        let text = thread.unwrap_err();
        assert!(text.contains("another thing") && text.contains("joined"), "{text}");
    }
}
