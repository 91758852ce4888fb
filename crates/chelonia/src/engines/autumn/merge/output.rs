//! Output of an absorb or a merge: extents written, and extents the next version no longer refers
//! to.
//!
//! Extents are recorded at once (`structure/output.rs`). Workers share the output; builders are
//! recycled between them.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::BlockNo;
use crate::base::stream::{LargeRef, NewValues, Update};
use crate::engine::{OwnedExtent, Work};
use crate::engines::autumn::bounds::Edges;
use crate::engines::autumn::codec;
use crate::engines::autumn::counters::Counters;
use crate::engines::autumn::table::{
    Listed, NODE_KEY_BYTES, NODE_TABLES_MAX, NODE_TABLES_SMALL, Node, NodeCache, SHORT_BOUND_BYTES,
    Sequence, Table, owned_run,
};
use crate::engines::autumn::version::Next;
use crate::run::{RunBuilder, RunOptions, RunRef, WasCached, weight};
use crate::runtime::sync::{Arc, Mutex};
use crate::storage::block::DATA_FILE;
use crate::structure::{self, Ledger, NodeRef, events};
use std::collections::{BTreeMap, BTreeSet};

/// Output of one absorb or one merge.
pub(in crate::engines::autumn) struct Output<'t> {
    tree: structure::Output<'t, Node, Counters>,
    options: RunOptions,
    values: NewValues<'t>,
    builders: Mutex<Vec<RunBuilder>>,
}

/// Change of one sequence.
#[derive(Default)]
pub(in crate::engines::autumn) struct Change {
    /// Tables removed from the sequence.
    pub removed: Vec<Table>,
    /// Tables added to the sequence.
    pub added: Vec<Table>,
}

impl<'t> Output<'t> {
    /// Creates an empty output of `work`.
    pub fn new(
        node_cache: &'t NodeCache,
        counters: &'t Counters,
        options: RunOptions,
        work: &Work<'t>,
    ) -> Self {
        let tree = structure::Output::new(node_cache, (counters, &counters.node_bytes), work.quota);
        Self { tree, options, values: work.values, builders: Mutex::default() }
    }

