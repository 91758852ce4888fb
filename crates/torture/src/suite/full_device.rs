//! Devices that fill up in every way: by new keys, by overwrites and deletes under snapshots, by
//! large values, over several keyspaces, by foreign files. Then pins are dropped, everything is
//! deleted in some order, and the device is filled again.
//!
//! ```text
//!   fill -- overwrite, delete, large values, snapshots, a foreign file -- reopen? -- drop pins
//!    |  ^                                                                               |
//!    |  '------------------------ a few rounds <--- delete some, put some <-------------'
//!    '--> ... delete all in some order --> empty: fill again
//! ```
//!
//! Assertions: a delete is refused only while a snapshot is held or a foreign file occupies the
//! device; refused writes are accepted once the foreign file is gone; every error is `NoSpace`; an
//! open succeeds on a full device; the content equals that of a model, and the last places written
//! do at any time; at the end as much data fits as at first.
//!
//! The device is in memory and counts the blocks of every file, including the log. In three units
//! of four the committing thread does the background work and time is simulated, so the unit is
//! determined by its seed. The others use threads.

use crate::suite::support::{KINDS, below, compression_of, engines_of, layout_of, one_of};
use crate::test::{Tally, Target, Test, Unit};
use chelonia::internals::unreachable_blocks;
use chelonia::internals::{Clock, FaultDirectory, FaultPlan, MemoryDirectory, Rng};
use chelonia::{
    Database, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, LogLayout, Result, Snapshot,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The device size of the first units, those of the short profile; later devices are larger.
const DEVICE_BYTES_LEAST: u64 = 40 << 20;
const DEVICE_BYTES_MOST: u64 = 400 << 20;
const SHORT_UNITS: u64 = 18;

/// The memory budget.
const MEMORY: u64 = 32 << 20;

/// After everything was deleted, at least this part of the original data must fit again, in
/// percent.
const REFILLED_PERCENT: u64 = 90;

/// The same for `treeline`: new pages are filled to 85%, but pages that were divided are half full,
/// and its reclaiming sweeps updates into pages without packing those.
const REFILLED_PERCENT_STAGED: u64 = 75;

/// With threads, the number of further attempts to fill the device again: where they are in their
/// merges decides when a put is refused, and once these have ended there is space again.
const REFILLS_MAX: u32 = 3;

/// After one write in this many, and after each that is refused, the last places written are read.
const LOOK_ONE_IN: u64 = 32;

/// The number of these places.
const RECENT: usize = 32;

/// With threads, a write may be refused while the background reclaims space: the number of retries.
const TRIES: u32 = 400;

/// A unit is a device.
pub struct FullDevice;

impl Test for FullDevice {
    fn name(&self) -> &'static str {
        "full-device"
    }

    fn about(&self) -> &'static str {
        "fills devices in every way: deletes are accepted, and all space is usable afterwards"
    }

    fn short_units(&self) -> u64 {
        SHORT_UNITS
    }

    fn targets(&self) -> &'static [Target] {
        &[Target { what: "devices filled", count: 200 }]
    }

    fn run(&self, unit: Unit) -> Tally {
        let mut rng = unit.rng();
        let capacity = match unit.number {
            0..SHORT_UNITS => DEVICE_BYTES_LEAST,
            _ => DEVICE_BYTES_LEAST + rng.below(DEVICE_BYTES_MOST - DEVICE_BYTES_LEAST),
        };
        // The units with threads are of every engine in turn.
        let stepped = !(unit.number / KINDS + unit.number % KINDS).is_multiple_of(4);
        let mut life = Life::begin(unit.number, capacity, stepped, rng);
        life.live();
        life.tally.add("devices filled", 1);
        life.tally
    }
}

/// How keys are chosen, and the order of deletes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Ascending,
    Descending,
    Random,
}

const ORDERS: [Order; 3] = [Order::Ascending, Order::Descending, Order::Random];

/// The fill of a value, and its length.
type Stored = (u64, usize);

/// A key of the model: keyspace and number.
type Place = (usize, u64);

