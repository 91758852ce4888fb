//! Compression of a keyspace: which dictionary new runs get.
//!
//! ```text
//!   flush      a sample of the memtable's values -> does the dictionary fit them still?
//!                                                   no: one is made of a sample (`train`)
//!   new runs   get it, and a copy of it (`run/dictionary.rs`)
//!   merges     values of runs with the same dictionary stay as they are; others are decoded, and
//!              compressed anew
//! ```
//!
//! Nothing of this is stored: after an open the first flush makes a dictionary. Runs keep theirs,
//! and merges before that flush go on with the one that they find.
//!
//! Values are compressed one by one: with a dictionary of 4 KB a codec takes less space than for
//! blocks of 4 KiB without, and a reader decodes the value that it wants (`docs/performance.md`).

mod sample;
mod train;

use crate::base::error::Result;
use crate::base::stream::{Codec, Dictionary, NewValues, SortedUpdates};
use crate::memory::budget::Use;
use crate::options::compression::Compression;
use crate::run::DICTIONARY_BYTES_MAX;
use crate::runtime::sync::{AtomicU8, Mutex, Ordering};
use crate::storage::Storage;
use sample::Sample;

/// Bytes of the sample that shows whether a dictionary fits.
const PROBE_BYTES: usize = 32 << 10;

/// Bytes of the sample that a dictionary is made of.
const SAMPLE_BYTES: usize = 256 << 10;

/// A dictionary is looked for if values take this much of the space, in percent, that they took
/// when the one in use was chosen,
const WORSE_PERCENT: u64 = 115;

/// or if there are this many times as many bytes to take a sample of,
const LARGER_TIMES: u64 = 4;

/// or after this many flushes: values that no dictionary made smaller may be others by now.
const FLUSHES_MAX: u32 = 16;

/// Another dictionary replaces it if values take at most this much of the space then, in percent:
/// merges must compress all values anew.
const BETTER_PERCENT: u64 = 95;

/// The compression of a keyspace.
pub struct ValueCompression {
    mode: AtomicU8,
    fitted: Mutex<Option<Fitted>>,
}

/// The dictionary in use.
#[derive(Clone)]
struct Fitted {
    dictionary: Dictionary,
    /// How well it fitted when it was chosen: see [`Sample::permille`].
    permille: u64,
    /// Bytes of which the sample was taken that it was made of, or compared with; at most
    /// [`SAMPLE_BYTES`].
    sampled: u64,
    /// Flushes since.
    flushes: u32,
}

impl ValueCompression {
    /// Creates the state of a keyspace with this compression.
    #[must_use]
    pub fn new(mode: Compression) -> Self {
        Self { mode: AtomicU8::new(mode.number()), fitted: Mutex::default() }
    }

    /// Sets the compression of new runs.
    pub fn set(&self, mode: Compression) {
        self.mode.store(mode.number(), Ordering::Relaxed);
    }

    /// The compression of new runs.
    #[must_use]
    pub fn mode(&self) -> Compression {
        Compression::from_number(self.mode.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// The dictionary for new runs, if there is one yet.
    #[must_use]
    pub fn current(&self) -> Option<Dictionary> {
        self.fitted.lock().as_ref().map(|fitted| fitted.dictionary.clone())
    }

    /// How new runs store values, if they get this dictionary.
    #[must_use]
    pub fn values<'a>(&self, dictionary: Option<&'a Dictionary>) -> NewValues<'a> {
        match self.mode() {
            Compression::None => NewValues::Plain,
            Compression::Fast | Compression::Small => NewValues::Compressed(dictionary),
        }
    }

    /// The dictionary for a flush of `updates`: the one before, or another that fits them better.
    /// `None` without compression. Called by one thread at a time.
    pub fn for_flush(
        &self,
        updates: &dyn SortedUpdates,
        storage: &Storage,
    ) -> Result<Option<Dictionary>> {
        let Some(codec) = self.mode().codec() else { return Ok(None) };
        let before = self.fitted.lock().clone();
        let before = before.filter(|before| before.dictionary.codec() == codec);
        let next = fit(codec, before, updates, storage)?;
        let dictionary = next.dictionary.clone();
        *self.fitted.lock() = Some(next);
        Ok(Some(dictionary))
    }
}

