//! Statistics in the text format of Prometheus, for a program that serves them over HTTP.
//!
//! ```text
//!   # HELP chelonia_commits_total Commits since the open.
//!   # TYPE chelonia_commits_total counter
//!   chelonia_commits_total 123
//!   chelonia_keyspace_flushes_total{keyspace="people",engine="turtle"} 7
//! ```
//!
//! Names follow the conventions of Prometheus: base units (bytes, seconds), counters end with
//! `_total`. A counter begins at zero with each open, which Prometheus takes for a restart.

use super::stats::{KeyspaceStats, Stats};
use std::fmt::Write as _;

/// A metric of the database, or of one of its keyspaces.
struct Metric<T> {
    /// The name after `chelonia_` or `chelonia_keyspace_`.
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> f64,
}

/// As a floating-point number, which all values are in Prometheus.
#[expect(clippy::cast_precision_loss, reason = "the format has no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(nanos: u64) -> f64 {
    number(nanos) / 1e9
}

const OF_DATABASE: &[Metric<Stats>] = &[
    Metric {
        name: "memory_budget_bytes",
        help: "The memory budget.",
        value: |s| number(s.memory.budget_bytes),
    },
    Metric {
        name: "memory_used_bytes",
        help: "Memory in use, for all purposes together.",
        value: |s| number(s.memory.used_bytes),
    },
    Metric {
        name: "memory_held_bytes",
        help: "Memory taken from the system, in use or free for reuse.",
        value: |s| number(s.memory.held_bytes),
    },
    Metric {
        name: "memory_memtable_bytes",
        help: "Memory of memtables.",
        value: |s| number(s.memory.memtable_bytes),
    },
    Metric {
        name: "memory_cache_bytes",
        help: "Memory of cached blocks.",
        value: |s| number(s.memory.cache_bytes),
    },
    Metric {
        name: "memory_record_bytes",
        help: "Memory of cached records.",
        value: |s| number(s.memory.record_bytes),
    },
    Metric {
        name: "memory_work_bytes",
        help: "Memory of merges, open iterators and transactions.",
        value: |s| number(s.memory.work_bytes),
    },
    Metric {
        name: "memory_metadata_bytes",
        help: "Memory of tree nodes, open runs and other bookkeeping.",
        value: |s| number(s.memory.metadata_bytes),
    },
    Metric {
        name: "memory_log_bytes",
        help: "Memory of mapped log segments.",
        value: |s| number(s.memory.log_bytes),
    },
    Metric {
        name: "data_read_bytes_total",
        help: "Bytes read from the data file.",
        value: |s| number(s.io.data_bytes_read),
    },
    Metric {
        name: "data_written_bytes_total",
        help: "Bytes written to the data file.",
        value: |s| number(s.io.data_bytes_written),
    },
    Metric {
        name: "log_written_bytes_total",
        help: "Bytes written to the log.",
        value: |s| number(s.io.log_bytes_written),
    },
    Metric {
        name: "data_reads_total",
        help: "Reads of the data file.",
        value: |s| number(s.io.data_reads),
    },
    Metric {
        name: "data_writes_total",
        help: "Writes of the data file.",
        value: |s| number(s.io.data_writes),
    },
    Metric {
        name: "data_syncs_total",
        help: "Syncs of the data file.",
        value: |s| number(s.io.data_syncs),
    },
    Metric {
        name: "log_syncs_total",
        help: "Syncs of the log.",
        value: |s| number(s.io.log_syncs),
    },
    Metric {
        name: "cached_blocks",
        help: "Blocks in the cache.",
        value: |s| number(s.io.cached_blocks),
    },
    Metric {
        name: "cache_misses_total",
        help: "Blocks that were not in the cache and had to be read.",
        value: |s| number(s.io.cache_misses),
    },
    Metric {
        name: "cached_records",
        help: "Records in the cache.",
        value: |s| number(s.io.cached_records),
    },
    Metric {
        name: "record_fills_total",
        help: "Records added to the cache.",
        value: |s| number(s.io.record_fills),
    },
    Metric {
        name: "record_evictions_total",
        help: "Records evicted from the cache.",
        value: |s| number(s.io.record_evictions),
    },
    Metric {
        name: "data_file_bytes",
        help: "Length of the data file.",
        value: |s| number(s.disk.data_file_bytes),
    },
    Metric {
        name: "data_used_bytes",
        help: "Bytes of the data file in use.",
        value: |s| number(s.disk.data_used_bytes),
    },
    Metric {
        name: "data_allocated_bytes",
        help: "Bytes that the data file occupies on the device.",
        value: |s| number(s.disk.data_allocated_bytes),
    },
    Metric {
        name: "scratch_bytes",
        help: "Length of the temporary file of a read-only database.",
        value: |s| number(s.disk.scratch_bytes),
    },
    Metric {
        name: "retained_bytes",
        help: "Bytes held for snapshots, iterators and the last checkpoint.",
        value: |s| number(s.disk.retained_bytes),
    },
    Metric {
        name: "orphaned_bytes",
        help: "Bytes of damaged dropped keyspaces, free after the next open.",
        value: |s| number(s.disk.orphaned_bytes),
    },
    Metric {
        name: "log_file_bytes",
        help: "Length of all log files.",
        value: |s| number(s.disk.log_file_bytes),
    },
    Metric { name: "commits_total", help: "Commits.", value: |s| number(s.commits.commits) },
    Metric {
        name: "written_entries_total",
        help: "Writes in commits.",
        value: |s| number(s.commits.entries),
    },
    Metric {
        name: "written_user_bytes_total",
        help: "Bytes of keys and values in commits.",
        value: |s| number(s.commits.user_bytes),
    },
    Metric {
        name: "delayed_commits_total",
        help: "Commits delayed by back-pressure.",
        value: |s| number(s.commits.delayed),
    },
    Metric {
        name: "commit_delay_seconds_total",
        help: "Delays of commits by back-pressure.",
        value: |s| seconds(s.commits.delay_nanos),
    },
    Metric {
        name: "commit_delay_seconds_max",
        help: "The longest delay of a commit.",
        value: |s| seconds(s.commits.delay_nanos_max),
    },
    Metric {
        name: "would_block_total",
        help: "Commits that would have waited too long.",
        value: |s| number(s.commits.would_block),
    },
    Metric {
        name: "conflicts_total",
        help: "Transactions and swaps refused because of a conflict.",
        value: |s| number(s.commits.conflicts),
    },
    Metric {
        name: "tombstones_passed_total",
        help: "Tombstones that iterators passed over.",
        value: |s| number(s.scans.tombstones_passed),
    },
    Metric {
        name: "flushes_total",
        help: "Memtables flushed.",
        value: |s| number(s.background.flushes),
    },
    Metric {
        name: "checkpoints_total",
        help: "Checkpoints.",
        value: |s| number(s.background.checkpoints),
    },
    Metric {
        name: "jobs_planned_total",
        help: "Background jobs planned.",
        value: |s| number(s.background.jobs_planned),
    },
    Metric {
        name: "jobs_installed_total",
        help: "Background jobs whose result was installed.",
        value: |s| number(s.background.jobs_installed),
    },
    Metric {
        name: "jobs_dropped_total",
        help: "Background jobs whose result was thrown away.",
        value: |s| number(s.background.jobs_dropped),
    },
    Metric {
        name: "backlog_bytes",
        help: "Bytes of memtables that wait for a flush or are flushed.",
        value: |s| number(s.background.backlog_bytes),
    },
    Metric {
        name: "pins",
        help: "Open snapshots and iterators.",
        value: |s| number(s.background.pins as u64),
    },
    Metric {
        name: "oldest_pinned_seqno",
        help: "The oldest pinned sequence number, or the last one.",
        value: |s| number(s.background.oldest_pinned_seqno.unwrap_or(s.last_seqno)),
    },
    Metric {
        name: "scrub_passes_total",
        help: "Complete scrubs.",
        value: |s| number(s.scrub.passes),
    },
    Metric {
        name: "scrub_damaged_blocks_total",
        help: "Damaged blocks found by scrubbing.",
        value: |s| number(s.scrub.damaged_blocks),
    },
    Metric {
        name: "last_seqno",
        help: "The sequence number of the last visible write.",
        value: |s| number(s.last_seqno),
    },
];