/// A database on its device, and its expected content.
struct Life {
    memory: MemoryDirectory,
    plan: FaultPlan,
    capacity: u64,
    stepped: bool,
    layout: LogLayout,
    database: Option<Database>,
    keyspaces: Vec<Keyspace>,
    /// The engines of its keyspaces, in turn.
    engines: Vec<EngineKind>,
    held: Vec<Snapshot>,
    model: BTreeMap<Place, Stored>,
    /// The last places written.
    recent: VecDeque<Place>,
    /// The length of most values.
    usual_bytes: usize,
    order: Order,
    next: u64,
    rng: Rng,
    tally: Tally,
}

impl Life {
    fn begin(unit: u64, capacity: u64, stepped: bool, mut rng: Rng) -> Self {
        let mut life = Self {
            memory: MemoryDirectory::new(),
            plan: FaultPlan::new(),
            capacity,
            stepped,
            layout: layout_of(unit / KINDS),
            database: None,
            keyspaces: Vec::new(),
            engines: engines_of(unit),
            held: Vec::new(),
            model: BTreeMap::new(),
            recent: VecDeque::new(),
            usual_bytes: one_of(&mut rng, &[700, 1_000, 1_000, 3_000]),
            order: one_of(&mut rng, &ORDERS),
            next: 0,
            rng,
            tally: Tally::default(),
        };
        life.open();
        let keyspaces = one_of(&mut life.rng, &[1, 1, 2, 4]);
        life.open_keyspaces(keyspaces.max(life.engines.len()));
        life
    }

    fn open(&mut self) {
        self.plan = FaultPlan::new();
        let inner = Arc::new(self.memory.clone());
        let directory = FaultDirectory::new(inner, self.plan.clone()).unwrap();
        self.plan.set_capacity(Some(self.capacity));
        self.open_in(directory);
    }

    fn open_in(&mut self, directory: FaultDirectory) {
        let stepped = self.stepped;
        let builder = Database::builder("device").memory(MEMORY).log_layout(self.layout);
        let builder = builder.internals(|internals| {
            internals.directory = Some(Arc::new(directory));
            internals.stepped = stepped;
            if stepped {
                internals.clock = Clock::manual();
            }
        });
        self.database = Some(builder.open().unwrap());
    }

    fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    fn open_keyspaces(&mut self, count: usize) {
        let open = |number: usize| {
            let engine = self.engines[number % self.engines.len()];
            let options = KeyspaceOptions::new().engine(engine);
            let options = options.compression(compression_of(engine, number as u64));
            self.database().keyspace(&format!("keyspace {number}"), options).unwrap()
        };
        self.keyspaces = (0..count).map(open).collect();
    }

    /// The life of a device, from empty to empty.
    fn live(&mut self) {
        let fitted = self.fill();
        for _ in 0..2 {
            for _ in 0..1 + self.rng.below(2) {
                self.strain();
            }
            if self.rng.one_in(3) {
                self.reopen();
            }
            self.held.clear();
            let percent = 30 + self.rng.below(60);
            self.delete(percent);
            self.put_some();
            self.check();
        }
        self.delete(100);
        assert!(self.model.is_empty());
        self.check();
        self.database().checkpoint().unwrap();
        assert_eq!(unreachable_blocks(self.database()).unwrap(), 0, "space is leaked");
        let percent = match self.engines.contains(&EngineKind::Treeline) {
            true => REFILLED_PERCENT_STAGED,
            false => REFILLED_PERCENT,
        };
        let mut again = self.fill();
        let refills = if self.stepped { 0 } else { REFILLS_MAX };
        for _ in 0..refills {
            if again >= fitted / 100 * percent {
                break;
            }
            self.database().checkpoint().unwrap();
            again += self.fill();
        }
        self.tally.add("bytes that fitted in", fitted);
        self.tally.add("bytes that fitted in again", again);
        assert!(
            again >= fitted / 100 * percent,
            "{fitted} bytes fitted in at first, {again} after all was deleted: {:?}",
            self.database().stats().disk
        );
        self.check();
    }

