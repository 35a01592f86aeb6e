//! The holder of a key.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::bucket::Bucket;
use super::drain::Drain;
use crate::api::ApiError;

/// What the holder of a key may do; without a bound, as much as the server can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Shown in log lines.
    pub name: Option<Arc<str>>,
    /// Answers that may be open at once.
    pub concurrent: Option<u32>,
    /// Prompt tokens that may wait for their first token.
    pub queued_tokens: Option<u32>,
    /// Requests per minute.
    pub rpm: Option<u32>,
    /// Tokens per minute, of prompts and answers together.
    pub tpm: Option<u32>,
    /// The best priority of its requests; lower runs first.
    pub priority: Option<i32>,
    /// Its part when others want the same, against theirs.
    pub weight: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            name: None,
            concurrent: None,
            queued_tokens: None,
            rpm: None,
            tpm: None,
            priority: None,
            weight: 1,
        }
    }
}

/// The holder of a key, or everybody where no keys are set.
pub struct Tenant {
    /// What its key hashes to, as hexadecimal digits; none where no key is asked for.
    key: Option<Arc<str>>,
    rules: RefCell<Rules>,
    /// Its part of the weights of all, 0 to 1.
    share: Cell<f64>,
    open: Cell<u32>,
    queued_tokens: Cell<u64>,
    ended: RefCell<Drain>,
    started: RefCell<Drain>,
    requests: RefCell<Option<Bucket>>,
    tokens: RefCell<Option<Bucket>>,
}

impl Tenant {
    /// A tenant that has everything for itself until told otherwise.
    pub fn new(rules: Rules) -> Rc<Self> {
        Self::with_key(None, rules)
    }

    /// The holder of the key that hashes to `key`.
    pub fn of_key(key: Arc<str>, rules: Rules) -> Rc<Self> {
        Self::with_key(Some(key), rules)
    }

    fn with_key(key: Option<Arc<str>>, rules: Rules) -> Rc<Self> {
        let tenant = Self {
            key,
            rules: RefCell::default(),
            share: Cell::new(1.0),
            open: Cell::new(0),
            queued_tokens: Cell::new(0),
            ended: RefCell::default(),
            started: RefCell::default(),
            requests: RefCell::default(),
            tokens: RefCell::default(),
        };
        tenant.set(rules);
        Rc::new(tenant)
    }

    /// Changes the rules. What is open and what was used up stays so.
    pub fn set(&self, rules: Rules) {
        let now = Instant::now();
        for (bucket, allowance) in [(&self.requests, rules.rpm), (&self.tokens, rules.tpm)] {
            let mut bucket = bucket.borrow_mut();
            match (&mut *bucket, allowance) {
                (Some(bucket), Some(allowance)) => bucket.set(allowance, now),
                (_, allowance) => *bucket = allowance.map(|allowance| Bucket::new(allowance, now)),
            }
        }
        self.rules.replace(rules);
    }

    pub fn set_share(&self, share: f64) {
        self.share.set(share);
    }

    /// What its key hashes to.
    pub fn key(&self) -> Option<&Arc<str>> {
        self.key.as_ref()
    }

    /// Whether its tokens are bounded by the minute.
    pub fn counts_tokens(&self) -> bool {
        self.rules.borrow().tpm.is_some()
    }

    /// Whether its prompts are bounded while they wait.
    pub fn bounds_queue(&self) -> bool {
        self.rules.borrow().queued_tokens.is_some()
    }

    pub fn name(&self) -> Option<Arc<str>> {
        self.rules.borrow().name.clone()
    }

    pub fn weight(&self) -> u32 {
        self.rules.borrow().weight
    }

    /// Whether others may want what it wants.
    pub fn has_others(&self) -> bool {
        self.share.get() < 1.0
    }

    /// Whether `more` open answers are within its part of `all`.
    pub fn is_within(&self, all: u32, more: u32) -> bool {
        f64::from(self.open.get() + more) <= (f64::from(all) * self.share.get()).ceil()
    }

    /// The priority of a request that asks for `wanted`: it can step back, not push forward.
    pub fn priority(&self, wanted: i32) -> i32 {
        match self.rules.borrow().priority {
            Some(best) => best.saturating_add(wanted.max(0)),
            None => wanted,
        }
    }

    /// Looks whether `count` more answers may be open.
    ///
    /// # Errors
    /// 429 when others must end before; 400 when it could never have so many.
    pub fn check_open(&self, count: u32) -> Result<(), ApiError> {
        let Some(most) = self.rules.borrow().concurrent else {
            return Ok(());
        };
        if count > most {
            let message = format!("This API key may have {most} answers open, not {count}.");
            return Err(ApiError::invalid(message).param("n"));
        }
        let missing = (self.open.get() + count).saturating_sub(most);
        if missing == 0 {
            return Ok(());
        }
        let message = format!("This API key has all of its {most} answers open; try again later.");
        Err(overloaded(message, &self.ended.borrow(), missing.into()))
    }

    /// Answers that are open, and prompt tokens that wait.
    #[cfg(test)]
    pub fn counts(&self) -> (u32, u64) {
        (self.open.get(), self.queued_tokens.get())
    }

    pub fn opened(&self, count: u32) {
        self.open.set(self.open.get() + count);
    }

    pub fn closed(&self, count: u32) {
        self.open.set(self.open.get() - count);
    }