    /// Returns a writer of tables with this many filter bits per key; return it with `give_back`.
    pub fn writer(&self, bits_per_key: u32) -> TableWriter<'_> {
        let recycled = self.builders.lock().pop();
        let mut builder =
            recycled.unwrap_or_else(|| RunBuilder::new(self.tree.storage(), self.options));
        builder.set_bits_per_key(bits_per_key);
        builder.set_values(self.values);
        TableWriter { builder, large: Vec::new(), output: self }
    }

    /// Takes back a writer that has no open table.
    pub fn give_back(&self, writer: TableWriter<'_>) {
        self.builders.lock().push(writer.builder);
    }

    /// Records extents, written elsewhere, that the next version refers to.
    pub fn gain(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.tree.gain(extents);
    }

    /// Records extents that the next version does not refer to.
    pub fn lose(&self, extents: impl IntoIterator<Item = OwnedExtent>) {
        self.tree.lose(extents);
    }

    /// Writes a sequence of these tables, which are in order.
    pub fn write_sequence(&self, tables: Vec<Table>) -> Result<Sequence> {
        let mut nodes = Vec::new();
        self.write_nodes(tables, &mut nodes)?;
        Ok(Sequence::new(nodes))
    }

    /// Applies `change` to the sequence `before`: writes only nodes that change, and neighbours
    /// that are joined with them.
    pub fn change(&self, before: &Sequence, change: Change) -> Result<Sequence> {
        let mut changes: BTreeMap<usize, Change> = BTreeMap::new();
        let node_of = |table: &Table| before.node_of(&table.first.to_bytes()).unwrap_or(0);
        for table in change.removed {
            changes.entry(node_of(&table)).or_default().removed.push(table);
        }
        for table in change.added {
            changes.entry(node_of(&table)).or_default().added.push(table);
        }
        let mut next = NextNodes { output: self, nodes: Vec::new(), open: Vec::new() };
        for (index, node) in before.nodes.iter().enumerate() {
            match changes.remove(&index) {
                Some(change) => next.take(node, change)?,
                None => next.pass(node)?,
            }
        }
        // Tables added to a sequence without nodes.
        for change in changes.into_values() {
            next.open.extend(change.added);
        }
        next.end()
    }

    /// Writes tables as nodes of similar size.
    fn write_nodes(&self, tables: Vec<Table>, nodes: &mut Vec<Listed>) -> Result<()> {
        if let Some(pair) = tables.windows(2).find(|pair| pair[0].last >= pair[1].first) {
            let offset = pair[1].run.reference().extent.offset();
            return Err(Error::corrupt("tables of one level overlap").at(DATA_FILE, offset));
        }
        let count = match tables.len() {
            0 => return Ok(()),
            few if few <= NODE_TABLES_MAX => 1,
            many => many.div_ceil(NODE_TABLES_MAX / 4 * 3),
        };
        let total = tables.len();
        let mut tables = tables.into_iter();
        for place in 0..count {
            let size = total * (place + 1) / count - total * place / count;
            self.write_part(tables.by_ref().take(size), nodes)?;
        }
        Ok(())
    }

    /// Writes these tables as one node, or as several if their keys take too much memory for one.
    fn write_part(
        &self,
        tables: impl Iterator<Item = Table>,
        nodes: &mut Vec<Listed>,
    ) -> Result<()> {
        let (mut open, mut bytes): (Vec<Table>, usize) = (Vec::new(), 0);
        for table in tables {
            let mut next = table.clone().beside(open.last());
            let mut more = next.key_bytes(open.last());
            let is_half = bytes > NODE_KEY_BYTES / 2 && table.first.len() <= SHORT_BOUND_BYTES;
            if !open.is_empty() && (is_half || bytes + more > NODE_KEY_BYTES) {
                nodes.push(self.write_node(std::mem::take(&mut open))?);
                next = table.beside(None);
                (bytes, more) = (0, next.key_bytes(None));
            }
            bytes += more;
            open.push(next);
        }
        if !open.is_empty() {
            nodes.push(self.write_node(open)?);
        }
        Ok(())
    }

    fn write_node(&self, tables: Vec<Table>) -> Result<Listed> {
        let node = Node::new(tables);
        let reference = self.tree.write(&codec::encode_node(&node))?;
        let first = node.tables[0].first.clone();
        let (totals, tables) = (node.totals(), node.tables.len());
        let slot = self.tree.node_cache.admit(Some(reference), (), node);
        Ok(Listed { first, slot, totals, tables: u32::try_from(tables).unwrap_or(u32::MAX) })
    }

    /// Writes the directory of the next version and retires the one at `before`. An empty tree has
    /// none.
    pub fn write_directory(&self, before: Option<NodeRef>, next: &Next) -> Result<Option<NodeRef>> {
        let is_empty = next.level0.is_empty() && next.levels.iter().all(|level| level.is_empty());
        let level0 = next.level0.iter().map(|sequence| &**sequence);
        let levels = next.levels.iter().map(|sequence| &**sequence);
        let bytes = (!is_empty).then(|| codec::Directory::encode(level0, next.sinking, levels));
        self.tree.replace_directory(before, bytes)
    }

    /// Returns the gained and lost extents of successful work.
    pub fn settle(self) -> (Vec<OwnedExtent>, Vec<OwnedExtent>) {
        let Ledger { gained, lost } = self.tree.into_ledger();
        (gained, lost)
    }

    /// Frees everything that failed work allocated. Continues after an error.
    pub fn roll_back(self) -> Result<()> {
        let storage = Arc::clone(self.tree.storage());
        self.tree.into_ledger().roll_back(&storage)
    }
}

/// A sequence under construction.
struct NextNodes<'o, 't> {
    output: &'o Output<'t>,
    nodes: Vec<Listed>,
    /// Tables behind the finished nodes that are in no node yet.
    open: Vec<Table>,
}

