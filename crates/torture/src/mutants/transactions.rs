//! Mutants in transactions and in updates of one key.

use super::Mutant;

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "reads-unchecked",
        bug: "a key that was read may change before the commit (lost updates, write skew)",
        file: "api/transaction/reads.rs",
        text: "        if reads.keys.contains(key) {\n            return true;",
        instead: "        if reads.keys.contains(key) {\n            return false;",
    },
    Mutant {
        name: "phantoms-ignored",
        bug: "keys may be inserted into a range that was read (PostgreSQL before 9.1)",
        file: "api/transaction/reads.rs",
        text: "        begun > 0 && reads.ranges[begun - 1].admits(key)\n",
        instead: "        let _ = begun;\n        false\n",
    },
    Mutant {
        name: "range-end-unread",
        bug: "a scan that found nothing more does not count what it passed at its end",
        file: "api/transaction/iter.rs",
        text: "                Some(Err(_)) | None => reads.complete(read, &self.range),\n",
        instead: "                Some(Err(_)) | None => {}\n",
    },
    Mutant {
        name: "last-commits-unchecked",
        bug: "commits that come between the check and the commit are overlooked",
        file: "api/transaction/commit.rs",
        text: "            Checked::Changed(keyspace) => Err(self.conflict(keyspace)),\n",
        instead: "            Checked::Changed(_) => Ok(()),\n",
    },
    Mutant {
        name: "dropped-keys-forgotten",
        bug: "a long transaction does not notice that the keys of old commits were dropped",
        file: "versions/recent_writes.rs",
        text: "            self.missing = self.missing.max(chunk.last);\n",
        instead: "",
    },
    Mutant {
        name: "read-again-trusted",
        bug: "a long transaction reads its keys again and does not compare them",
        file: "api/transaction/commit.rs",
        text: "            if before.get(&keyspace, key)? != now.get(&keyspace, key)? {\n",
        instead: "            let _ = (before.get(&keyspace, key)?, now.get(&keyspace, key)?);\n\
                  if false {\n",
    },
    Mutant {
        name: "swap-unchecked",
        bug: "an update of one key overwrites what was written since it read the key",
        file: "api/transaction/swap.rs",
        text: "            Checked::Changed(_) | Checked::Unknown => Err(self.conflict()),",
        instead: "            Checked::Changed(_) => Ok(()),\n\
                  Checked::Unknown => Err(self.conflict()),",
    },
    Mutant {
        name: "savepoint-keeps-new-keys",
        bug: "a rollback to a savepoint leaves keys that had no update before",
        file: "api/transaction/updates.rs",
        text: "            let undone = self.replace(keyspace, &key, before);\n",
        instead: "            let undone = match before {\n\
                  None => self.of(self.keyspaces[keyspace].0.id).unwrap().get(&key[..]).cloned(),\n\
                  before => self.replace(keyspace, &key, before),\n};\n",
    },
];
