//! The accounts: what is open, what waits, and who is next.
//!
//! A claim is one client request with the answers that it asks for. It is admitted before its prompts are tokens, then
//! its prompts are queued, and when it is its turn it may be submitted. All of it comes back when the claim is given up,
//! a part at a time or at once. Nothing here waits or does I/O: whoever owns the ledger tells it what happens, and hears
//! from [`Ledger::take_news`] what became of claims that waited.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use super::claim::{Answers, Claim, ClaimId, News};
use super::queue::TokenQueue;
use super::refusal::Refusal;
use super::turns::Turns;
use crate::api::ErrorKind;
use crate::metrics::Rejection;
use crate::tenants::{Drain, Tenant, overloaded};

/// Bounds for all tenants together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Answers open at once.
    pub permits: u32,
    /// Answers that the scheduler makes at once.
    pub running: u32,
    /// Prompt tokens that may wait for their first token; 0: no bound.
    pub queued_tokens: u32,
}

/// All accounts of a server, or of a worker alone.
pub struct Ledger {
    bounds: Bounds,
    permits_taken: u32,
    ended: Drain,
    queue: TokenQueue,
    turns: Turns,
    claims: BTreeMap<ClaimId, Claim>,
    /// Claims with answers that have not begun, in the order in which they are expected to.
    waiting: BTreeMap<(i32, u64), ClaimId>,
    /// How many of these have a deadline.
    timed: usize,
    arrivals: u64,
    news: Vec<(ClaimId, News)>,
}