    /// An answer that was open has ended.
    pub fn ended(&self, now: Instant) {
        self.ended.borrow_mut().add(1, now);
    }

    /// Looks whether `tokens` more of prompts may wait. A prompt that would be the only one may always.
    ///
    /// # Errors
    /// 429 when others must have their first token before.
    pub fn check_queued(&self, tokens: u32) -> Result<(), ApiError> {
        let queued = self.queued_tokens.get();
        let Some(most) = self.rules.borrow().queued_tokens.map(u64::from) else {
            return Ok(());
        };
        let all = queued + u64::from(tokens);
        if queued == 0 || all <= most {
            return Ok(());
        }
        let message = format!(
            "{queued} prompt tokens of this API key wait; more than {most} may not. Try again later."
        );
        let missing = (all - most).min(queued);
        Err(overloaded(message, &self.started.borrow(), missing))
    }

    pub fn queued(&self, tokens: u32) {
        let queued = self.queued_tokens.get();
        self.queued_tokens.set(queued + u64::from(tokens));
    }

    pub fn dequeued(&self, tokens: u32, now: Instant) {
        let tokens = u64::from(tokens);
        self.queued_tokens.set(self.queued_tokens.get() - tokens);
        self.started.borrow_mut().add(tokens, now);
    }

    /// Counts a request against the allowances per minute.
    ///
    /// # Errors
    /// 429 when either is used up; it is not counted then.
    pub fn take_request(&self, now: Instant) -> Result<(), ApiError> {
        let mut requests = self.requests.borrow_mut();
        self.check_tokens(1, now)?;
        let Some(requests) = &mut *requests else {
            return Ok(());
        };
        if let Some(wait) = requests.wait(1, now) {
            let message = "This API key's requests per minute are used up; try again later.";
            return Err(ApiError::overloaded(message).retry_after(wait));
        }
        requests.take(1, now);
        Ok(())
    }

    /// Counts a request that was let in elsewhere.
    pub fn count_request(&self, now: Instant) {
        if let Some(bucket) = &mut *self.requests.borrow_mut() {
            bucket.take(1, now);
        }
    }

    /// Counts the tokens of prompts against the allowance per minute.
    ///
    /// # Errors
    /// 429 when so many are not left; they are not counted then.
    pub fn take_prompt(&self, tokens: u32, now: Instant) -> Result<(), ApiError> {
        self.check_tokens(tokens, now)?;
        self.take_tokens(tokens, now);
        Ok(())
    }

    /// Counts tokens of an answer, which nobody could know before.
    pub fn take_tokens(&self, tokens: u32, now: Instant) {
        if let Some(bucket) = &mut *self.tokens.borrow_mut() {
            bucket.take(tokens, now);
        }
    }

    fn check_tokens(&self, tokens: u32, now: Instant) -> Result<(), ApiError> {
        let mut bucket = self.tokens.borrow_mut();
        match bucket.as_mut().and_then(|bucket| bucket.wait(tokens, now)) {
            None => Ok(()),
            Some(wait) => {
                let message = "This API key's tokens per minute are used up; try again later.";
                Err(ApiError::overloaded(message).retry_after(wait))
            }
        }
    }
}

/// 429 until `missing` more have drained.
pub fn overloaded(message: impl Into<String>, drain: &Drain, missing: u64) -> ApiError {
    let error = ApiError::overloaded(message);
    match drain.wait(missing, Instant::now()) {
        Some(wait) => error.retry_after(wait),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorKind;

    #[test]
    fn a_priority_is_the_best_that_requests_can_have() {
        let tenant = Tenant::new(Rules::default());
        assert_eq!(tenant.priority(-3), -3);
        tenant.set(Rules {
            priority: Some(5),
            ..Rules::default()
        });
        assert_eq!([-3, 0, 2].map(|wanted| tenant.priority(wanted)), [5, 5, 7]);
    }

    #[test]
    fn shares_are_rounded_up() {
        let tenant = Tenant::new(Rules::default());
        assert!(tenant.is_within(3, 3) && !tenant.is_within(3, 4));
        tenant.set_share(0.25);
        assert!(tenant.is_within(5, 2) && !tenant.is_within(5, 3));
        tenant.opened(1);
        assert!(tenant.is_within(5, 1) && !tenant.is_within(5, 2));
    }

    #[test]
    fn what_waits_of_a_key_is_bounded() {
        let now = Instant::now();
        let tenant = Tenant::new(Rules {
            queued_tokens: Some(10),
            ..Rules::default()
        });
        tenant.check_queued(1000).unwrap();
        tenant.queued(8);
        tenant.check_queued(2).unwrap();
        tenant.check_queued(3).unwrap_err();
        tenant.dequeued(8, now);
        tenant.check_queued(1000).unwrap();
    }

    #[test]
    fn what_was_used_up_outlives_new_rules() {
        let rules = |rpm| Rules {
            rpm: Some(rpm),
            ..Rules::default()
        };
        let tenant = Tenant::new(rules(1));
        let now = Instant::now();
        tenant.take_request(now).unwrap();
        assert_eq!(
            tenant.take_request(now).unwrap_err().kind(),
            ErrorKind::Overloaded
        );
        tenant.set(rules(1));
        tenant.take_request(now).unwrap_err();
        tenant.set(rules(2));
        tenant.take_request(Instant::now()).unwrap();
        tenant.take_request(now).unwrap_err();
    }
}
