//! Coverage marks that were reached, passed on by a child process or by an earlier run.
//!
//! ```text
//! {"RecordRefreshed":12,"CommitSlept":3}
//! ```

use chelonia::internals::{self, Mark, mark_again};
use serde_json::{Map, Value, json};

/// The marks that this process reached, with counts.
pub fn reached() -> Value {
    let met = internals::reached().filter(|(_, count)| *count > 0);
    Value::Object(met.map(|(mark, count)| (format!("{mark:?}"), json!(count))).collect())
}

/// Adds the marks of another process. Marks that no longer exist are ignored; `None` if `marks` has
/// another form.
pub fn add(marks: &Value) -> Option<()> {
    let marks: &Map<String, Value> = marks.as_object()?;
    for (name, count) in marks {
        let count = count.as_u64()?;
        if let Some(mark) = Mark::named(name) {
            mark_again(mark, count);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_another_process_are_added() {
        let mark = Mark::ALL[0];
        let count = || internals::reached().find(|(one, _)| *one == mark).unwrap().1;
        let before = count();
        add(&json!({ format!("{mark:?}"): 3, "NoMore": 1 })).unwrap();
        assert!(count() >= before + 3);
        assert!(reached()[format!("{mark:?}")].as_u64().unwrap() >= 3);
        assert!(add(&json!([1])).is_none() && add(&json!({ "NoMore": "x" })).is_none());
    }
}
