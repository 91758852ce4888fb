//! Transfers on fjall, by its optimistic transactions.

use super::{BALANCE, Bank, Teller, balance_of, key, value};
use crate::failure::{Failure, Result};
use fjall::{KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, Readable};
use std::path::Path;

/// As much memory as the others have.
const CACHE_BYTES: u64 = 1 << 30;

struct Fjall {
    database: OptimisticTxDatabase,
    accounts: OptimisticTxKeyspace,
}

/// Makes a database.
pub fn open(path: &Path) -> Result<Box<dyn Bank>> {
    let builder = OptimisticTxDatabase::builder(path).cache_size(CACHE_BYTES);
    let database = builder.open().map_err(failed("open"))?;
    let accounts = database.keyspace("accounts", KeyspaceCreateOptions::default);
    Ok(Box::new(Fjall { accounts: accounts.map_err(failed("open"))?, database }))
}

fn failed(what: &'static str) -> impl Fn(fjall::Error) -> Failure {
    move |error| Failure::failed(what, error)
}

impl Bank for Fjall {
    fn teller(&self) -> Result<Box<dyn Teller + '_>> {
        Ok(Box::new(self))
    }
}

impl Teller for &Fjall {
    fn open_accounts(&mut self, accounts: std::ops::Range<u64>) -> Result<()> {
        for account in accounts {
            self.accounts.insert(key(account), value(BALANCE)).map_err(failed("insert"))?;
        }
        Ok(())
    }

    fn transfer(&mut self, from: u64, to: u64, amount: u64) -> Result<bool> {
        let mut transaction = self.database.write_tx().map_err(failed("begin"))?;
        for (account, change) in [(from, amount.wrapping_neg()), (to, amount)] {
            let old = transaction.get(&self.accounts, key(account)).map_err(failed("get"))?;
            let new = value(balance_of(old.as_deref())?.wrapping_add(change));
            transaction.insert(&self.accounts, key(account), new);
        }
        Ok(transaction.commit().map_err(failed("commit"))?.is_ok())
    }

    fn balance(&mut self, account: u64) -> Result<u64> {
        balance_of(self.accounts.get(key(account)).map_err(failed("get"))?.as_deref())
    }
}
