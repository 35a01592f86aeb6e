//! What a request has been granted; given back when dropped.

use std::rc::Rc;

use super::Gate;
use crate::tenants::Tenant;

/// A permit to have one answer open.
pub struct Permit {
    gate: Rc<Gate>,
    claim: u64,
    tenant: Rc<Tenant>,
    used: bool,
}

impl Permit {
    pub(super) fn several(
        gate: &Rc<Gate>,
        claim: u64,
        tenant: &Rc<Tenant>,
        count: u32,
    ) -> Vec<Self> {
        let permit = |_| Self {
            gate: gate.clone(),
            claim,
            tenant: tenant.clone(),
            used: false,
        };
        (0..count).map(permit).collect()
    }

    pub(super) fn claim(&self) -> u64 {
        self.claim
    }

    pub(super) fn tenant(&self) -> &Rc<Tenant> {
        &self.tenant
    }

    /// There is an answer: when the permit comes back, one has ended.
    pub fn spend(&mut self) {
        self.used = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.close(self.claim, self.used);
    }
}

/// An answer's place among those that are submitted, and the room of its prompt among those that wait.
pub struct Turn {
    gate: Rc<Gate>,
    claim: u64,
    nth: usize,
    /// Whether the keeper knows of it.
    told: bool,
}

impl Turn {
    pub(super) fn new(gate: Rc<Gate>, claim: u64, nth: usize, told: bool) -> Self {
        Self {
            gate,
            claim,
            nth,
            told,
        }
    }

    /// The first token has come: the prompt waits no more.
    pub fn begun(&self) {
        self.gate.begun(self.claim, self.nth, self.told);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate.done(self.claim, self.nth, self.told);
    }
}
