//! A checker of our own, to compare with: a history is strictly serializable if its dependencies
//! have no cycle. Its last transaction has to read all keys, so that every append was seen.
//!
//! ```text
//!   wrote before     appended the element before in the list of a key
//!   was read by      appended the last element that the other one read
//!   read before      read a list without the other one's element
//!   ended before     ended before the other one began; by way of moments, so that there are few
//! ```

use super::history::{Op, Transaction};
use std::collections::{BTreeMap, BTreeSet};

/// Checks a history; the error names an anomaly.
pub fn check(transactions: &[Transaction]) -> Result<(), String> {
    let writers = writers(transactions)?;
    let versions = versions(transactions)?;
    let committed = |number: &usize| transactions[*number].is_committed;
    let mut graph = Graph::new(transactions.len());
    for list in versions.values() {
        for pair in list.windows(2) {
            graph.add(writers[&pair[0]], writers[&pair[1]]);
        }
    }
    for element in versions.values().flatten() {
        let writer = writers.get(element).ok_or("an element that nobody appended")?;
        if !committed(writer) {
            return Err(format!("element {element} of an aborted transaction was read"));
        }
    }
    for (number, one) in transactions.iter().enumerate().filter(|(_, one)| one.is_committed) {
        let mut own: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut seen: BTreeMap<u32, &[u32]> = BTreeMap::new();
        for op in &one.ops {
            match op {
                Op::Append { key, element } => {
                    own.entry(*key).or_default().push(*element);
                }
                Op::Read { key, list } => {
                    let own = own.get(key).map_or(&[][..], Vec::as_slice);
                    let others = list
                        .strip_suffix(own)
                        .ok_or_else(|| format!("transaction {number} misses its own append"))?;
                    if seen.insert(*key, others).is_some_and(|before| before != others) {
                        return Err(format!("transaction {number} read two states of key {key}"));
                    }
                }
            }
        }
        for (key, list) in seen {
            let all = versions.get(&key).map_or(&[][..], Vec::as_slice);
            if let Some(last) = list.last() {
                graph.add(writers[last], number);
            }
            if let Some(next) = all.get(list.len()) {
                graph.add(number, writers[next]);
            }
        }
    }
    graph.add_moments(transactions);
    match graph.cycle() {
        None => Ok(()),
        Some(cycle) => Err(format!("transactions {cycle:?} depend on each other")),
    }
}

/// The transaction that appended each element.
fn writers(transactions: &[Transaction]) -> Result<BTreeMap<u32, usize>, String> {
    let mut writers = BTreeMap::new();
    for (number, one) in transactions.iter().enumerate() {
        for (_, element) in one.appends() {
            if writers.insert(element, number).is_some() {
                return Err(format!("element {element} was appended twice"));
            }
        }
    }
    Ok(writers)
}

/// All elements of each key that some read saw, in order.
fn versions(transactions: &[Transaction]) -> Result<BTreeMap<u32, Vec<u32>>, String> {
    let mut versions: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for one in transactions.iter().filter(|one| one.is_committed) {
        for (key, list) in one.reads() {
            let longest = versions.entry(key).or_default();
            let (short, long) = if list.len() < longest.len() {
                (list, &longest[..])
            } else {
                (&longest[..], list)
            };
            if !long.starts_with(short) {
                return Err(format!("two reads of key {key} saw different orders"));
            }
            if list.len() > longest.len() {
                *longest = list.to_vec();
            }
        }
    }
    for (key, list) in &versions {
        if list.iter().collect::<BTreeSet<_>>().len() < list.len() {
            return Err(format!("an element is twice in the list of key {key}"));
        }
    }
    Ok(versions)
}

/// Which transaction comes before which; moments are further nodes.
struct Graph {
    after: Vec<Vec<usize>>,
}

impl Graph {
    fn new(nodes: usize) -> Self {
        Self { after: vec![Vec::new(); nodes] }
    }

    fn add(&mut self, first: usize, second: usize) {
        if first != second {
            self.after[first].push(second);
        }
    }

    /// Adds a node for each end of a committed transaction: it comes before the next such node, and
    /// before the transactions that begin until then.
    fn add_moments(&mut self, transactions: &[Transaction]) {
        let of_time = transactions.iter().enumerate().filter(|(_, one)| one.is_committed);
        let mut events: Vec<(u64, usize, bool)> = of_time
            .flat_map(|(number, one)| [(one.begun, number, true), (one.ended, number, false)])
            .collect();
        events.sort_unstable();
        let mut moment = None;
        for (_, number, begins) in events {
            if begins {
                if let Some(moment) = moment {
                    self.add(moment, number);
                }
                continue;
            }
            let next = self.after.len();
            self.after.push(Vec::new());
            self.add(number, next);
            if let Some(before) = moment.replace(next) {
                self.add(before, next);
            }
        }
    }

