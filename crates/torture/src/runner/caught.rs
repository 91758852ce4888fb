//! Panics of units, caught and told apart.
//!
//! A unit runs on a thread of the runner and may use more; the first panic of any of them ends
//! it. What they said is kept here, for the thread that joins them learns only that they panicked.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

thread_local! {
    /// The unit's number among those that run, on the threads of the runner.
    static WITHIN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What panics said since the last unit failed.
static SAID: Mutex<Vec<(Option<usize>, String)>> = Mutex::new(Vec::new());

/// Keeps what panics say from now on, instead of printing it.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("a panic without words");
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

/// Runs `work` as unit `within` of those that run now; gives what its panics said if it panicked.
/// Threads that it starts are not told from those of other units that fail at the same time.
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

/// Held by tests in which units fail: what their panics say is kept in one place.
#[cfg(test)]
pub static FAILING: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_unit_or_of_its_threads_is_told() {
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
