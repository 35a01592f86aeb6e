//! The loop: messages in, one step, one frame out. It sleeps when there is nothing to do.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::{Event, Inbox, Outbox, PeerId};
use llmrt_wire::{Call, Credit, Message, Reply, TokenFrame};
use serde::Deserialize;
use tokio::sync::mpsc::Receiver;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::fault::{Fault, FaultKind, Faults};
use crate::lanes::Lanes;
use crate::state::{State, StepOutput};

/// Pause before frames are offered again to a detokenizer that had no room for them.
const RETRY: Duration = Duration::from_millis(1);
/// Steps that may be made up for when one was late.
const CATCH_UP: u32 = 4;

/// Where messages go. Outboxes of detokenizers stand at their numbers.
pub struct Links {
    pub tokens: Vec<Arc<dyn Outbox>>,
    pub control: Arc<dyn Outbox>,
}

/// Serves until `stop` is done, then says so on every link. `step` is the time of a step, zero for as fast as the
/// detokenizers take frames. Must be called within a tokio runtime.
pub async fn serve(
    state: State,
    faults: Faults,
    step: Duration,
    mut inbox: impl Inbox,
    links: Links,
    stop: impl Future<Output = ()>,
) {
    let mut orders = links.control.incoming();
    let mut engine = Engine {
        state,
        faults,
        lanes: Lanes::new(links.tokens),
        step,
        due: Instant::now(),
        retry: Instant::now(),
    };
    let mut stop = pin!(stop);
    loop {
        let pause = engine.pause();
        tokio::select! {
            biased;
            () = &mut stop => break,
            event = inbox.recv() => engine.event(event, &mut inbox),
            Some(change) = engine.lanes.change() => {
                if let Some(lane) = engine.lanes.apply(change) {
                    let lost = engine.state.lose_detokenizer(lane);
                    tracing::error!(lane, requests = lost, "the detokenizer is gone; its requests end with an error");
                }
            }
            Some(order) = next(&mut orders) => engine.order(order, &*links.control),
            () = wait(pause) => engine.run(&mut inbox),
        }
    }
    let reason = "the server ends";
    engine.lanes.close(reason);
    links.control.close(reason);
    inbox.close(reason).await;
}

async fn next(orders: &mut Option<Receiver<Message>>) -> Option<Message> {
    match orders {
        Some(orders) => orders.recv().await,
        None => None,
    }
}

enum Pause {
    /// There is nothing to do.
    Idle,
    /// Lets the links read and write between two steps.
    Yield,
    Until(Instant),
}

async fn wait(pause: Pause) {
    match pause {
        Pause::Idle => pending().await,
        Pause::Yield => yield_now().await,
        Pause::Until(due) => sleep_until(due).await,
    }
}

struct Engine {
    state: State,
    faults: Faults,
    lanes: Lanes,
    step: Duration,
    /// When the next step is due.
    due: Instant,
    /// When frames that found no room are tried again.
    retry: Instant,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultArguments {
    fault: String,
}

impl Engine {
    fn event(&mut self, event: Event, inbox: &mut impl Inbox) {
        match event {
            Event::Joined { hello, .. } => {
                tracing::debug!(role = hello.role, index = hello.index, "peer joined");
            }
            Event::Message { peer, message } => self.message(peer, message, inbox),
            Event::Left { peer, reason } => {
                let orphans = self.state.leave(peer);
                if orphans > 0 {
                    tracing::warn!(
                        peer,
                        reason,
                        requests = orphans,
                        "peer left; its requests are aborted"
                    );
                }
            }
        }
    }