impl NextNodes<'_, '_> {
    /// Adds a node with changes. Tables may be inserted before a damaged node.
    fn take(&mut self, node: &Listed, change: Change) -> Result<()> {
        let gone = |table: &Table| table.run.reference().extent.start;
        let removed: BTreeSet<BlockNo> = change.removed.iter().map(gone).collect();
        let is_before = change.added.iter().all(|table| table.last < node.first);
        let Some(before) = self.load(node, removed.is_empty() && is_before)? else {
            self.open.extend(change.added);
            return self.keep(node);
        };
        self.output.lose(node.slot.reference().map(NodeRef::owned));
        let stays = before.tables.iter().filter(|table| !removed.contains(&gone(table))).cloned();
        let mut tables: Vec<Table> = stays.collect();
        if tables.len() + removed.len() != before.tables.len() {
            let offset = node.slot.reference().map_or(0, |place| place.extent.offset());
            return Err(
                Error::corrupt("a node does not match its directory entry").at(DATA_FILE, offset)
            );
        }
        tables.extend(change.added);
        tables.sort_by(|one, other| one.first.cmp(&other.first));
        self.open.extend(tables);
        Ok(())
    }

    /// Adds a node unchanged, unless it is joined with a few tables before it.
    fn pass(&mut self, node: &Listed) -> Result<()> {
        if (1..NODE_TABLES_SMALL).contains(&self.open.len())
            && let Some(before) = self.load(node, true)?
        {
            self.output.lose(node.slot.reference().map(NodeRef::owned));
            self.open.extend(before.tables.iter().cloned());
            return Ok(());
        }
        self.keep(node)
    }

    fn keep(&mut self, node: &Listed) -> Result<()> {
        self.output.write_nodes(std::mem::take(&mut self.open), &mut self.nodes)?;
        self.nodes.push(node.clone());
        Ok(())
    }

    /// Loads the node; returns `None` if it is damaged and `may_be_damaged`.
    fn load(&self, node: &Listed, may_be_damaged: bool) -> Result<Option<Arc<Node>>> {
        match self.output.tree.node_cache.load_owned(&node.slot) {
            Err(error) if may_be_damaged && error.kind() == ErrorKind::Corrupt => Ok(None),
            node => node.map(Some),
        }
    }

    fn end(mut self) -> Result<Sequence> {
        self.output.write_nodes(self.open, &mut self.nodes)?;
        Ok(Sequence::new(self.nodes))
    }
}

/// Writes tables one after the other.
pub(in crate::engines::autumn) struct TableWriter<'o> {
    builder: RunBuilder,
    /// Large values of the tables written so far, and of the open table.
    large: Vec<LargeRef>,
    output: &'o Output<'o>,
}

impl TableWriter<'_> {
    /// Returns the weight of the entries added to the open table.
    #[inline]
    pub fn weight(&self) -> u64 {
        weight(self.builder.entries(), self.builder.user_bytes())
    }

    /// Adds an entry; its key is greater than the previous one.
    #[inline]
    pub fn add(&mut self, key: &[u8], update: Update<'_>) -> Result<()> {
        if let Update::PutLarge(large) = update {
            self.large.push(large);
        }
        self.builder.add(key, update)
    }

    /// Writes the table, with bounds derived from its keys and `edges`. It must have entries. Keys
    /// that `was_cached` marks as previously cached stay in the cache.
    pub fn finish(
        &mut self,
        was_cached: Option<&WasCached<'_>>,
        edges: &Edges<'_>,
    ) -> Result<Table> {
        let first = edges.first(self.builder.first_key().unwrap_or_default());
        let last = edges.last(self.builder.last_key().unwrap_or_default());
        let structure::Output { node_cache, counters, quota, .. } = self.output.tree;
        let open = |reference: RunRef| {
            self.output.gain([owned_run(&reference)]);
            events::add(&counters.data_bytes, reference.extent.bytes());
            node_cache.context().open(node_cache.storage(), reference)
        };
        let run = match was_cached {
            Some(was_cached) => self.builder.finish_warm(quota, open, was_cached)?,
            None => open(self.builder.finish(quota)?),
        };
        Ok(Table::whole(run, first, last))
    }

    /// Takes the large values written since the last call.
    pub fn take_large(&mut self) -> Vec<LargeRef> {
        std::mem::take(&mut self.large)
    }
}