const OF_KEYSPACE: &[Metric<KeyspaceStats>] = &[
    Metric {
        name: "memtable_bytes",
        help: "Memory of its memtables.",
        value: |s| number(s.memtable_bytes),
    },
    Metric {
        name: "checkpoint_distance_bytes",
        help: "The effective checkpoint distance.",
        value: |s| number(s.checkpoint_distance_bytes),
    },
    Metric { name: "flushes_total", help: "Memtables flushed.", value: |s| number(s.flushes) },
    Metric {
        name: "flushed_bytes_total",
        help: "Bytes of updates in flushed memtables.",
        value: |s| number(s.flushed_bytes),
    },
    Metric {
        name: "versions_held",
        help: "Versions in use.",
        value: |s| number(s.versions_held as u64),
    },
    Metric {
        name: "debt_bytes",
        help: "Bytes to be rewritten by background work.",
        value: |s| number(s.debt_bytes),
    },
    Metric {
        name: "height",
        help: "Height of its structure.",
        value: |s| f64::from(s.engine_stats.height),
    },
    Metric { name: "nodes", help: "Tree nodes.", value: |s| number(s.engine_stats.nodes) },
    Metric {
        name: "leaves",
        help: "Runs of the lowest level, or groups of pages.",
        value: |s| number(s.engine_stats.leaves),
    },
    Metric {
        name: "buffered_runs",
        help: "Runs above the leaves.",
        value: |s| number(s.engine_stats.buffered_runs),
    },
    Metric {
        name: "leaf_bytes",
        help: "Bytes of keys and inline values in leaves.",
        value: |s| number(s.engine_stats.leaf_bytes),
    },
    Metric {
        name: "buffered_bytes",
        help: "Bytes of keys and inline values above the leaves.",
        value: |s| number(s.engine_stats.buffered_bytes),
    },
    Metric {
        name: "disk_bytes",
        help: "Bytes of blocks of its newest version.",
        value: |s| number(s.engine_stats.disk_bytes),
    },
    Metric {
        name: "run_written_bytes_total",
        help: "Bytes written for runs and pages.",
        value: |s| number(s.engine_stats.run_bytes_written),
    },
    Metric {
        name: "node_written_bytes_total",
        help: "Bytes written for tree nodes.",
        value: |s| number(s.engine_stats.node_bytes_written),
    },
    Metric {
        name: "merge_read_bytes_total",
        help: "Bytes read by merges.",
        value: |s| number(s.engine_stats.merge_bytes_read),
    },
];

