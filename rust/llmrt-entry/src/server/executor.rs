//! Where hyper's tasks run: on the shard's own thread.

use std::future::Future;

use hyper::rt::Executor;

use super::hangup::Carrier;

/// Spawns on the current `LocalSet`, so that services and bodies need not be `Send`.
#[derive(Clone, Copy, Debug)]
pub struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(Carrier::new(future));
    }
}
