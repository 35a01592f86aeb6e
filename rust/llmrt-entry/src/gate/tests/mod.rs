//! The ledger alone, the gate of one worker, and gates of several before one keeper.

mod link;
mod one;
mod properties;
mod several;

use std::rc::Rc;

use crate::tenants::{Rules, Tenant};

/// A tenant beside others.
fn tenant(rules: Rules) -> Rc<Tenant> {
    let tenant = Tenant::new(rules);
    tenant.set_share(0.5);
    tenant
}
