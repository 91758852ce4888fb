//! The items of a dump: staged memtables and their runs; nodes, groups and pages.

use super::page_range;
use crate::base::dump::{DumpField, DumpItem, DumpVisitor};
use crate::base::error::Result;
use crate::base::keys::Direction;
use crate::engines::treeline::node::Item;
use crate::engines::treeline::staged::Table;
use crate::engines::treeline::version::TreelineVersion;

/// Sends the items of `version` to `out`.
pub(in crate::engines::treeline) fn describe(
    version: &TreelineVersion,
    out: &mut dyn DumpVisitor,
) -> Result<()> {
    let parts = &version.parts;
    for (place, staged) in parts.staged.iter().enumerate() {
        let fields = [
            ("place", DumpField::Number(place as u64)),
            ("runs", DumpField::Number(staged.tables.len() as u64)),
            ("sinking", DumpField::Flag(place >= parts.first_sinking())),
        ];
        out.item(&DumpItem { kind: "staged", depth: 1, fields: &fields })?;
        staged.tables.iter().try_for_each(|table| run(table, out))?;
    }
    for listed in &parts.directory.nodes {
        let node = version.shared.node_cache.load_owned(&listed.slot)?;
        let extent = listed.slot.reference().map(|reference| reference.extent);
        let first = listed.first.to_bytes();
        let fields = [
            ("extent", DumpField::extent(extent)),
            ("first_key", DumpField::Key(&first)),
            ("groups", DumpField::Number(node.items.len() as u64)),
        ];
        out.item(&DumpItem { kind: "node", depth: 1, fields: &fields })?;
        node.items.iter().try_for_each(|item| group(item, out))?;
    }
    Ok(())
}

fn run(table: &Table, out: &mut dyn DumpVisitor) -> Result<()> {
    let (first, last) = (table.first.to_bytes(), table.last.to_bytes());
    let [entries, tombstones, bytes] = table.run.reference().totals().fields();
    let fields = [
        ("extent", DumpField::extent(Some(table.run.reference().extent))),
        ("first_key", DumpField::Key(&first)),
        ("last_key", DumpField::Key(&last)),
        entries,
        tombstones,
        bytes,
    ];
    out.item(&DumpItem { kind: "run", depth: 2, fields: &fields })
}

fn group(item: &Item, out: &mut dyn DumpVisitor) -> Result<()> {
    let group = &item.group;
    let first = item.first.to_bytes();
    let [entries, _, bytes] = group.totals.fields();
    let fields = [
        ("extent", DumpField::extent(Some(group.owned().extent))),
        ("first_key", DumpField::Key(&first)),
        ("pages", DumpField::Number(group.slots.len() as u64)),
        ("slots", DumpField::Number(group.place.slots() as u64)),
        entries,
        bytes,
    ];
    out.item(&DumpItem { kind: "group", depth: 2, fields: &fields })?;
    for page in 0..group.slots.len() {
        let range = page_range(item, page, None);
        let lower = range.start(Direction::Ascending).unwrap_or_default();
        let fields = [
            ("extent", DumpField::extent(Some(group.owned_page(page).extent))),
            ("first_key", DumpField::Key(lower)),
        ];
        out.item(&DumpItem { kind: "page", depth: 3, fields: &fields })?;
    }
    Ok(())
}
