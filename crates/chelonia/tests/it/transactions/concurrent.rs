//! Threads whose transactions meet: sums, bounds and counts that hold only if each of them is as if
//! it were alone.

use super::open;
use crate::support::tiny_options;
use chelonia::internals::{Directory, MemoryDirectory, Rng};
use chelonia::{Database, KeyspaceOptions, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: u64 = 4;

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

#[test]
fn money_is_neither_made_nor_lost() {
    const ACCOUNTS: u64 = 20;
    let database = open();
    // Two keyspaces, one of which is flushed all the time.
    let banks = [KeyspaceOptions::new(), tiny_options()].map(|options| {
        database.keyspace(&format!("{}", options == tiny_options()), options).unwrap()
    });
    for account in 0..ACCOUNTS {
        banks.iter().for_each(|bank| bank.insert([account as u8], 100_u64.to_le_bytes()).unwrap());
    }
    let sum = |transaction: &Transaction| -> u64 {
        let entries = banks.iter().flat_map(|bank| transaction.iter(bank));
        entries.map(|entry| number(&entry.unwrap().1)).sum()
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, banks) = (&database, &banks);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..800 {
                    let [from, to] = [(); 2].map(|()| (rng.below(2), rng.below(ACCOUNTS) as u8));
                    let amount = rng.below(50);
                    database
                        .transact(|transaction| {
                            let bank = |place: (u64, u8)| &banks[place.0 as usize];
                            let old = number(&transaction.get(bank(from), [from.1])?.unwrap());
                            if let Some(left) = old.checked_sub(amount) {
                                transaction.insert(bank(from), [from.1], left.to_le_bytes())?;
                                let old = number(&transaction.get(bank(to), [to.1])?.unwrap());
                                let new = (old + amount).to_le_bytes();
                                transaction.insert(bank(to), [to.1], new)?;
                            }
                            Ok(())
                        })
                        .unwrap();
                    if round % 20 == 0 {
                        let reader = database.transaction().unwrap();
                        assert_eq!(sum(&reader), 2 * ACCOUNTS * 100);
                        reader.commit().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(sum(&database.transaction().unwrap()), 2 * ACCOUNTS * 100);
    assert!(database.stats().commits.conflicts > 0, "the threads met");
}

#[test]
fn a_bound_on_the_number_of_entries_holds() {
    const PLACES: usize = 300;
    let database = open();
    let guests = database.keyspace("guests", KeyspaceOptions::new()).unwrap();
    let entered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, guests, entered) = (&database, &guests, &entered);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                loop {
                    let is_in = database
                        .transact(|transaction| {
                            // A prefix that is empty at first, and keys on either side of it.
                            if transaction.prefix(guests, "in/").count() >= PLACES {
                                return Ok(false);
                            }
                            let key = format!("in/{:x}", rng.next_u64());
                            transaction.insert(guests, key, "")?;
                            transaction.insert(guests, format!("log/{thread}"), "")?;
                            Ok(true)
                        })
                        .unwrap();
                    if !is_in {
                        break;
                    }
                    entered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(entered.into_inner() as usize, PLACES);
    assert_eq!(guests.prefix("in/").count(), PLACES);
}

#[test]
fn every_job_is_taken_by_one_consumer() {
    const JOBS: u64 = 1_500;
    let database = open();
    let (jobs, done) = (
        database.keyspace("jobs", tiny_options()).unwrap(),
        database.keyspace("done", KeyspaceOptions::new()).unwrap(),
    );
    let take = |database: &Database| {
        database.transact(|transaction| {
            let Some(job) = transaction.iter(&jobs).next().transpose()? else { return Ok(None) };
            transaction.remove(&jobs, &job.0)?;
            assert!(!transaction.contains_key(&done, &job.0)?, "taken twice");
            transaction.insert(&done, &job.0, "")?;
            Ok(Some(job))
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..JOBS {
                jobs.insert(number.to_be_bytes(), [1; 30]).unwrap();
            }
        });
        for _ in 1..THREADS {
            scope.spawn(|| {
                let mut taken = 0;
                while done.size_of("all").unwrap().is_none() {
                    let job = take(&database).unwrap();
                    taken += u64::from(job.is_some());
                    if job.is_none() && done.len().unwrap() == JOBS {
                        done.insert("all", "").unwrap();
                    }
                }
                assert!(taken <= JOBS);
            });
        }
    });
    assert_eq!((jobs.len().unwrap(), done.len().unwrap()), (0, JOBS + 1));
}

#[test]
fn no_update_of_a_counter_is_lost() {
    const ROUNDS: u64 = 3_000;
    let database = open();
    let counters = database.keyspace("counters", tiny_options()).unwrap();
    let add = |old: Option<&[u8]>| Some((old.map_or(0, number) + 1).to_le_bytes());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (counters, database) = (&counters, &database);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    match round % 3 {
                        0 => drop(counters.update("shared", add).unwrap()),
                        1 => loop {
                            let old = counters.get("shared").unwrap();
                            let new = add(old.as_deref()).unwrap();
                            let old = old.as_deref();
                            if counters.compare_and_swap("shared", old, Some(&new)).unwrap() {
                                break;
                            }
                        },
                        _ => database
                            .transact(|transaction| {
                                let old = transaction.get(counters, "shared")?;
                                let new = add(old.as_deref()).unwrap();
                                transaction.insert(counters, "shared", new)
                            })
                            .unwrap(),
                    }
                    // Others' keys are no conflict.
                    counters.update(format!("own {thread}"), add).unwrap();
                }
            });
        }
    });
    assert_eq!(number(&counters.get("shared").unwrap().unwrap()), THREADS * ROUNDS);
    for thread in 0..THREADS {
        let own = counters.get(format!("own {thread}")).unwrap().unwrap();
        assert_eq!(number(&own), ROUNDS);
    }
}

