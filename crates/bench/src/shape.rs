//! The shape of the levels of an engine that has them, and the memory of filters: options of our
//! own engines that are measured against each other.

use crate::failure::{Failure, Result};
use chelonia::{
    AutumnOptions, BminusOptions, EngineKind, EngineOptions, FilterKind, LevelOptions, LogLayout,
    SplinterOptions, TreelineOptions,
};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::ffi::OsString;

/// The kinds of filters of our engines.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Filter {
    Bloom,
    Quotient,
}

/// The shape of levels; an option that is not given has the library's default.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Engines with levels: the ratio between the sizes of the last two (T)
    #[arg(long, value_name = "T")]
    pub size_ratio: Option<u32>,
    /// Engines with levels: 100 c; each ratio of levels is 1/c times the one below
    #[arg(long, value_name = "PERCENT")]
    pub scaling: Option<u32>,
    /// Engines with levels: each is a part of what the last one really holds
    #[arg(long)]
    pub relative_levels: bool,
    /// Engines with levels: filters of all levels have the same bits per key
    #[arg(long)]
    pub uniform_filters: bool,
    /// Our engines: bits of filters per key, 0 for none [default: 16]
    #[arg(long, value_name = "N")]
    pub filter_bits: Option<u32>,
    /// Our engines: the kind of filters [default: bloom]
    #[arg(long, value_name = "KIND")]
    pub filter: Option<Filter>,
    /// Our engines: logs, of which a thread writes to one; 1 for one that they share [default: 1]
    #[arg(long, value_name = "N")]
    pub logs: Option<u32>,
    /// Our engines: every sync begins a block of the log
    #[arg(long, conflicts_with = "logs")]
    pub sparse_log: bool,
    /// Engine splinter: the space of a leaf, in percent of its merged entries [default: 160]
    #[arg(long, value_name = "PERCENT")]
    pub space_percent: Option<u32>,
    /// Engine treeline: pages of a group [default: 16]
    #[arg(long, value_name = "N")]
    pub group_pages: Option<u32>,
    /// Engine treeline: filled part of a new page, in percent [default: 85]
    #[arg(long, value_name = "PERCENT")]
    pub fill_percent: Option<u32>,
    /// Engine treeline: error of linear models, in percent of a page; 0 for keys [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub epsilon_percent: Option<u32>,
    /// Engine treeline: rounds of sweeps for which inserts are forecast [default: 0]
    #[arg(long, value_name = "N")]
    pub forecast_rounds: Option<u32>,
    /// Engine bminus: bytes of a page [default: 8192]
    #[arg(long, value_name = "BYTES")]
    pub page_bytes: Option<u32>,
    /// Engine bminus: bytes of a segment [default: 128]
    #[arg(long, value_name = "BYTES")]
    pub segment_bytes: Option<u32>,
    /// Engine bminus: changed bytes up to which a delta is written, 0 for none [default: 2048]
    #[arg(long, value_name = "BYTES")]
    pub delta_bytes: Option<u32>,
    /// Engine bminus: the baseline, which writes every changed page to another place
    #[arg(long)]
    pub no_shadow: bool,
}

impl Shape {
    /// The levels that follow; none if nothing is said of them.
    pub fn levels(&self) -> Option<LevelOptions> {
        let Self { size_ratio, scaling, relative_levels, uniform_filters, .. } = *self;
        let is_given =
            size_ratio.is_some() || scaling.is_some() || relative_levels || uniform_filters;
        let usual = LevelOptions::default();
        is_given.then(|| {
            usual
                .size_ratio(size_ratio.unwrap_or(usual.size_ratio))
                .scaling_percent(scaling.unwrap_or(usual.scaling_percent))
                .dynamic_sizes(relative_levels)
                .allocate_filters_by_level(!uniform_filters)
        })
    }

    /// An engine with the levels or the space that follow, if anything is said of them.
    pub fn engine(&self, kind: EngineKind) -> EngineOptions {
        match (kind, self.levels(), self.space_percent) {
            (EngineKind::Autumn, Some(levels), _) => AutumnOptions::new().levels(levels).into(),
            (EngineKind::Splinter, _, Some(percent)) => {
                SplinterOptions::new().space_percent(percent).into()
            }
            (EngineKind::Treeline, ..) => {
                let mut options = TreelineOptions::new();
                options.group_pages = self.group_pages;
                options.fill_percent = self.fill_percent;
                options.epsilon_percent = self.epsilon_percent;
                options.forecast_rounds = self.forecast_rounds;
                options.into()
            }
            (EngineKind::Bminus, ..) => {
                let mut options = BminusOptions::new();
                options.page_bytes = self.page_bytes;
                options.segment_bytes = self.segment_bytes;
                options.delta_bytes = self.delta_bytes;
                options.shadow = self.no_shadow.then_some(false);
                options.into()
            }
            _ => kind.into(),
        }
    }

    /// How threads share the log.
    pub fn log_layout(&self) -> LogLayout {
        match self.logs {
            _ if self.sparse_log => LogLayout::Sparse,
            None | Some(1) => LogLayout::Shared,
            Some(logs) => LogLayout::PerThread { logs: logs as usize },
        }
    }

    /// The kind of filters, and its name in results.
    pub fn filters(&self) -> (FilterKind, &'static str) {
        match self.filter {
            Some(Filter::Quotient) => (FilterKind::Quotient, "quotient"),
            Some(Filter::Bloom) | None => (FilterKind::Bloom, "Bloom"),
        }
    }

