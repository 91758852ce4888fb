//! The items of a dump: nodes, their regions and pages.

use super::page_range;
use crate::base::dump::{DumpField, DumpItem, DumpVisitor};
use crate::base::error::Result;
use crate::base::ids::Extent;
use crate::base::keys::Direction;
use crate::engines::bminus::version::BminusVersion;

/// Sends the items of `version` to `out`.
pub(in crate::engines::bminus) fn describe(
    version: &BminusVersion,
    out: &mut dyn DumpVisitor,
) -> Result<()> {
    let directory = &version.parts.directory;
    for (index, listed) in directory.nodes.iter().enumerate() {
        let node = version.shared.node_cache.load_once(&listed.slot)?;
        let extent = listed.slot.reference().map(|reference| reference.extent);
        let first = listed.first.to_bytes();
        let [entries, _, bytes] = listed.facts.totals.fields();
        let fields = [
            ("extent", DumpField::extent(extent)),
            ("first_key", DumpField::Key(&first)),
            ("pages", DumpField::Number(node.pages.len() as u64)),
            ("homes", DumpField::Number(node.homes() as u64)),
            entries,
            bytes,
        ];
        out.item(&DumpItem { kind: "node", depth: 1, fields: &fields })?;
        for region in &node.regions {
            let fields = [
                ("extent", DumpField::extent(Some(region.owned().extent))),
                ("homes", DumpField::Number(region.homes() as u64)),
                ("page_blocks", DumpField::Number(u64::from(region.layout().page_blocks))),
            ];
            out.item(&DumpItem { kind: "region", depth: 2, fields: &fields })?;
        }
        for page in 0..node.pages.len() {
            let range = page_range(&node, page, &listed.first, directory.upper_of(index));
            let lower = range.start(Direction::Ascending).unwrap_or_default();
            let (region, home) = node.home_of(page);
            let home = Extent::new(region.number_of(home).0, region.layout().home_blocks());
            let fields =
                [("extent", DumpField::extent(Some(home))), ("first_key", DumpField::Key(lower))];
            out.item(&DumpItem { kind: "page", depth: 2, fields: &fields })?;
        }
    }
    Ok(())
}
