//! Prompt tokens that wait for their first token.

use std::time::Instant;

use crate::api::ApiError;
use crate::tenants::{Drain, overloaded};

/// Counts what waits here and behind.
pub struct TokenQueue {
    /// Most tokens; 0: no bound.
    most: u64,
    tokens: u64,
    drain: Drain,
}

impl TokenQueue {
    pub fn new(most: u32) -> Self {
        Self {
            most: most.into(),
            tokens: 0,
            drain: Drain::default(),
        }
    }

    /// Tokens that wait.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Looks whether so many more may wait. Who would be the only one may always.
    ///
    /// # Errors
    /// 429 when others must have their first token before.
    pub fn check(&self, tokens: u32) -> Result<(), ApiError> {
        let queued = self.tokens;
        let all = queued + u64::from(tokens);
        if self.most == 0 || queued == 0 || all <= self.most {
            return Ok(());
        }
        let message = format!(
            "{queued} prompt tokens wait; more than {} may not. Try again later.",
            self.most
        );
        let missing = (all - self.most).min(queued);
        Err(overloaded(message, &self.drain, missing))
    }

    /// Counts a prompt.
    pub fn enter(&mut self, tokens: u32) {
        self.tokens += u64::from(tokens);
    }

    /// A prompt waits no more.
    pub fn leave(&mut self, tokens: u32, now: Instant) {
        self.tokens -= u64::from(tokens);
        self.drain.add(tokens.into(), now);
    }

    /// When what has `ahead` tokens before it is expected to have its turn: at once as long as no rate is known.
    pub fn turn_of(&self, ahead: u64, now: Instant) -> Instant {
        now + self.drain.time(ahead, now).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_waits_is_bounded() {
        let now = Instant::now();
        let mut queue = TokenQueue::new(30);
        queue.check(1000).unwrap();
        queue.enter(8);
        queue.check(22).unwrap();
        queue.enter(22);
        assert_eq!(queue.check(1).unwrap_err().status(), 429);
        queue.leave(8, now);
        queue.check(8).unwrap();
        queue.check(9).unwrap_err();
        queue.leave(22, now);
        assert_eq!(queue.tokens(), 0);
        assert!(TokenQueue::new(0).check(u32::MAX).is_ok());
    }

    #[test]
    fn a_turn_is_expected_by_the_present_rate() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut queue = TokenQueue::new(0);
        assert_eq!(queue.turn_of(1000, start), start);
        for second in 0..60 {
            queue.enter(10);
            queue.leave(10, at(second));
        }
        let wait = queue.turn_of(200, at(59)) - at(59);
        assert!((15.0..25.0).contains(&wait.as_secs_f64()), "{wait:?}");
        assert_eq!(queue.turn_of(0, at(59)), at(59));
    }
}
