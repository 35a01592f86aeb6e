//! The whole entry over a real loopback socket, against a scripted core on in-memory links.

mod choices;
mod client;
mod health;
mod lifetime;
mod limits;
mod local;
mod oversize;
pub(crate) mod rig;
mod streams;
mod surface;
mod told;
mod visitor;
mod wire;
mod worker;

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Bound on everything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test on one thread, as a shard runs.
pub(crate) fn on_one_thread<F: Future<Output = ()>>(test: F) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(PATIENCE, test)
            .await
            .expect("the test took too long");
    });
}

/// Waits until `condition` holds.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
