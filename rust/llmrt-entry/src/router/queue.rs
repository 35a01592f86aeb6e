//! Prompt tokens that wait for their first token.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use crate::api::ApiError;
use crate::tenants::{Drain, Tenant, overloaded};

/// Counts what waits in this worker and behind it.
pub struct TokenQueue {
    /// Most tokens; 0: no bound.
    most: u64,
    tokens: Cell<u64>,
    drain: RefCell<Drain>,
}

/// The prompt of one generation while it waits; ends when dropped.
pub struct QueuedTokens {
    queue: Rc<TokenQueue>,
    tenant: Rc<Tenant>,
    tokens: u32,
}

impl Drop for QueuedTokens {
    fn drop(&mut self) {
        let (queue, now) = (&self.queue, Instant::now());
        let tokens = u64::from(self.tokens);
        queue.tokens.set(queue.tokens.get() - tokens);
        queue.drain.borrow_mut().add(tokens, now);
        self.tenant.dequeued(self.tokens, now);
    }
}

impl TokenQueue {
    pub fn new(most: u32) -> Rc<Self> {
        Rc::new(Self {
            most: most.into(),
            tokens: Cell::new(0),
            drain: RefCell::default(),
        })
    }

    /// Tokens that wait.
    pub fn tokens(&self) -> u64 {
        self.tokens.get()
    }

    /// Looks whether so many more may wait. Who would be the only one may always.
    ///
    /// # Errors
    /// 429 when others must have their first token before.
    pub fn check(&self, tokens: u32) -> Result<(), ApiError> {
        let queued = self.tokens.get();
        let all = queued + u64::from(tokens);
        if self.most == 0 || queued == 0 || all <= self.most {
            return Ok(());
        }
        let message = format!(
            "{queued} prompt tokens wait; more than {} may not. Try again later.",
            self.most
        );
        let missing = (all - self.most).min(queued);
        Err(overloaded(message, &self.drain.borrow(), missing))
    }

    /// Counts a prompt of `tokens`.
    pub fn enter(self: &Rc<Self>, tenant: &Rc<Tenant>, tokens: u32) -> QueuedTokens {
        self.tokens.set(self.tokens.get() + u64::from(tokens));
        tenant.queued(tokens);
        QueuedTokens {
            queue: self.clone(),
            tenant: tenant.clone(),
            tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::Rules;

    #[test]
    fn what_waits_is_bounded_for_all_and_for_each() {
        let rules = Rules {
            queued_tokens: Some(10),
            ..Rules::default()
        };
        let (one, other) = (Tenant::new(rules), Tenant::new(Rules::default()));
        let queue = TokenQueue::new(30);
        queue.check(1000).unwrap();
        one.check_queued(1000).unwrap();
        let first = queue.enter(&one, 8);
        one.check_queued(2).unwrap();
        assert!(one.check_queued(3).is_err() && other.check_queued(1000).is_ok());
        queue.check(22).unwrap();
        let second = queue.enter(&other, 22);
        assert_eq!(queue.check(1).unwrap_err().status(), 429);
        drop(first);
        one.check_queued(1000).unwrap();
        queue.check(8).unwrap();
        queue.check(9).unwrap_err();
        drop(second);
        assert_eq!(queue.tokens(), 0);
        assert!(TokenQueue::new(0).check(u32::MAX).is_ok());
    }
}
