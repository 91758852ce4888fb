//! The history of a run: what each transaction read and appended, and when.
//!
//! Values are lists, and writes append to them, as in Elle (Kingsbury and Alvaro, *Elle: Inferring
//! Isolation Anomalies from Experimental Observations*, VLDB 2020): a list that was read shows all
//! versions of its key before it, in order.

use adya::history::{History as AdyaHistory, Mop, Op as AdyaOp, OpType, ReadValue, Scalar};
use adya::{Opts, Report, Valid, Workload};
use std::time::Duration;

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Append { key: u32, element: u32 },
    Read { key: u32, list: Vec<u32> },
}

/// A transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The thread that ran it.
    pub process: usize,
    /// The moments at which it began and ended; no two moments of a history are equal.
    pub begun: u64,
    pub ended: u64,
    pub ops: Vec<Op>,
    /// False if it had a conflict.
    pub is_committed: bool,
}

impl Transaction {
    /// The reads, with the lists that they saw.
    pub fn reads(&self) -> impl Iterator<Item = (u32, &[u32])> {
        self.ops.iter().filter_map(|op| match op {
            Op::Read { key, list } => Some((*key, &list[..])),
            Op::Append { .. } => None,
        })
    }

    /// The appends.
    pub fn appends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ops.iter().filter_map(|op| match op {
            Op::Append { key, element } => Some((*key, *element)),
            Op::Read { .. } => None,
        })
    }
}

/// The report of the crate `adya`: whether the transactions are strictly serializable.
pub fn check_with_adya(transactions: &[Transaction]) -> Report {
    let options = Opts { timeout: Duration::from_secs(20), ..Opts::default() };
    adya::check(&adya_history(transactions), Workload::ListAppend, &options)
}

/// True if the report found nothing.
pub fn is_clean(report: &Report) -> bool {
    report.valid == Valid::True
}

fn adya_history(transactions: &[Transaction]) -> AdyaHistory {
    let mut events: Vec<(u64, usize, bool)> = transactions
        .iter()
        .enumerate()
        .flat_map(|(number, one)| [(one.begun, number, true), (one.ended, number, false)])
        .collect();
    events.sort_unstable();
    let mut history = AdyaHistory::default();
    let mut begun = vec![0; transactions.len()];
    for (at, (_, number, begins)) in events.into_iter().enumerate() {
        let one = &transactions[number];
        let kind = match (begins, one.is_committed) {
            (true, _) => OpType::Invoke,
            (false, true) => OpType::Ok,
            (false, false) => OpType::Fail,
        };
        let value = one.ops.iter().map(|op| mop(&mut history, op, begins)).collect();
        let process = i64::try_from(one.process).ok();
        history.ops.push(AdyaOp { index: at as u64, kind, process, value, time: None });
        history.pair.push(None);
        if begins {
            begun[number] = at;
        } else {
            history.pair[at] = Some(begun[number]);
            history.pair[begun[number]] = Some(at);
        }
    }
    history
}

fn mop(history: &mut AdyaHistory, op: &Op, begins: bool) -> Mop {
    let mut id = |number: u32| history.interner.intern(Scalar::Int(i64::from(number)));
    match op {
        Op::Append { key, element } => Mop::Append { key: id(*key), value: id(*element) },
        Op::Read { key, .. } if begins => Mop::Read { key: id(*key), value: ReadValue::Nil },
        Op::Read { key, list } => {
            let value = ReadValue::List(list.iter().map(|element| id(*element)).collect());
            Mop::Read { key: id(*key), value }
        }
    }
}
