//! Accounts and transfers: money moves only if the account has it, and none is made or lost, with
//! any number of threads.
//!
//! ```text
//!   keyspace "accounts"    name -> balance, 8 bytes little-endian
//!   keyspace "transfers"   number, 8 bytes big-endian -> "from -> to: amount"
//! ```
//!
//! Each transfer is a transaction over both keyspaces. If another thread changed one of the two
//! accounts meanwhile, it is run again.
//!
//! Run it: `cargo run -p chelonia-examples --bin bank`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use chelonia::{Database, Error, ErrorKind, Keyspace, KeyspaceOptions, Result, Transaction};

const NAMES: [&str; 4] = ["ada", "alan", "edsger", "grace"];

fn balance(transaction: &Transaction, accounts: &Keyspace, name: &str) -> Result<u64> {
    let missing = || Error::new(ErrorKind::NotFound, format!("{name} has no account"));
    let bytes = transaction.get(accounts, name)?.ok_or_else(missing)?;
    Ok(bytes[..].try_into().map_or(0, u64::from_le_bytes))
}

/// Moves `amount` and records it; false if there is not enough.
fn transfer(database: &Database, from: &str, to: &str, amount: u64) -> Result<bool> {
    let accounts = database.keyspace("accounts", KeyspaceOptions::default())?;
    let transfers = database.keyspace("transfers", KeyspaceOptions::default())?;
    database.transact(|transaction| {
        let left = balance(transaction, &accounts, from)?.checked_sub(amount);
        let Some(left) = left else { return Ok(false) };
        transaction.insert(&accounts, from, left.to_le_bytes())?;
        let sum = balance(transaction, &accounts, to)? + amount;
        transaction.insert(&accounts, to, sum.to_le_bytes())?;
        let last = transaction.iter(&transfers).next_back().transpose()?;
        let number = last.map_or(0, |(key, _)| key[..].try_into().map_or(0, u64::from_be_bytes));
        let text = format!("{from} -> {to}: {amount}");
        transaction.insert(&transfers, (number + 1).to_be_bytes(), text)?;
        Ok(true)
    })
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir().map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot make a temporary directory: {error}"))
    })?;
    let database = Database::open(directory.path().join("bank"))?;
    let accounts = database.keyspace("accounts", KeyspaceOptions::default())?;
    for name in NAMES {
        accounts.insert(name, 1_000_u64.to_le_bytes())?;
    }
    let done: Vec<u64> = std::thread::scope(|scope| {
        let clerk = |clerk: usize| {
            let database = &database;
            move || -> Result<u64> {
                let mut done = 0;
                for round in 0..500_usize {
                    let (from, to) =
                        (NAMES[(clerk + round) % 4], NAMES[(clerk * 3 + round * 7) % 4]);
                    done += u64::from(transfer(database, from, to, (round % 400) as u64)?);
                }
                Ok(done)
            }
        };
        let clerks: Vec<_> = (0..4).map(|number| scope.spawn(clerk(number))).collect();
        let joined = clerks.into_iter().map(|one| one.join().expect("clerks do not panic"));
        joined.collect::<Result<_>>()
    })?;
    let check = database.transaction()?;
    let sum = NAMES.iter().map(|name| balance(&check, &accounts, name)).sum::<Result<u64>>()?;
    let transfers = database.keyspace("transfers", KeyspaceOptions::default())?;
    println!("four clerks made {} transfers", done.iter().sum::<u64>());
    println!("transfers recorded: {}, money in all accounts: {sum}", transfers.len()?);
    assert_eq!((transfers.len()?, sum), (done.iter().sum(), 4_000));
    Ok(())
}
