//! Views play no part here.

use super::lifetimes::HeldVersion;
use crate::base::ids::SeqNo;
use crate::base::sync::Arc;

pub struct Buffer;

pub struct View {
    pub version: HeldVersion,
}

impl View {
    pub fn without(&self, _: &Arc<Buffer>, _: SeqNo, _: &[(SeqNo, HeldVersion)]) -> Option<Self> {
        None
    }
}
