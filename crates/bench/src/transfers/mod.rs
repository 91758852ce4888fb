//! `transfers`: transactions that move money between two random accounts, on several stores.
//!
//! A transfer reads two balances and writes both. With few accounts threads meet all the time, with
//! many hardly ever. A transfer with a conflict is repeated until it goes through, and its time is
//! that of all attempts. At the end the money in all accounts is counted.

mod chelonia;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::driver::clock;
use crate::driver::latency::{Kind, Latencies};
use crate::failure::{Failure, Result};
use crate::table::{Table, short};
use crate::workload::random::Random;
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of an account's value: the balance, and what else a record has.
const VALUE_BYTES: usize = 100;

/// Money in each account at the beginning.
const BALANCE: u64 = 1_000_000;

/// `transfers`
#[derive(Args, Debug)]
pub struct Transfers {
    /// The stores
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "turtle")]
    pub engines: Vec<String>,
    /// Numbers of accounts: few for many conflicts
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100,1000000")]
    pub accounts: Vec<u64>,
    /// Numbers of threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,8")]
    pub threads: Vec<usize>,
    /// Seconds for each measurement
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// How often each is measured, in turns; results are medians
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeats: u64,
    /// The folder for the databases, which are removed
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

/// A database with accounts.
trait Bank: Sync {
    /// One thread's way into it.
    fn teller(&self) -> Result<Box<dyn Teller + '_>>;
}

/// Moves money.
trait Teller {
    /// Sets the balances of accounts in one commit.
    fn open_accounts(&mut self, accounts: std::ops::Range<u64>) -> Result<()>;

    /// Moves `amount` from one account to another; false after a conflict.
    fn transfer(&mut self, from: u64, to: u64, amount: u64) -> Result<bool>;

    /// The balance of an account.
    fn balance(&mut self, account: u64) -> Result<u64>;
}

/// Makes a database in an empty folder.
type Open = fn(&Path) -> Result<Box<dyn Bank>>;

/// The stores, by name.
fn stores() -> Vec<(&'static str, Open)> {
    vec![
        ("turtle", chelonia::open_transactions as Open),
        ("turtle-update", chelonia::open_updates),
        #[cfg(feature = "rocksdb")]
        ("rocksdb", rocksdb::open),
        #[cfg(feature = "fjall")]
        ("fjall", fjall::open),
    ]
}

/// The result of one measurement.
struct Measured {
    engine: &'static str,
    accounts: u64,
    threads: usize,
    transfers: u64,
    conflicts: u64,
    seconds: f64,
    p50: f64,
    p99: f64,
}

