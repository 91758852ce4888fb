//! Claims: the runs that outstanding jobs merge. No other job takes them, and no pivot that has
//! them is joined.

use crate::base::ids::BlockNo;
use crate::buffer_tree::node::Part;
use crate::buffer_tree::span::KeySpan;
use crate::runtime::sync::{Arc, Mutex};
use crate::structure::SharedKey;
use std::collections::BTreeSet;

/// The runs that a job merges, by first block.
pub(super) type Inputs = BTreeSet<BlockNo>;

/// Returns the first block of the run of `part`.
pub(super) fn run_of(part: &Part) -> BlockNo {
    part.segment.run.reference().extent.start
}

/// The claims of all outstanding jobs of a tree. Innermost lock.
#[derive(Default)]
pub(super) struct Claims {
    list: Mutex<Vec<Arc<Claim>>>,
}

/// The claim of one job.
pub(super) struct Claim {
    height: u8,
    lower: SharedKey,
    upper: Option<SharedKey>,
    inputs: Inputs,
}

impl Claim {
    fn span(&self) -> KeySpan<'_> {
        KeySpan { lower: self.lower.view(), upper: self.upper.as_ref().map(SharedKey::view) }
    }
}

impl Claims {
    /// Returns true if a job merges parts of nodes of this height within `span`.
    pub fn meets(&self, height: u8, span: KeySpan<'_>) -> bool {
        let list = self.list.lock();
        list.iter().any(|claim| claim.height == height && meet(claim.span(), span))
    }

    /// Returns true if a job merges the run of `part`.
    pub fn has(&self, part: &Part) -> bool {
        self.list.lock().iter().any(|claim| claim.inputs.contains(&run_of(part)))
    }

    /// Adds a claim on `inputs` of nodes of this height within `span`.
    pub fn add(&self, height: u8, span: KeySpan<'_>, inputs: Inputs) -> Arc<Claim> {
        let (lower, upper) = (span.lower.to_shared(), span.upper.map(|upper| upper.to_shared()));
        let claim = Arc::new(Claim { height, lower, upper, inputs });
        self.list.lock().push(Arc::clone(&claim));
        claim
    }

    /// Ends `claim`.
    pub fn end(&self, claim: &Arc<Claim>) {
        self.list.lock().retain(|other| !Arc::ptr_eq(other, claim));
    }
}

/// Returns true if the spans have a key in common.
fn meet(one: KeySpan<'_>, other: KeySpan<'_>) -> bool {
    one.clip(KeySpan { lower: other.lower, upper: other.upper }).is_some()
}
