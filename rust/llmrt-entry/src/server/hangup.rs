//! Ending one response from outside, without harm to its neighbours.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::wire::Wire;

/// Ends the task that carries a response: the stream on HTTP/2 (RST_STREAM), the connection on HTTP/1.1.
///
/// Once a reader stalls, hyper no longer polls the body, so an error from the body would never be seen.
#[derive(Clone, Debug, Default)]
pub struct Hangup(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cut: Cell<bool>,
    /// When to cut by itself.
    due: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
    wire: RefCell<Option<Wire>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Hangup>> = const { RefCell::new(None) };
}

impl Hangup {
    /// The handle of the innermost [`Carrier`] that is being polled; a loose one outside of any.
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Says that the carried future is a connection's task, whose answers may write to `wire`.
    pub(super) fn set_wire(&self, wire: Option<Wire>) {
        self.0.wire.replace(wire);
    }

    /// The connection whose task carries the response; none on HTTP/2, where responses have tasks of their own.
    pub fn wire(&self) -> Option<Wire> {
        self.0.wire.borrow().clone()
    }

    /// Drops the carried future at the carrier's next turn.
    pub fn cut(&self) {
        self.0.cut.set(true);
        if let Some(waker) = &*self.0.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Cuts by itself unless it is renewed or dropped in time. To be made and renewed by what the [`Carrier`] carries.
#[derive(Debug)]
pub struct Deadline {
    hangup: Hangup,
    patience: Duration,
}

impl Deadline {
    pub fn new(hangup: Hangup, patience: Duration) -> Self {
        let deadline = Self { hangup, patience };
        deadline.renew();
        deadline
    }

    /// Lets the time begin anew.
    pub fn renew(&self) {
        self.hangup.0.due.set(Some(Instant::now() + self.patience));
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.hangup.0.due.set(None);
    }
}

/// A future that ends early when its [`Hangup`] is cut.
pub(super) struct Carrier<F> {
    future: Pin<Box<F>>,
    hangup: Hangup,
    /// Runs while there is a [`Deadline`].
    due: Option<Pin<Box<Sleep>>>,
}

impl<F: Future<Output = ()>> Carrier<F> {
    pub(super) fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            hangup: Hangup::default(),
            due: None,
        }
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.hangup.0.due.get() else {
            self.due = None;
            return Poll::Pending;
        };
        let sleep = self.due.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(cx)
    }
}

impl<F: Future<Output = ()>> Future for Carrier<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.hangup.0.cut.get() {
            return Poll::Ready(());
        }
        match &mut *self.hangup.0.waker.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let outer = CURRENT.replace(Some(self.hangup.clone()));
        let poll = self.future.as_mut().poll(cx);
        CURRENT.set(outer);
        if poll.is_pending() {
            return self.poll_due(cx);
        }
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn a_cut_ends_only_the_inner_carrier() {
        let inner_handle = Rc::new(RefCell::new(None));
        let seen = inner_handle.clone();
        let mut inner = Carrier::new(poll_fn(move |_| {
            *seen.borrow_mut() = Some(Hangup::current());
            Poll::Pending
        }));
        let ended = Rc::new(Cell::new(false));
        let flag = ended.clone();
        let mut outer = Carrier::new(poll_fn(move |cx| {
            if !flag.get() && Pin::new(&mut inner).poll(cx).is_ready() {
                flag.set(true);
            }
            Poll::Pending
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut outer).poll(&mut cx).is_pending());
        inner_handle.borrow().as_ref().unwrap().cut();
        assert!(Pin::new(&mut outer).poll(&mut cx).is_pending());
        assert!(ended.get());
    }
}
