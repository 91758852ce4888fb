//! The rare cases of the store that were come by, as one process tells them to another, or to the
//! run that goes on after it.
//!
//! ```text
//! {"RecordRefreshed":12,"CommitSlept":3}
//! ```

use chelonia::internals::{Mark, mark_again, reached};
use serde_json::{Map, Value, json};

/// What this process came by.
pub fn told() -> Value {
    let met = reached().filter(|(_, count)| *count > 0);
    Value::Object(met.map(|(mark, count)| (format!("{mark:?}"), json!(count))).collect())
}

/// Adds what another process came by. A case that there is no more is passed over; `None` if it is
/// not what a process tells.
pub fn add(told: &Value) -> Option<()> {
    let told: &Map<String, Value> = told.as_object()?;
    for (name, count) in told {
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
    fn what_another_process_came_by_is_added() {
        let mark = Mark::ALL[0];
        let count = || reached().find(|(one, _)| *one == mark).unwrap().1;
        let before = count();
        add(&json!({ format!("{mark:?}"): 3, "NoMore": 1 })).unwrap();
        assert!(count() >= before + 3);
        assert!(told()[format!("{mark:?}")].as_u64().unwrap() >= 3);
        assert!(add(&json!([1])).is_none() && add(&json!({ "NoMore": "x" })).is_none());
    }
}