impl Measured {
    fn kops(&self) -> f64 {
        per(self.transfers, self.seconds * 1000.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn per(count: u64, of: f64) -> f64 {
    count as f64 / of
}

/// Measures all stores.
pub fn run(arguments: &Transfers) -> Result<()> {
    let known = stores();
    let find = |name: &String| {
        let found = known.iter().find(|(known, _)| known == name).copied();
        found.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            Failure::usage(format!("{name} has no transfers here: there are {}", names.join(", ")))
        })
    };
    let engines = arguments.engines.iter().map(find).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for accounts in &arguments.accounts {
        for threads in &arguments.threads {
            for _ in 0..arguments.repeats {
                for (engine, open) in &engines {
                    let path = arguments.dir.join(format!("transfers-{engine}"));
                    let measured = measure(arguments, (engine, *open), *accounts, *threads, &path);
                    // It may not have been made.
                    let _ = std::fs::remove_dir_all(&path);
                    all.push(measured?);
                }
            }
        }
    }
    print(&all, arguments.json)
}

fn measure(
    arguments: &Transfers,
    (engine, open): (&'static str, Open),
    accounts: u64,
    threads: usize,
    path: &Path,
) -> Result<Measured> {
    if accounts < 2 || threads == 0 {
        return Err(Failure::usage("--accounts: at least 2; --threads: at least 1"));
    }
    let bank = open(path)?;
    let mut teller = bank.teller()?;
    for first in (0..accounts).step_by(1000) {
        teller.open_accounts(first..(first + 1000).min(accounts))?;
    }
    let (stop, start) = (AtomicBool::new(false), Barrier::new(1 + threads));
    let work = |thread: usize| {
        let mut teller = bank.teller()?;
        let mut random = Random::new(thread as u64);
        let (mut latencies, mut transfers, mut conflicts) = (Latencies::default(), 0, 0);
        start.wait();
        while !stop.load(Ordering::Relaxed) {
            let from = random.below(accounts);
            let to = (from + 1 + random.below(accounts - 1)) % accounts;
            let amount = random.below(100);
            let began = clock::now();
            while !teller.transfer(from, to, amount)? {
                conflicts += 1;
            }
            latencies.record(Kind::Rmw, clock::since(began));
            transfers += 1;
        }
        Ok((latencies, transfers, conflicts))
    };
    let (results, seconds) = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        start.wait();
        let began = clock::now();
        clock::sleep(Duration::from_secs_f64(arguments.seconds));
        stop.store(true, Ordering::Relaxed);
        let seconds = clock::since(began).as_secs_f64();
        let joined = workers.into_iter().map(|worker| {
            worker.join().unwrap_or_else(|_| Err(Failure::wrong("a thread panicked")))
        });
        (joined.collect::<Result<Vec<_>>>(), seconds)
    });
    let (mut latencies, mut transfers, mut conflicts) = (Latencies::default(), 0, 0);
    for (of_thread, done, refused) in results? {
        latencies.add(&of_thread);
        transfers += done;
        conflicts += refused;
    }
    let mut money = 0;
    for account in 0..accounts {
        money += teller.balance(account)?;
    }
    if money != accounts * BALANCE {
        return Err(Failure::wrong(format!(
            "{engine}: {money} in all accounts instead of {}",
            accounts * BALANCE
        )));
    }
    let times = latencies.percentiles();
    let (p50, p99) = times.get(&Kind::Rmw).map_or((0.0, 0.0), |times| (times.p50, times.p99));
    Ok(Measured { engine, accounts, threads, transfers, conflicts, seconds, p50, p99 })
}

fn print(all: &[Measured], as_json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        for one in all {
            let line = json!({
                "engine": one.engine, "accounts": one.accounts, "threads": one.threads,
                "transfers": one.transfers, "conflicts": one.conflicts, "seconds": one.seconds,
                "p50_us": one.p50, "p99_us": one.p99,
            });
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    let mut table = Table::new([
        "store",
        "accounts",
        "threads",
        "k transfers/s",
        "from",
        "to",
        "conflicts/transfer",
        "p50 us",
        "p99 us",
    ]);
    let mut seen = Vec::new();
    for one in all {
        let name = (one.accounts, one.threads, one.engine);
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let is_same = |other: &&Measured| (other.accounts, other.threads, other.engine) == name;
        let mut same: Vec<&Measured> = all.iter().filter(is_same).collect();
        same.sort_by(|a, b| a.kops().total_cmp(&b.kops()));
        let median = same[same.len() / 2];
        let (least, most) = (same[0].kops(), same[same.len() - 1].kops());
        table.row([
            one.engine.to_owned(),
            one.accounts.to_string(),
            one.threads.to_string(),
            short(median.kops()),
            short(least),
            short(most),
            short(per(median.conflicts, per(median.transfers.max(1), 1.0))),
            short(median.p50),
            short(median.p99),
        ]);
    }
    out.write_all(table.text().as_bytes())?;
    Ok(())
}

/// The key of an account.
fn key(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

/// The value of an account with this balance.
fn value(balance: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0x5a; VALUE_BYTES];
    value[..8].copy_from_slice(&balance.to_le_bytes());
    value
}

/// The balance in a value; an error if there is none.
fn balance_of(value: Option<&[u8]>) -> Result<u64> {
    let bytes = value.and_then(|value| value.first_chunk::<8>());
    bytes
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| Failure::wrong("an account is gone"))
}