impl Stats {
    /// Returns the statistics in the text format of Prometheus, to be served over HTTP. Counters
    /// begin at zero with each open. Names of metrics may be added with any version.
    ///
    /// ```
    /// # let database = chelonia::Database::in_memory()?;
    /// # let people = database.keyspace("people", Default::default())?;
    /// people.insert("ada", "analyst")?;
    /// let text = database.stats().to_prometheus();
    /// assert!(text.contains("\nchelonia_commits_total 1\n"));
    /// assert!(text.contains("chelonia_keyspace_flushes_total{keyspace=\"people\","));
    /// # Ok::<(), chelonia::Error>(())
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        for metric in OF_DATABASE {
            head(&mut text, "chelonia", metric);
            let _ = writeln!(text, "chelonia_{} {}", metric.name, (metric.value)(self));
        }
        for metric in OF_KEYSPACE {
            head(&mut text, "chelonia_keyspace", metric);
            for keyspace in &self.keyspaces {
                let (name, engine) = (label(&keyspace.name), keyspace.engine);
                let value = (metric.value)(keyspace);
                let labels = format!("keyspace=\"{name}\",engine=\"{engine}\"");
                let _ = writeln!(text, "chelonia_keyspace_{}{{{labels}}} {value}", metric.name);
            }
        }
        text
    }
}

/// The lines before the values of a metric.
fn head<T>(text: &mut String, prefix: &str, metric: &Metric<T>) {
    let Metric { name, help, .. } = metric;
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}");
}

/// The text of a label: the format has three escapes.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
