//! Watching responses whose reader makes no progress.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::outlet::Outlet;

/// Streams that have too much waiting, and those that have ended: nobody else sees whether their tail is read. An ended
/// one stays until the sweep after its reader has taken all.
#[derive(Default)]
pub(super) struct Stalled {
    watched: RefCell<Vec<Weak<RefCell<Outlet>>>>,
    any: Notify,
}

impl Stalled {
    /// Adds `outlet`, whose borrowed content is `state`, unless it is watched already.
    pub(super) fn watch(&self, outlet: &Rc<RefCell<Outlet>>, state: &mut Outlet) {
        if std::mem::replace(&mut state.watched, true) {
            return;
        }
        let mut watched = self.watched.borrow_mut();
        if watched.is_empty() {
            self.any.notify_one();
        }
        watched.push(Rc::downgrade(outlet));
    }

    /// Waits until there is something to sweep.
    pub(super) async fn any(&self) {
        while self.watched.borrow().is_empty() {
            self.any.notified().await;
        }
    }

    /// Cuts what has not moved for `timeout`; forgets what has gone or caught up.
    pub(super) fn sweep(&self, timeout: Duration) {
        self.watched.borrow_mut().retain(|outlet| {
            let Some(outlet) = outlet.upgrade() else {
                return false;
            };
            let mut state = outlet.borrow_mut();
            state.watched = match state.stalled {
                Some(since) if since.elapsed() >= timeout => {
                    state.cut();
                    false
                }
                Some(_) => true,
                None => false,
            };
            state.watched
        });
    }
}