    /// Puts new keys until the device is full; returns the bytes of the accepted ones.
    fn fill(&mut self) -> u64 {
        let mut bytes = 0;
        loop {
            let length = self.usual_bytes;
            let place = self.new_place();
            if !self.put(place, length) {
                return bytes;
            }
            bytes += length as u64;
        }
    }

    /// A key that does not exist.
    fn new_place(&mut self) -> Place {
        self.next += 1;
        let number = match self.order {
            Order::Ascending => self.next,
            Order::Descending => u64::MAX - self.next,
            Order::Random => self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        (below(&mut self.rng, self.keyspaces.len()), number)
    }

    /// A key that exists, if there is one.
    fn old_place(&mut self) -> Option<Place> {
        let from = (below(&mut self.rng, self.keyspaces.len()), self.rng.next_u64());
        let next = self.model.range(from..).next().or_else(|| self.model.iter().next());
        next.map(|(place, _)| *place)
    }

    /// Fills the remaining space in one of several ways.
    fn strain(&mut self) {
        if self.rng.one_in(2) {
            self.held.push(self.database().snapshot());
        }
        let writes = self.model.len();
        match self.rng.below(5) {
            0 => self.overwrite(writes, self.usual_bytes),
            1 => self.overwrite(writes / 2, self.usual_bytes * 2),
            2 => {
                let length = one_of(&mut self.rng, &[40_000, 100_000, 300_000]);
                let most = 2 * self.capacity / length as u64;
                self.overwrite(usize::try_from(most).unwrap(), length);
            }
            3 => self.foreign_file_fills(),
            _ => {
                // Snapshots retain what is deleted: the device may be truly full.
                let deletes = writes / 2;
                self.delete_until_refused(deletes);
                self.overwrite(writes, self.usual_bytes);
            }
        }
        self.tally.add("strains", 1);
    }

    /// Overwrites `count` keys, or until the device is full.
    fn overwrite(&mut self, count: usize, length: usize) {
        for _ in 0..count {
            let Some(place) = self.old_place() else { return };
            if !self.put(place, length) {
                return;
            }
        }
    }

    /// Deletes `count` keys, or until the device is full.
    fn delete_until_refused(&mut self, count: usize) {
        for _ in 0..count {
            let Some(place) = self.old_place() else { return };
            if self.remove(place).is_err() {
                return;
            }
        }
    }

    /// A foreign file takes all free space, and more as the store returns some. Writes refused
    /// meanwhile are accepted once the file is gone.
    fn foreign_file_fills(&mut self) {
        let taken = self.plan.taken_bytes();
        let left = one_of(&mut self.rng, &[0, 8 << 10, 300 << 10]);
        self.plan.set_capacity(Some(taken.min(self.capacity) + left));
        self.overwrite(3_000, self.usual_bytes);
        let deletes = self.model.len() / 4;
        self.delete_until_refused(deletes);
        if self.rng.one_in(3) {
            let capacity = std::mem::replace(&mut self.capacity, self.plan.taken_bytes());
            self.held.clear();
            self.reopen();
            self.delete_until_refused(100);
            self.capacity = capacity;
        }
        self.plan.set_capacity(Some(self.capacity));
        if self.held.is_empty() {
            for _ in 0..10 {
                let Some(place) = self.old_place() else { return };
                self.remove_surely(place);
            }
        }
        self.tally.add("files of somebody", 1);
    }

    /// Dies, or closes, and opens on the same device.
    fn reopen(&mut self) {
        self.held.clear();
        self.check();
        let keyspaces = std::mem::take(&mut self.keyspaces).len();
        if self.rng.one_in(2) {
            // The files of a killed process.
            self.memory = MemoryDirectory::from_files(self.memory.to_files());
            drop(self.database.take());
        } else {
            // A close without space for its checkpoint retains the log, and returns an error.
            if let Err(error) = self.database.take().unwrap().close() {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            }
        }
        self.open();
        self.open_keyspaces(keyspaces);
        self.check();
        self.tally.add("opens", 1);
    }

    /// Deletes `percent` of all keys in some order. Without pins all deletes are accepted.
    fn delete(&mut self, percent: u64) {
        let mut places: Vec<Place> = self.model.keys().copied().collect();
        match one_of(&mut self.rng, &ORDERS) {
            Order::Ascending => {}
            Order::Descending => places.reverse(),
            Order::Random => self.shuffle(&mut places),
        }
        places.truncate(places.len() * usize::try_from(percent).unwrap() / 100);
        for place in places {
            self.remove_surely(place);
        }
    }

    fn shuffle(&mut self, places: &mut [Place]) {
        for at in (1..places.len()).rev() {
            places.swap(at, below(&mut self.rng, at + 1));
        }
    }

    /// Puts a few small values after many deletes: there is space for them.
    fn put_some(&mut self) {
        for number in 0..500 {
            let place = self.new_place();
            let is_accepted = self.put(place, 100);
            let stored: usize = self.model.values().map(|(_, length)| length).sum();
            let disk = self.database().stats().disk;
            assert!(is_accepted, "put {number} was refused with {stored} bytes stored: {disk:?}");
        }
    }

    /// Reads the last places written, now and then and after each refused write: a full device may
    /// leave a tree half way between two shapes, below a few new entries.
    fn note_write(&mut self, place: Place, is_accepted: bool) {
        if is_accepted {
            self.recent.truncate(RECENT - 1);
            self.recent.push_front(place);
            if !self.rng.one_in(LOOK_ONE_IN) {
                return;
            }
        }
        for place in &self.recent {
            let found = self.keyspaces[place.0].get(place.1.to_be_bytes()).unwrap();
            let expected = self.model.get(place).map(|stored| value(*stored));
            assert!(found.as_deref() == expected.as_deref(), "{place:?} has another value");
        }
        self.tally.add("reads", self.recent.len() as u64);
    }

    /// Puts a value; true if it was accepted.
    fn put(&mut self, place: Place, length: usize) -> bool {
        let stamp = self.rng.next_u64();
        let put = self.keyspaces[place.0].insert(place.1.to_be_bytes(), value((stamp, length)));
        match &put {
            Ok(()) => {
                self.model.insert(place, (stamp, length));
                self.tally.add("puts", 1);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                self.tally.add("puts refused", 1);
            }
        }
        self.note_write(place, put.is_ok());
        put.is_ok()
    }

    fn remove(&mut self, place: Place) -> Result<()> {
        let removed = self.keyspaces[place.0].remove(place.1.to_be_bytes());
        match &removed {
            Ok(()) => {
                self.model.remove(&place);
                self.tally.add("deletes", 1);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                self.tally.add("deletes refused", 1);
            }
        }
        self.note_write(place, removed.is_ok());
        removed
    }

    /// Deletes a key; the delete must be accepted.
    fn remove_surely(&mut self, place: Place) {
        let mut removed = self.remove(place);
        for _ in 0..TRIES {
            if removed.is_ok() || self.stepped {
                break;
            }
            std::thread::yield_now();
            removed = self.remove(place);
        }
        let left = self.model.len();
        removed.unwrap_or_else(|error| {
            panic!(
                "a delete was refused with {left} keys left: {error}; {:?}",
                self.database().stats().disk
            )
        });
    }

    /// Compares the content with the model, and runs `verify`.
    fn check(&mut self) {
        let mut expected = self.model.iter();
        for (number, keyspace) in self.keyspaces.iter().enumerate() {
            for entry in keyspace.iter() {
                let (key, found) = entry.unwrap();
                let (place, stored) = expected.next().expect("a deleted key is still there");
                assert_eq!((number, &*key), (place.0, place.1.to_be_bytes().as_slice()));
                assert!(*found == *value(*stored), "{place:?} has another value");
            }
        }
        assert_eq!(expected.next(), None, "a key is missing");
        let report = self.database().verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

/// The bytes of a value. Half of them can be compressed: of values that nearly vanish, the number
/// that fits on a device would be that of the blocks that happen to be half empty.
fn value((stamp, length): Stored) -> Vec<u8> {
    let mut value: Vec<u8> = stamp.to_le_bytes().iter().copied().cycle().take(length).collect();
    Rng::new(stamp).fill(&mut value[length / 2..]);
    value
}