    /// The nodes of a cycle, or of what depends on one; `None` if there is none.
    fn cycle(&self) -> Option<Vec<usize>> {
        let mut before = vec![0_usize; self.after.len()];
        self.after.iter().flatten().for_each(|node| before[*node] += 1);
        let mut free: Vec<usize> = (0..before.len()).filter(|node| before[*node] == 0).collect();
        let mut ordered = 0;
        while let Some(node) = free.pop() {
            ordered += 1;
            for next in &self.after[node] {
                before[*next] -= 1;
                if before[*next] == 0 {
                    free.push(*next);
                }
            }
        }
        let stuck = (0..before.len()).filter(|node| before[*node] > 0);
        (ordered < before.len()).then(|| stuck.take(20).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{check_with_adya, is_clean};
    use super::*;

    /// A transaction: the moments at which it begins and ends, and what it does.
    type Brief<'o> = (u64, u64, &'o [Op]);

    /// Transactions of separate processes.
    fn history(of: &[Brief<'_>]) -> Vec<Transaction> {
        let one = |(process, (begun, ended, ops)): (usize, &Brief<'_>)| Transaction {
            process,
            begun: *begun,
            ended: *ended,
            ops: ops.to_vec(),
            is_committed: true,
        };
        of.iter().enumerate().map(one).collect()
    }

    fn read(key: u32, list: &[u32]) -> Op {
        Op::Read { key, list: list.to_vec() }
    }

    fn append(key: u32, element: u32) -> Op {
        Op::Append { key, element }
    }

    #[test]
    fn both_checkers_find_each_anomaly_and_nothing_in_good_histories() {
        let last = |x: &[u32], y: &[u32]| [read(1, x), read(2, y)];
        let cases: &[(&str, bool, &[Brief<'_>])] = &[
            (
                "in turn",
                true,
                &[
                    (0, 1, &[read(1, &[]), append(1, 10)]),
                    (2, 3, &[read(1, &[10]), append(1, 11), read(1, &[10, 11])]),
                    (90, 91, &last(&[10, 11], &[])),
                ],
            ),
            (
                "beside each other",
                true,
                &[
                    (0, 9, &[read(1, &[]), append(2, 20)]),
                    (1, 8, &[append(1, 10)]),
                    (90, 91, &last(&[10], &[20])),
                ],
            ),
            (
                "write skew",
                false,
                &[
                    (0, 8, &[read(1, &[]), append(2, 20)]),
                    (1, 9, &[read(2, &[]), append(1, 10)]),
                    (90, 91, &last(&[10], &[20])),
                ],
            ),
            (
                "lost update",
                false,
                &[
                    (0, 8, &[read(1, &[]), append(1, 10)]),
                    (1, 9, &[read(1, &[]), append(1, 11)]),
                    (90, 91, &last(&[10, 11], &[])),
                ],
            ),
            (
                "half of a transaction",
                false,
                &[
                    (0, 8, &[append(1, 10), append(2, 20)]),
                    (1, 9, &[read(1, &[10]), read(2, &[])]),
                    (90, 91, &last(&[10], &[20])),
                ],
            ),
            (
                "writes in two orders",
                false,
                &[
                    (0, 8, &[append(1, 10), append(2, 20)]),
                    (1, 9, &[append(1, 11), append(2, 21)]),
                    (90, 91, &last(&[10, 11], &[21, 20])),
                ],
            ),
            (
                "a stale read",
                false,
                &[(0, 1, &[append(1, 10)]), (2, 3, &[read(1, &[])]), (90, 91, &last(&[10], &[]))],
            ),
            (
                "an own append that is missing",
                false,
                &[(0, 1, &[append(1, 10), read(1, &[])]), (90, 91, &last(&[10], &[]))],
            ),
        ];
        for (name, is_good, transactions) in cases {
            let history = history(transactions);
            let own = check(&history);
            assert_eq!(own.is_ok(), *is_good, "{name}: {own:?}");
            let report = check_with_adya(&history);
            assert_eq!(is_clean(&report), *is_good, "{name}: {:?}", report.anomaly_types);
        }
        let mut aborted = history(&[(0, 1, &[append(1, 10)]), (2, 3, &last(&[10], &[]))]);
        aborted[0].is_committed = false;
        assert!(check(&aborted).is_err() && !is_clean(&check_with_adya(&aborted)));
    }
}
