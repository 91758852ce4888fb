//! The phases, with their names and operations.
//!
//! | phase | operations | records |
//! | --- | --- | --- |
//! | `load` | inserts of all records | each once, split over the threads |
//! | `a` | 50% updates, 50% gets | zipfian, scrambled |
//! | `b` | 5% updates, 95% gets | zipfian, scrambled |
//! | `c` | gets | zipfian, scrambled |
//! | `f` | 50% read-modify-write, 50% gets | zipfian, scrambled |
//! | `d` | 5% inserts, 95% gets | the latest are the most likely |
//! | `cu` | gets | uniform |
//! | `cm` | gets of keys that are not there | uniform |
//! | `e` | 95% scans of 1 to 100 records, 5% updates | uniform |
//! | `q` | a queue for each thread: insert at the tail, scan the head, delete the head | its own |
//! | `m` | gets of 64 records at a time | uniform |
//! | `o` | updates, two for each record that was loaded | uniform |
//! | `s1`, `s10`, `s100`, `s1k`, `s10k`, `s100k` | scans of 1 record, 10, and so on | uniform |
//!
//! In `m` an operation is a record that is read, so a call is 64 of them. In `q` each of the three
//! is an operation; deletes are reported as updates. A scan of `q` starts up to 1,000 deleted
//! entries before the head: a consumer that notes its place only now and then must pass what it
//! deleted. The queues are filled before the operations that are timed, and emptied after them.
//!
//! `o` runs only on request, because it takes longer than the load. It measures the space on disk
//! after nearly everything was overwritten. The phases of scans of one length also run only on
//! request; they measure the cost of a seek, and of each further record [Autumn 4.2], [SplinterDB
//! 6.5].

/// Updates of `o` for each record that was loaded: one in seven records keeps what was loaded.
pub const OVERWRITES: u64 = 2;

/// A phase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Inserts of all records.
    Load,
    /// Half updates, half gets.
    A,
    /// Few updates, many gets.
    B,
    /// Gets.
    C,
    /// Half read-modify-write, half gets.
    F,
    /// Few inserts, many gets of the latest.
    D,
    /// Uniform gets.
    Cu,
    /// Gets of absent keys.
    Cm,
    /// Scans and few updates.
    E,
    /// Queues.
    Q,
    /// Many gets in one call.
    M,
    /// Overwrites of nearly everything.
    O,
    /// Scans of 10 to the power of this number, at most 5, of records each.
    Scans(u8),
}

/// The names of [`Phase::Scans`].
const SCANS: [&str; 6] = ["s1", "s10", "s100", "s1k", "s10k", "s100k"];

impl Phase {
    /// All phases there are. The place of a phase is part of the seed of its streams: a new one
    /// comes last, so that the others do what they did.
    pub const ALL: [Phase; 18] = [
        Phase::Load,
        Phase::A,
        Phase::B,
        Phase::C,
        Phase::F,
        Phase::D,
        Phase::Cu,
        Phase::Cm,
        Phase::E,
        Phase::Q,
        Phase::M,
        Phase::O,
        Phase::Scans(0),
        Phase::Scans(1),
        Phase::Scans(2),
        Phase::Scans(3),
        Phase::Scans(4),
        Phase::Scans(5),
    ];

    /// The names of the phases that run if none are given, in their order.
    pub const BY_DEFAULT: &str = "load,a,b,c,f,d,cu,cm,e,q,m";

    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::A => "a",
            Phase::B => "b",
            Phase::C => "c",
            Phase::F => "f",
            Phase::D => "d",
            Phase::Cu => "cu",
            Phase::Cm => "cm",
            Phase::E => "e",
            Phase::Q => "q",
            Phase::M => "m",
            Phase::O => "o",
            Phase::Scans(power) => SCANS[usize::from(power)],
        }
    }

    /// The phase of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// True if a settle follows.
    pub fn writes(self) -> bool {
        !matches!(self, Phase::C | Phase::Cu | Phase::Cm | Phase::M) && self.scans().is_none()
    }

    /// The records of each scan, if it is made of such scans alone.
    pub fn scans(self) -> Option<u64> {
        match self {
            Phase::Scans(power) => Some(10_u64.pow(power.into())),
            _ => None,
        }
    }

    /// True if operations that are not timed come first: the caches must fill.
    pub fn warms_up(self) -> bool {
        matches!(self, Phase::A | Phase::B | Phase::C | Phase::F | Phase::D)
    }
}
