//! Transfers on Chelonia: transactions; or two updates of one key each, which are not atomic
//! together, to see what a transaction costs.

use super::{BALANCE, Bank, Teller, balance_of, key, value};
use crate::failure::{Failure, Result};
use chelonia::{Database, ErrorKind, Keyspace, KeyspaceOptions};
use std::path::Path;

/// Memory of the database: all accounts fit.
const MEMORY_BYTES: u64 = 1 << 30;

struct Chelonia {
    database: Database,
    accounts: Keyspace,
    has_transactions: bool,
}

/// A database whose transfers are transactions.
pub fn open_transactions(path: &Path) -> Result<Box<dyn Bank>> {
    open(path, true)
}

/// A database whose transfers are two updates.
pub fn open_updates(path: &Path) -> Result<Box<dyn Bank>> {
    open(path, false)
}

fn open(path: &Path, has_transactions: bool) -> Result<Box<dyn Bank>> {
    let opened = Database::builder(path).memory(MEMORY_BYTES).open();
    let database = opened.map_err(failed("open"))?;
    let accounts = database.keyspace("accounts", KeyspaceOptions::new()).map_err(failed("open"))?;
    Ok(Box::new(Chelonia { database, accounts, has_transactions }))
}

fn failed(what: &'static str) -> impl Fn(chelonia::Error) -> Failure {
    move |error| Failure::failed(what, error)
}

impl Bank for Chelonia {
    fn teller(&self) -> Result<Box<dyn Teller + '_>> {
        Ok(Box::new(self))
    }
}

impl Chelonia {
    fn transact(&self, from: u64, to: u64, amount: u64) -> chelonia::Result<()> {
        let mut transaction = self.database.transaction()?;
        let missing = || chelonia::Error::new(ErrorKind::NotFound, "an account is gone");
        let mut change = |account: u64, change: i64| {
            let old = transaction.get(&self.accounts, key(account))?;
            let old = balance_of(old.as_deref()).map_err(|_| missing())?;
            let new = value(old.wrapping_add_signed(change));
            transaction.insert(&self.accounts, key(account), new)
        };
        let amount = i64::try_from(amount).unwrap_or(0);
        change(from, -amount)?;
        change(to, amount)?;
        transaction.commit()
    }
}

impl Teller for &Chelonia {
    fn open_accounts(&mut self, accounts: std::ops::Range<u64>) -> Result<()> {
        let mut batch = self.database.batch();
        for account in accounts {
            batch.insert(&self.accounts, key(account), value(BALANCE));
        }
        batch.commit().map_err(failed("insert"))
    }

    fn transfer(&mut self, from: u64, to: u64, amount: u64) -> Result<bool> {
        if self.has_transactions {
            return match self.transact(from, to, amount) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
                Err(error) => Err(Failure::failed("transfer", error)),
            };
        }
        let balance = |old: Option<&[u8]>| balance_of(old).unwrap_or(0);
        let take = |old: Option<&[u8]>| Some(value(balance(old).wrapping_sub(amount)));
        let give = |old: Option<&[u8]>| Some(value(balance(old).wrapping_add(amount)));
        self.accounts.update(key(from), take).map_err(failed("transfer"))?;
        self.accounts.update(key(to), give).map_err(failed("transfer"))?;
        Ok(true)
    }

    fn balance(&mut self, account: u64) -> Result<u64> {
        balance_of(self.accounts.get(key(account)).map_err(failed("get"))?.as_deref())
    }
}
