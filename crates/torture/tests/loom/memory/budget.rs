//! Memory is not counted here.

use crate::runtime::sync::Arc;

pub struct Budget;
pub struct Charge;

pub enum Use {
    Metadata,
}

impl Budget {
    pub fn charge(self: &Arc<Self>, _: Use, _: u64) -> Charge {
        Charge
    }
}

impl Charge {
    pub fn resize(&mut self, _: u64) {}
}