    fn message(&mut self, peer: PeerId, message: Message, inbox: &mut impl Inbox) {
        match message {
            Message::Submit(submit) => {
                let now = std::time::Instant::now();
                for request in submit.requests {
                    self.state.submit(request, peer, now);
                }
            }
            Message::Abort(abort) => self.state.abort(&abort.ids, peer),
            Message::Ended(ended) => self.state.ended(&ended.ids),
            Message::Call(call) => {
                let reply = self.answer(&call);
                if let Err(error) = inbox.send(peer, &reply.into()) {
                    tracing::warn!(%error, method = call.method, "call not answered");
                }
            }
            other => {
                tracing::warn!(kind = ?other.kind(), peer, "message that an engine does not take dropped");
            }
        }
    }

    fn order(&mut self, message: Message, control: &dyn Outbox) {
        let Message::Call(call) = message else {
            tracing::warn!(kind = ?message.kind(), "message that an engine does not take dropped");
            return;
        };
        let reply = self.answer(&call);
        if let Err(error) = control.send(&reply.into()) {
            tracing::warn!(%error, method = call.method, "call not answered");
        }
    }

    fn answer(&mut self, call: &Call) -> Reply {
        let result = match call.method.as_str() {
            "stats" => serde_json::to_string(&self.state.stats()).map_err(|e| e.to_string()),
            "flush_cache" => Ok(r#"{"evicted_pages": 0}"#.to_owned()),
            "fault" => self.add_fault(&call.arguments).map(|()| "null".to_owned()),
            other => Err(format!(
                "the mock engine has no method {other:?}; it has stats, flush_cache, fault"
            )),
        };
        let ok = result.is_ok();
        Reply {
            tag: Default::default(),
            call: call.call,
            ok,
            value: result.unwrap_or_else(|error| error),
        }
    }

    fn add_fault(&mut self, arguments: &str) -> Result<(), String> {
        let arguments: FaultArguments =
            serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        let fault: Fault = arguments
            .fault
            .parse()
            .map_err(|error| format!("{error}"))?;
        self.faults.add(fault);
        Ok(())
    }

    /// What to wait for before [`Engine::run`].
    fn pause(&self) -> Pause {
        if !self.lanes.ready() {
            Pause::Idle
        } else if self.lanes.is_blocked() {
            Pause::Until(self.retry)
        } else if !self.state.has_work() {
            Pause::Idle
        } else if self.step.is_zero() {
            Pause::Yield
        } else {
            Pause::Until(self.due)
        }
    }

    /// One step, or another try to send the frames of the last one.
    fn run(&mut self, inbox: &mut impl Inbox) {
        if self.lanes.is_blocked() {
            self.retry = Instant::now() + RETRY;
            return self.lanes.flush();
        }
        for fault in self.faults.take(self.state.next_step()) {
            self.suffer(fault);
        }
        self.schedule_next();
        let StepOutput { frames, credit } = self.state.step(std::time::Instant::now());
        self.lanes.send(frames);
        for (peer, count) in credit {
            let tag = Default::default();
            if let Err(error) = inbox.send(peer, &Credit { tag, count }.into()) {
                tracing::warn!(%error, peer, count, "credit lost");
            }
        }
    }

    fn schedule_next(&mut self) {
        let now = Instant::now();
        let next = self.due + self.step;
        self.due = if now > next + self.step * CATCH_UP {
            now + self.step
        } else {
            next
        };
    }

    fn suffer(&mut self, fault: FaultKind) {
        tracing::warn!(?fault, step = self.state.next_step(), "fault on demand");
        match fault {
            FaultKind::Stall(time) => std::thread::sleep(time),
            FaultKind::Slow(time) => self.step = time,
            FaultKind::Die => std::process::abort(),
            FaultKind::Garbage => {
                if let Err(error) = self.lanes.inject(0, garbage(self.state.next_step())) {
                    tracing::warn!(%error, "garbage not sent");
                }
            }
        }
    }
}

/// A frame that promises more tokens than it has.
fn garbage(step: u64) -> TokenFrame {
    TokenFrame {
        step,
        ids: vec![u64::MAX].into(),
        counts: vec![u32::MAX].into(),
        tokens: vec![0].into(),
        ..TokenFrame::default()
    }
}