impl Ledger {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            permits_taken: 0,
            ended: Drain::default(),
            queue: TokenQueue::new(bounds.queued_tokens),
            turns: Turns::new(bounds.running),
            claims: BTreeMap::new(),
            waiting: BTreeMap::new(),
            timed: 0,
            arrivals: 0,
            news: Vec::new(),
        }
    }

    /// What became of claims since the last call.
    pub fn take_news(&mut self) -> Vec<(ClaimId, News)> {
        std::mem::take(&mut self.news)
    }

    /// Permits that are out.
    pub fn permits_taken(&self) -> u32 {
        self.permits_taken
    }

    /// Prompt tokens that wait.
    pub fn queued_tokens(&self) -> u64 {
        self.queue.tokens()
    }

    /// Places that are out among those that are submitted.
    #[cfg(test)]
    pub fn places_taken(&self) -> u32 {
        self.turns.taken()
    }

    /// Claims that wait for their turn.
    pub fn waiting_turns(&self) -> usize {
        self.turns.waiting()
    }

    /// Whether the prompts of a claim are counted.
    pub fn has_answers(&self, id: ClaimId) -> bool {
        let claim = self.claims.get(&id);
        claim.is_some_and(|claim| !claim.answers.is_empty())
    }

    /// Whether a claim holds anything.
    pub fn holds(&self, id: ClaimId) -> bool {
        self.claims.contains_key(&id)
    }

    /// Claims that hold anything.
    pub fn claims(&self) -> impl Iterator<Item = (&ClaimId, &Claim)> {
        self.claims.iter()
    }

    /// Permits for `count` answers: all or none. Of several tenants, those that have more than their part leave the last
    /// quarter to the others. `counted` is a request that counts against what its tenant may send per minute.
    ///
    /// # Errors
    /// 429 while so many are not left, for anybody or for `tenant`, and when its requests are used up.
    pub fn admit(
        &mut self,
        id: ClaimId,
        tenant: &Rc<Tenant>,
        count: u32,
        counted: bool,
        now: Instant,
    ) -> Result<(), Refusal> {
        self.with_room(now, |ledger| ledger.check_admission(tenant, count))?;
        if counted {
            let taken = tenant.take_request(now);
            taken.map_err(Refusal::of(Rejection::Key))?;
        }
        self.grant(id, tenant, count);
        Ok(())
    }

    /// The permits of a claim that was admitted elsewhere, whatever the bounds say.
    pub fn grant(&mut self, id: ClaimId, tenant: &Rc<Tenant>, count: u32) {
        self.permits_taken += count;
        tenant.opened(count);
        self.claims.insert(id, Claim::new(tenant, count));
    }

    /// Counts the prompts of a claim, unless they are already, and whether it is its turn now; else there will be news
    /// of it.
    ///
    /// # Errors
    /// 429 when too many tokens wait, or the tenant has used up its tokens.
    pub fn queue(&mut self, id: ClaimId, answers: Answers, now: Instant) -> Result<bool, Refusal> {
        let Some(claim) = self.claims.get(&id) else {
            return Err(Refusal::too_late());
        };
        if !claim.answers.is_empty() {
            return Ok(self.line_up(id));
        }
        let tenant = claim.tenant.clone();
        let tokens = answers.tokens();
        self.with_room(now, |ledger| {
            let queued = ledger.queue.check(tokens);
            queued.map_err(Refusal::of(Rejection::QueuedTokens))?;
            let of_key = tenant.check_queued(tokens);
            of_key.map_err(Refusal::of(Rejection::Key))
        })?;
        let taken = tenant.take_prompt(tokens, now);
        taken.map_err(Refusal::of(Rejection::Key))?;
        self.resume(id, answers);
        Ok(self.line_up(id))
    }

    /// The answers of a claim that was queued elsewhere, as they stand, whatever the bounds say.
    pub fn resume(&mut self, id: ClaimId, answers: Answers) {
        let Some(claim) = self.claims.get_mut(&id) else {
            return;
        };
        for tokens in answers.answers.iter().filter_map(|answer| answer.waits) {
            self.queue.enter(tokens);
            claim.tenant.queued(tokens);
        }
        let placed = answers.answers.iter().filter(|answer| answer.placed);
        self.turns.take(placed.count() as u32);
        self.arrivals += 1;
        claim.order = self.arrivals;
        claim.priority = answers.priority;
        claim.deadline = answers.deadline;
        claim.answers = answers.answers;
        if claim.waits() {
            self.timed += usize::from(claim.deadline.is_some());
            self.waiting.insert(claim.rank(), id);
        }
    }

    /// Has the answers of a claim left out of what the keeper is told.
    pub fn keep_to_itself(&mut self, id: ClaimId) {
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.told = false;
        }
    }

    /// Whether a claim that was resumed has its turn now; it stands in line else.
    pub fn line_up(&mut self, id: ClaimId) -> bool {
        let Some(claim) = self.claims.get_mut(&id) else {
            return false;
        };
        if self.turns.are_free(&claim.tenant) {
            self.place(id);
            return true;
        }
        let count = claim.answers.len() as u32;
        claim.ticket = Some(self.turns.push(&claim.tenant, count, id));
        false
    }

    /// The claim waits for its turn elsewhere from now on.
    pub fn leave_line(&mut self, id: ClaimId) {
        if let Some(claim) = self.claims.get_mut(&id)
            && let Some(ticket) = claim.ticket.take()
        {
            self.turns.remove(&claim.tenant, ticket);
        }
    }

    /// It is the turn of a claim.
    pub fn place(&mut self, id: ClaimId) {
        let Some(claim) = self.claims.get_mut(&id) else {
            return;
        };
        for answer in &mut claim.answers {
            self.turns.take(u32::from(!answer.placed));
            answer.placed = true;
        }
    }

    /// An answer has begun: its prompt waits no more.
    pub fn begun(&mut self, id: ClaimId, nth: usize, now: Instant) {
        let Some(claim) = self.claims.get_mut(&id) else {
            return;
        };
        let Some(tokens) = (claim.answers.get_mut(nth)).and_then(|answer| answer.waits.take())
        else {
            return;
        };
        self.queue.leave(tokens, now);
        claim.tenant.dequeued(tokens, now);
        if !claim.waits() && self.waiting.remove(&claim.rank()).is_some() {
            self.timed -= usize::from(claim.deadline.is_some());
        }
    }

    /// An answer that was submitted has ended.
    pub fn done(&mut self, id: ClaimId, nth: usize, now: Instant) {
        self.begun(id, nth, now);
        let answer = (self.claims.get_mut(&id)).and_then(|claim| claim.answers.get_mut(nth));
        if answer.is_some_and(|answer| std::mem::take(&mut answer.placed)) {
            self.turns.give_back(1);
            self.serve(now);
        }
    }

    /// A permit of a claim comes back, `ended` when there was an answer; with the last one, all that the claim has.
    pub fn close(&mut self, id: ClaimId, ended: bool, now: Instant) {
        let Some(claim) = self.claims.get_mut(&id) else {
            return;
        };
        if ended {
            self.ended.add(1, now);
            claim.tenant.ended(now);
        }
        if claim.permits == 1 {
            return self.give_up(id, now);
        }
        claim.permits -= 1;
        claim.tenant.closed(1);
        self.permits_taken -= 1;
    }

    /// Takes back all that a claim has.
    pub fn give_up(&mut self, id: ClaimId, now: Instant) {
        self.remove(id, now);
        self.serve(now);
    }

    /// Takes back all that the claims of `whose` have.
    pub fn left(&mut self, whose: u64, now: Instant) {
        let of = self.claims.range((whose, 0)..=(whose, u64::MAX));
        let ids: Vec<ClaimId> = of.map(|(id, _)| *id).collect();
        for id in ids {
            self.remove(id, now);
        }
        self.serve(now);
    }

    fn check_admission(&self, tenant: &Tenant, count: u32) -> Result<(), Refusal> {
        let of_key = tenant.check_open(count);
        of_key.map_err(Refusal::of(Rejection::Key))?;
        let all = self.bounds.permits;
        let kept = match tenant.is_within(all, count) {
            true => 0,
            false => (all / 4).min(all.saturating_sub(count)),
        };
        let missing = (count + kept).saturating_sub(all.saturating_sub(self.permits_taken));
        if missing == 0 {
            return Ok(());
        }
        let message = "Too many requests are open; try again later.";
        let error = overloaded(message, &self.ended, missing.into());
        Err(Refusal::of(Rejection::Permits)(error))
    }

    /// Looks whether there is room; where there is none, once more without the claims that cannot make it any more.
    fn with_room(
        &mut self,
        now: Instant,
        check: impl Fn(&Self) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let full = |refusal: &Refusal| refusal.error.kind() == ErrorKind::Overloaded;
        match check(self) {
            Err(refusal) if full(&refusal) && self.drop_late(now) => check(self),
            checked => checked,
        }
    }

    /// Gives up the claims that, at the present rate, would not begin before their deadline. Whether there were any.
    fn drop_late(&mut self, now: Instant) -> bool {
        if self.timed == 0 {
            return false;
        }
        let (mut late, mut ahead) = (Vec::new(), 0);
        for id in self.waiting.values() {
            let Some(claim) = self.claims.get(id) else {
                continue;
            };
            let turn = self.queue.turn_of(ahead, now);
            if claim.deadline.is_some_and(|deadline| deadline <= turn) && claim.waits_whole() {
                late.push(*id);
                continue;
            }
            let tokens = claim.answers.iter().filter_map(|answer| answer.waits);
            ahead += tokens.map(u64::from).sum::<u64>();
        }
        for &id in &late {
            self.remove(id, now);
            self.news.push((id, News::Late));
        }
        self.serve(now);
        !late.is_empty()
    }

    /// Gives free places to those whose turn it is. Who is too late by then gets none.
    fn serve(&mut self, now: Instant) {
        while let Some(id) = self.turns.next() {
            let Some(claim) = self.claims.get_mut(&id) else {
                continue;
            };
            claim.ticket = None;
            if claim.deadline.is_some_and(|deadline| deadline <= now) {
                self.remove(id, now);
                self.news.push((id, News::Late));
            } else {
                self.place(id);
                self.news.push((id, News::Turn));
            }
        }
    }

    fn remove(&mut self, id: ClaimId, now: Instant) {
        self.leave_line(id);
        let answers = self.claims.get(&id).map_or(0, |claim| claim.answers.len());
        for nth in 0..answers {
            self.begun(id, nth, now);
        }
        let Some(claim) = self.claims.remove(&id) else {
            return;
        };
        let placed = claim.answers.iter().filter(|answer| answer.placed).count();
        self.turns.give_back(placed as u32);
        self.permits_taken -= claim.permits;
        claim.tenant.closed(claim.permits);
    }
}