#[test]
fn one_thread_at_a_time_has_a_lock_made_of_compare_and_swap() {
    let database = open();
    let locks = database.keyspace("locks", KeyspaceOptions::new()).unwrap();
    let inside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (locks, inside) = (&locks, &inside);
            scope.spawn(move || {
                let name = [thread as u8];
                for _ in 0..300 {
                    while !locks.compare_and_swap("lock", None, Some(&name)).unwrap() {
                        std::thread::yield_now();
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(locks.compare_and_swap("lock", Some(&name), None).unwrap());
                }
            });
        }
    });
    assert!(locks.is_empty().unwrap());
}

#[test]
fn updates_and_transactions_get_through_beside_a_flood_of_writes() {
    let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    let builder = Database::builder("memory").memory(32 << 20);
    let builder = builder.internals(|internals| internals.directory = Some(directory));
    let database = builder.open().unwrap();
    let counters = database.keyspace("counters", KeyspaceOptions::new()).unwrap();
    let flooded = database.keyspace("flooded", KeyspaceOptions::new()).unwrap();
    let (is_done, mut rounds) = (AtomicBool::new(false), 0);
    let add = |old: Option<&[u8]>| Some((old.map_or(0, number) + 1).to_le_bytes());
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (flooded, is_done) = (&flooded, &is_done);
            scope.spawn(move || {
                // Long keys: more in a moment than are remembered.
                for number in 0_u64.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let number = (number * 4 + thread) % 20_000;
                    let key = [&[7; 2_000][..], &number.to_be_bytes()].concat();
                    flooded.insert(key, "").unwrap();
                }
            });
        }
        // Until writers have waited for flushes several times.
        while rounds < 300 || database.stats().background.flushes < 12 {
            rounds += 1;
            counters.update("one", add).unwrap();
            database
                .transact(|transaction| {
                    let old = transaction.get(&counters, "one")?;
                    let new = add(old.as_deref()).unwrap();
                    transaction.insert(&counters, "one", new)
                })
                .unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(number(&counters.get("one").unwrap().unwrap()), 2 * rounds);
    assert!(database.stats().commits.delayed > 0, "no commit waited");
}