    /// Fails if the store `name` has not what is given.
    pub fn check_for(&self, name: &str) -> Result<()> {
        let refuse = |option: &str, who: &str| {
            Err(Failure::usage(format!("{option}: for {who} alone, which {name} is not")))
        };
        let engine = EngineKind::from_name(name);
        let of_log = self.logs.is_some() || self.sparse_log;
        let of_ours = self.filter_bits.is_some() || self.filter.is_some() || of_log;
        if of_ours && engine.is_none() {
            let options = "--filter-bits, --filter, --logs, --sparse-log";
            return refuse(options, "engines of ours");
        }
        if self.levels().is_some() && !engine.is_some_and(EngineKind::has_levels) {
            let option = "--size-ratio, --scaling, --relative-levels, --uniform-filters";
            return refuse(option, "engines with levels");
        }
        if self.space_percent.is_some() && engine != Some(EngineKind::Splinter) {
            return refuse("--space-percent", "engine splinter");
        }
        let of_pages =
            [self.group_pages, self.fill_percent, self.epsilon_percent, self.forecast_rounds];
        if of_pages.iter().any(Option::is_some) && engine != Some(EngineKind::Treeline) {
            let option = "--group-pages, --fill-percent, --epsilon-percent, --forecast-rounds";
            return refuse(option, "engine treeline");
        }
        let of_homes = [self.page_bytes, self.segment_bytes, self.delta_bytes];
        let of_homes = of_homes.iter().any(Option::is_some) || self.no_shadow;
        if of_homes && engine != Some(EngineKind::Bminus) {
            let option = "--page-bytes, --segment-bytes, --delta-bytes, --no-shadow";
            return refuse(option, "engine bminus");
        }
        Ok(())
    }

    /// The same as it is written on a command line.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        for (name, value) in [
            ("--size-ratio", self.size_ratio),
            ("--scaling", self.scaling),
            ("--filter-bits", self.filter_bits),
            ("--logs", self.logs),
            ("--space-percent", self.space_percent),
            ("--group-pages", self.group_pages),
            ("--fill-percent", self.fill_percent),
            ("--epsilon-percent", self.epsilon_percent),
            ("--forecast-rounds", self.forecast_rounds),
            ("--page-bytes", self.page_bytes),
            ("--segment-bytes", self.segment_bytes),
            ("--delta-bytes", self.delta_bytes),
        ] {
            if let Some(value) = value {
                arguments.extend([name.into(), value.to_string().into()]);
            }
        }
        if let Some(filter) = self.filter.and_then(|filter| filter.to_possible_value()) {
            arguments.extend(["--filter".into(), filter.get_name().into()]);
        }
        for (name, is_on) in [
            ("--relative-levels", self.relative_levels),
            ("--uniform-filters", self.uniform_filters),
            ("--sparse-log", self.sparse_log),
            ("--no-shadow", self.no_shadow),
        ] {
            arguments.extend(is_on.then(|| name.into()));
        }
        arguments
    }

    /// Among the settings of a result; null if nothing is given.
    pub fn describe(&self) -> Value {
        if *self == Self::default() {
            return Value::Null;
        }
        json!({
            "size_ratio": self.size_ratio,
            "scaling_percent": self.scaling,
            "relative": self.relative_levels,
            "uniform_filters": self.uniform_filters,
            "filter_bits": self.filter_bits,
            "filter": self.filter.map(|_| self.filters().1),
            "logs": self.logs,
            "sparse_log": self.sparse_log,
            "space_percent": self.space_percent,
            "group_pages": self.group_pages,
            "fill_percent": self.fill_percent,
            "epsilon_percent": self.epsilon_percent,
            "forecast_rounds": self.forecast_rounds,
            "page_bytes": self.page_bytes,
            "segment_bytes": self.segment_bytes,
            "delta_bytes": self.delta_bytes,
            "no_shadow": self.no_shadow,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_store_does_not_have_are_refused() {
        let bits = Shape { filter_bits: Some(0), ..Shape::default() };
        let quotient = Shape { filter: Some(Filter::Quotient), ..Shape::default() };
        let logs = Shape { logs: Some(4), ..Shape::default() };
        let ratio = Shape { size_ratio: Some(3), ..Shape::default() };
        let space = Shape { space_percent: Some(130), ..Shape::default() };
        let delta = Shape { delta_bytes: Some(0), ..Shape::default() };
        let baseline = Shape { no_shadow: true, ..Shape::default() };
        for (shape, fitting, others) in [
            (bits, &["turtle", "autumn", "splinter"][..], &["rocksdb", "lmdb"][..]),
            (quotient, &["turtle", "splinter"], &["leveldb", "redb"]),
            (logs, &["turtle", "autumn"], &["rocksdb", "lmdb"]),
            (ratio, &["autumn"], &["turtle", "splinter", "rocksdb"]),
            (space, &["splinter"], &["turtle", "autumn", "rocksdb"]),
            (delta, &["bminus"], &["turtle", "treeline", "rocksdb"]),
            (baseline, &["bminus"], &["turtle", "treeline", "rocksdb"]),
            (Shape::default(), &["turtle", "lmdb"], &[]),
        ] {
            fitting.iter().for_each(|name| shape.check_for(name).unwrap());
            for name in others {
                let message = shape.check_for(name).unwrap_err().to_string();
                assert!(message.contains(name) && message.starts_with("--"), "{message}");
            }
        }
    }

    #[test]
    fn options_not_given_have_the_defaults_of_the_library() {
        assert_eq!(Shape::default().levels(), None);
        assert_eq!(Shape::default().describe(), Value::Null);
        let scaled = Shape { scaling: Some(40), ..Shape::default() };
        assert_eq!(scaled.levels(), Some(LevelOptions::new().scaling_percent(40)));
        assert_eq!(scaled.describe()["scaling_percent"], 40);
    }
}
