//! The structure of a database, item by item ([`crate::Database::dump`]).

use crate::base::dump::{DumpField, DumpItem, DumpVisitor};
use crate::base::error::Result;
use crate::base::logs::LogMark;
use crate::engine::{EngineOptions, LevelOptions};
use crate::state::core::Core;
use crate::state::keyspace::KeyspaceCore;
use crate::storage::data_file::superblock::{CatalogLocation, Superblock};

type Field<'a> = (&'static str, DumpField<'a>);

impl Core {
    /// Implements [`crate::Database::dump`].
    pub fn dump(&self, out: &mut dyn DumpVisitor) -> Result<()> {
        superblock(&self.storage.superblock(), out)?;
        for keyspace in self.all_keyspaces() {
            let view = keyspace.current_view();
            options(&keyspace, out)?;
            let keys = view.buffers.iter().map(|buffer| buffer.memtable.len_estimate()).sum();
            let fields = [("keys_estimate", DumpField::Number(keys))];
            out.item(&DumpItem { kind: "memtable", depth: 1, fields: &fields })?;
            view.version.version().describe(out)?;
        }
        Ok(())
    }
}

fn superblock(superblock: &Superblock, out: &mut dyn DumpVisitor) -> Result<()> {
    let Superblock { salt, generation, opens, catalog, log, file_blocks } = superblock;
    let fields: [Field<'_>; 4] = [
        ("generation", DumpField::Number(*generation)),
        ("opens", DumpField::Number((*opens).into())),
        ("file_blocks", DumpField::Number(*file_blocks)),
        ("salt", DumpField::Number(*salt)),
    ];
    out.item(&DumpItem { kind: "superblock", depth: 0, fields: &fields })?;
    let fields: &[Field<'_>] = match catalog {
        Some(CatalogLocation { extent, generation, bytes }) => &[
            ("extent", DumpField::extent(Some(*extent))),
            ("generation", DumpField::Number(generation.0)),
            ("bytes", DumpField::Number((*bytes).into())),
        ],
        None => &[("extent", DumpField::Missing)],
    };
    out.item(&DumpItem { kind: "catalog", depth: 1, fields })?;
    let LogMark { begin, durable, seqno } = log;
    for (begin, durable) in begin.iter().zip(durable.iter()) {
        let fields: [Field<'_>; 4] = [
            ("lsn", DumpField::Number(begin.lsn.0)),
            ("seqno", DumpField::Number(seqno.0)),
            ("chain", DumpField::Number(begin.chain.into())),
            ("durable", DumpField::Number(durable.0)),
        ];
        out.item(&DumpItem { kind: "log", depth: 1, fields: &fields })?;
    }
    Ok(())
}

fn options(keyspace: &KeyspaceCore, out: &mut dyn DumpVisitor) -> Result<()> {
    let stored = keyspace.stored_options();
    let filter = format!("{:?}", stored.filter).to_ascii_lowercase();
    let mut fields: Vec<Field<'_>> = vec![
        ("id", DumpField::Number(keyspace.id.0.into())),
        ("name", DumpField::Name(&keyspace.name)),
        ("engine", DumpField::Word(stored.engine.kind().name())),
        ("filter", DumpField::Word(&filter)),
        ("filter_bits_per_key", DumpField::Number(stored.filter_bits_per_key.into())),
        ("checkpoint_distance", DumpField::number(stored.checkpoint_distance)),
        ("compression", DumpField::Word(stored.compression.name())),
    ];
    match stored.engine {
        EngineOptions::Turtle(options) => fields.extend([
            ("leaf_bytes", DumpField::number(options.leaf_bytes.map(u64::from))),
            ("pivots_max", DumpField::number(options.pivots_max.map(u64::from))),
        ]),
        EngineOptions::Splinter(options) => fields.extend([
            ("branch_bytes", DumpField::number(options.branch_bytes.map(u64::from))),
            ("fanout", DumpField::number(options.fanout.map(u64::from))),
            ("space_percent", DumpField::number(options.space_percent.map(u64::from))),
        ]),
        EngineOptions::Treeline(options) => fields.extend([
            ("group_pages", DumpField::number(options.group_pages.map(u64::from))),
            ("fill_percent", DumpField::number(options.fill_percent.map(u64::from))),
            ("epsilon_percent", DumpField::number(options.epsilon_percent.map(u64::from))),
            ("forecast_rounds", DumpField::number(options.forecast_rounds.map(u64::from))),
        ]),
        EngineOptions::Bminus(options) => fields.extend([
            ("page_bytes", DumpField::number(options.page_bytes.map(u64::from))),
            ("segment_bytes", DumpField::number(options.segment_bytes.map(u64::from))),
            ("delta_bytes", DumpField::number(options.delta_bytes.map(u64::from))),
            ("shadow", options.shadow.map_or(DumpField::Missing, DumpField::Flag)),
        ]),
        EngineOptions::Autumn(options) => {
            let LevelOptions {
                size_ratio,
                scaling_percent,
                dynamic_sizes,
                allocate_filters_by_level,
            } = options.levels.unwrap_or_default();
            fields.extend([
                ("table_bytes", DumpField::number(options.table_bytes.map(u64::from))),
                ("size_ratio", DumpField::Number(size_ratio.into())),
                ("scaling_percent", DumpField::Number(scaling_percent.into())),
                ("dynamic_sizes", DumpField::Flag(dynamic_sizes)),
                ("allocate_filters_by_level", DumpField::Flag(allocate_filters_by_level)),
            ]);
        }
    }
    out.item(&DumpItem { kind: "keyspace", depth: 0, fields: &fields })
}