/// The dictionary for a flush of `updates`: the one `before`, or another that fits them better.
fn fit(
    codec: Codec,
    before: Option<Fitted>,
    updates: &dyn SortedUpdates,
    storage: &Storage,
) -> Result<Fitted> {
    let probe = Sample::of(updates, PROBE_BYTES);
    let fits = before.as_ref().map(|before| probe.permille(&before.dictionary));
    let sampled = updates.bytes_before(updates.len()).min(SAMPLE_BYTES as u64);
    if let (Some(before), Some(now)) = (&before, fits) {
        let is_larger = sampled / LARGER_TIMES >= before.sampled.max(1);
        let is_worse = now * 100 > before.permille * WORSE_PERCENT;
        if probe.bytes().is_empty() || !(is_larger || is_worse || before.flushes >= FLUSHES_MAX) {
            return Ok(Fitted { flushes: before.flushes + 1, ..before.clone() });
        }
    }
    let made = storage.dictionaries().make(|| {
        let work = SAMPLE_BYTES + train::work_bytes(codec);
        let _charge = storage.budget().charge(Use::Work, work as u64);
        train::dictionary(codec, &Sample::of(updates, SAMPLE_BYTES), DICTIONARY_BYTES_MAX)
    })?;
    let permille = probe.permille(&made);
    Ok(match before.zip(fits) {
        Some((before, now)) if permille * 100 > now * BETTER_PERCENT => {
            Fitted { permille: now, sampled, flushes: 0, ..before }
        }
        _ => {
            let dictionary = storage.dictionaries().share(made);
            Fitted { dictionary, permille, sampled, flushes: 0 }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::stream::Update;

    /// Updates with these values.
    struct Values(Vec<Vec<u8>>);

    impl SortedUpdates for Values {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn key(&self, _: usize) -> &[u8] {
            b"key"
        }

        fn update(&self, index: usize) -> Update<'_> {
            Update::Put(&self.0[index])
        }

        fn bytes_before(&self, index: usize) -> u64 {
            self.0[..index].iter().map(|value| 3 + value.len() as u64).sum()
        }

        fn lower_bound(&self, _: &[u8]) -> usize {
            0
        }

        fn prefetch(&self, _: usize) {}

        fn prefetch_rest(&self, _: usize) {}
    }

    fn values(form: &str, count: u64) -> Values {
        let value = |number: u64| {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("{mixed:x}{}{mixed}", form.replace(' ', &(mixed % 1000).to_string())).into()
        };
        Values((0..count).map(value).collect())
    }

    const MODES: [Compression; 2] = [Compression::Fast, Compression::Small];

    #[test]
    fn a_dictionary_is_kept_while_it_fits_and_replaced_when_it_does_not() {
        let (storage, _) = Storage::testing(64 << 20);
        for mode in MODES {
            let compression = ValueCompression::new(mode);
            let next =
                |values: &Values| compression.for_flush(values, &storage).unwrap().unwrap().id();
            assert!(compression.current().is_none());
            let people = values("{\"first name\": ,\"last name\": ,\"occupation\": }", 4000);
            let places = values("<place latitude=\" \" longitude=\" \" altitude=\" \"/>", 4000);
            let first = next(&people);
            assert_eq!(compression.current().map(|current| current.id()), Some(first));
            for _ in 0..40 {
                assert_eq!(next(&people), first, "it fits");
            }
            assert_eq!(next(&Values(Vec::new())), first);
            let second = next(&places);
            assert_ne!(second, first);
            assert_eq!(next(&places), second);
            compression.set(Compression::None);
            assert!(compression.for_flush(&places, &storage).unwrap().is_none());
            assert!(matches!(compression.values(None), NewValues::Plain));
        }
    }

    #[test]
    fn another_compression_has_another_dictionary() {
        let (storage, _) = Storage::testing(64 << 20);
        let people = values("{\"first name\": ,\"last name\": ,\"occupation\": }", 4000);
        let compression = ValueCompression::new(Compression::Fast);
        let mut permille = Vec::new();
        for (mode, codec) in MODES.into_iter().zip(Codec::ALL) {
            compression.set(mode);
            let dictionary = compression.for_flush(&people, &storage).unwrap().unwrap();
            assert_eq!(dictionary.codec(), codec);
            permille.push(Sample::of(&people, PROBE_BYTES).permille(&dictionary));
            let counted = storage.budget().used_by(Use::Metadata);
            assert!(counted >= (dictionary.bytes().len() + codec.memory_bytes(1)) as u64);
        }
        assert!(permille[1] * 10 < permille[0] * 9, "{permille:?}");
    }

    #[test]
    fn a_dictionary_of_a_small_sample_or_of_noise_is_soon_replaced() {
        let (storage, _) = Storage::testing(64 << 20);
        for mode in MODES {
            let fits = |compression: &ValueCompression, values: &Values| {
                let dictionary = compression.for_flush(values, &storage).unwrap().unwrap();
                Sample::of(values, PROBE_BYTES).permille(&dictionary)
            };
            let people = values("{\"first name\": ,\"last name\": ,\"occupation\": }", 4000);
            let best = fits(&ValueCompression::new(mode), &people);
            assert!(best < 700, "{best}");
            let small = ValueCompression::new(mode);
            fits(&small, &values("x", 1));
            assert_eq!(fits(&small, &people), best, "a flush of one small value was before");
            let noisy = ValueCompression::new(mode);
            let noise = values("", 4000);
            fits(&noisy, &noise);
            let flushes = (0..40).take_while(|_| fits(&noisy, &people) > best).count();
            assert!(flushes <= 17, "{flushes}");
        }
    }

    #[test]
    fn any_sample_makes_a_dictionary() {
        let (storage, _) = Storage::testing(64 << 20);
        // Equal values, and such that begin as dictionaries of zstd do.
        let equal = Values(vec![vec![b'a'; 500]; 2000]);
        let begin = b"\x37\xa4\x30\xec and the same words in all of them, with a number: ";
        let number = |number: u32| [&begin[..], &number.to_le_bytes()].concat();
        let alike = Values((0..2000).map(number).collect());
        let few = Values((0..3).map(number).collect());
        for (mode, values) in
            MODES.iter().flat_map(|mode| [&equal, &alike, &few].map(|v| (mode, v)))
        {
            let compression = ValueCompression::new(*mode);
            let dictionary = compression.for_flush(values, &storage).unwrap().unwrap();
            let permille = Sample::of(values, PROBE_BYTES).permille(&dictionary);
            assert!(permille < 500 || values.0.len() == 3, "{mode:?} {permille}");
        }
    }
}
