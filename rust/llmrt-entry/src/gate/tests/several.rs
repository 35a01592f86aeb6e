//! Gates of several workers before one keeper, over links in memory.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::{Identity, Inbox, Welcome};
use tokio::task::{JoinHandle, spawn_local};

use super::super::keeper::Service;
use super::super::*;
use crate::tenants::{KeySources, Keys};
use crate::tests::rig::{Scratch, options};
use crate::tests::{on_one_thread, until};

const BOUNDS: Bounds = Bounds {
    permits: 8,
    running: 1,
    queued_tokens: 0,
};

/// A keeper, and the file of keys that it and the workers read.
struct Office {
    network: Network,
    keeper: Option<JoinHandle<()>>,
    sources: KeySources,
    _scratch: Scratch,
}

/// A worker: its gate and its keys.
struct Worker {
    gate: Rc<Gate>,
    keys: Keys,
    asking: JoinHandle<()>,
}

impl Office {
    fn new(keys: &str) -> Self {
        let scratch = Scratch::new();
        let path = scratch.0.join("keys");
        std::fs::write(&path, keys).unwrap();
        let mut office = Self {
            network: Network::default(),
            keeper: None,
            sources: KeySources {
                file: Some(path),
                ..KeySources::default()
            },
            _scratch: scratch,
        };
        office.open();
        office
    }

    fn open(&mut self) {
        let inbox = MemoryInbox::bind(&self.network, "ledger", Welcome::new(), options());
        let mut inbox = inbox.unwrap();
        let keys = Rc::new(Keys::load(self.sources.clone()).unwrap());
        self.keeper = Some(spawn_local(async move {
            let mut service = Service::new(BOUNDS, keys);
            loop {
                let event = inbox.recv().await;
                service.take(event, &mut inbox).await;
            }
        }));
    }

    async fn die(&mut self) {
        let keeper = self.keeper.take().unwrap();
        keeper.abort();
        let _ = keeper.await;
    }

    /// A worker that is in touch with the keeper.
    async fn worker(&self, index: u32) -> Worker {
        let identity = Identity::new("entry", index);
        let outbox = memory::connect(&self.network, "ledger", identity, options());
        let gate = Gate::new(BOUNDS, Some(Arc::new(outbox)));
        let asking = spawn_local(gate.clone().ask_keeper());
        until(|| gate.asks_keeper()).await;
        let keys = Keys::load(self.sources.clone()).unwrap();
        Worker { gate, keys, asking }
    }
}

impl Worker {
    fn tenant(&self, key: &str) -> Rc<Tenant> {
        self.keys.holder(key.as_bytes()).unwrap().tenant
    }

    async fn admit(&self, key: &str) -> Option<Vec<Permit>> {
        self.gate.admit(&self.tenant(key), 1, true).await.ok()
    }

    /// How many of `count` requests are let in together; they end at once.
    async fn let_in(&self, key: &str, count: usize) -> usize {
        let mut held = Vec::new();
        for _ in 0..count {
            held.extend(self.admit(key).await);
        }
        held.len()
    }
}

fn prompt(tokens: u32) -> Answers {
    Answers::new(&[tokens], 0, None)
}

#[test]
fn open_answers_and_requests_per_minute_are_counted_over_all_workers() {
    on_one_thread(async {
        let office = Office::new("two concurrent=2\nthree rpm=3\nmany\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let first = one.admit("two").await.unwrap();
        let second = other.admit("two").await.unwrap();
        assert!(one.admit("two").await.is_none() && other.admit("two").await.is_none());
        drop(first);
        let again = other.admit("two").await.unwrap();
        assert!(one.admit("two").await.is_none());
        drop((second, again));
        assert_eq!(one.let_in("two", 3).await, 2);
        assert_eq!(
            one.let_in("three", 2).await + other.let_in("three", 2).await,
            3
        );
        let held = one.admit("many").await.unwrap();
        assert_eq!(
            held.len() + other.let_in("many", 20).await,
            6,
            "a quarter is kept"
        );
    });
}

#[test]
fn lines_take_turns_over_all_workers() {
    on_one_thread(async {
        let office = Office::new("flood\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let mut flood = Vec::new();
        for _ in 0..4 {
            flood.push(one.admit("flood").await.unwrap());
        }
        let mut running = Vec::new();
        for permits in &flood[..2] {
            running.push(one.gate.queue(permits, prompt(1)).await.unwrap());
        }
        let mut waiting: Vec<_> = (flood[2..].iter())
            .map(|permits| Box::pin(one.gate.queue(permits, prompt(1))))
            .collect();
        for wait in &mut waiting {
            assert!(wait.now_or_never().is_none());
        }
        let late = other.admit("other").await.unwrap();
        let mut next = Box::pin(other.gate.queue(&late, prompt(1)));
        assert!((&mut next).now_or_never().is_none());
        assert_eq!((one.gate.waiting_turns(), one.gate.queued_tokens()), (2, 4));
        running.pop();
        let first = (&mut waiting[0]).await.unwrap();
        assert!((&mut next).now_or_never().is_none());
        running.pop();
        let turn = next.await.unwrap();
        assert!(
            (&mut waiting[1]).now_or_never().is_none(),
            "it is not the flood's turn"
        );
        // A client that leaves the line makes no difference to those behind it.
        drop(waiting);
        drop((first, turn, flood, late));
        until(|| one.gate.permits_taken() + other.gate.permits_taken() == 0).await;
        assert_eq!(one.let_in("flood", 8).await, 6);
    });
}

#[test]
fn who_leaves_while_it_is_asked_for_gives_up_its_place() {
    on_one_thread(async {
        let office = Office::new("two concurrent=2\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        for _ in 0..50 {
            // On its way to the keeper, and on the way back.
            assert!(one.admit("two").now_or_never().is_none());
            let mut asked = Box::pin(one.admit("two"));
            assert!((&mut asked).now_or_never().is_none());
            tokio::task::yield_now().await;
            drop(asked);
        }
        assert_eq!(other.let_in("two", 3).await, 2);
        assert_eq!(
            (one.gate.permits_taken(), other.gate.permits_taken()),
            (0, 0)
        );
    });
}

#[test]
fn a_worker_that_dies_gives_back_what_it_held() {
    on_one_thread(async {
        let office = Office::new("two concurrent=2\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let held = [
            one.admit("two").await.unwrap(),
            one.admit("two").await.unwrap(),
        ];
        assert!(other.admit("two").await.is_none());
        one.asking.abort();
        let gate = Rc::downgrade(&one.gate);
        drop((held, one));
        until(|| gate.upgrade().is_none()).await;
        while other.admit("two").await.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(other.let_in("two", 3).await, 2);
    });
}

#[test]
fn workers_go_on_without_the_keeper_and_tell_its_successor_what_they_hold() {
    on_one_thread(async {
        let mut office = Office::new("two concurrent=2\nflood\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let held = one.admit("two").await.unwrap();
        let mut flood = Vec::new();
        let mut running = Vec::new();
        for _ in 0..3 {
            flood.push(other.admit("flood").await.unwrap());
        }
        for permits in &flood[..2] {
            running.push(other.gate.queue(permits, prompt(1)).await.unwrap());
        }
        let mut waits = Box::pin(other.gate.queue(&flood[2], prompt(1)));
        assert!((&mut waits).now_or_never().is_none());
        office.die().await;
        // What is asked for meanwhile is decided here, at once or when the loss shows.
        let more = one.admit("two").await.unwrap();
        assert!(one.admit("two").await.is_none());
        until(|| !one.gate.asks_keeper() && !other.gate.asks_keeper()).await;
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(other.gate.waiting_turns(), 1);
        office.open();
        until(|| one.gate.asks_keeper() && other.gate.asks_keeper()).await;
        assert!(other.admit("two").await.is_none());
        drop(more);
        drop(held);
        assert_eq!(one.let_in("two", 3).await, 2);
        // Who waited here waits there now.
        assert!((&mut waits).now_or_never().is_none());
        running.pop();
        let turn = waits.await.unwrap();
        drop((turn, running));
        drop(flood);
        assert_eq!(other.let_in("flood", 8).await, 6);
    });
}

#[test]
fn who_waits_in_line_has_its_turn_though_the_keeper_is_gone() {
    on_one_thread(async {
        let mut office = Office::new("flood\nother\n");
        let one = office.worker(0).await;
        let permits = [(); 3].map(|()| one.admit("flood"));
        let permits = futures_util::future::join_all(permits).await;
        let permits: Vec<_> = permits.into_iter().map(Option::unwrap).collect();
        let mut running = Vec::new();
        for permits in &permits[..2] {
            running.push(one.gate.queue(permits, prompt(1)).await.unwrap());
        }
        let mut waits = Box::pin(one.gate.queue(&permits[2], prompt(1)));
        assert!((&mut waits).now_or_never().is_none());
        office.die().await;
        until(|| !one.gate.asks_keeper()).await;
        assert!((&mut waits).now_or_never().is_none());
        running.pop();
        waits.await.unwrap();
    });
}

#[test]
fn a_key_that_only_a_worker_knows_yet_is_looked_up_at_once() {
    on_one_thread(async {
        let office = Office::new("old\nother\n");
        let path = office.sources.file.clone().unwrap();
        std::fs::write(&path, "new concurrent=1\nother\n").unwrap();
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let held = one.admit("new").await.unwrap();
        assert!(other.admit("new").await.is_none());
        drop(held);
        assert_eq!(other.let_in("new", 2).await, 1);
    });
}

#[test]
fn one_that_is_late_makes_room_for_another_worker() {
    on_one_thread(async {
        let office = Office::new("two concurrent=2\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let ended = Rc::new(Cell::new(0));
        let told = ended.clone();
        one.gate.on_late(move |ids| told.set(ids.len()));
        let deadline = Instant::now() + Duration::from_millis(20);
        let answers = || Answers::new(&[3], 0, Some(deadline));
        let (submitted, begun) = (
            one.admit("two").await.unwrap(),
            one.admit("two").await.unwrap(),
        );
        let turns = one.gate.queue(&submitted, answers()).await.unwrap();
        one.gate.submitted(&submitted[0], vec![RequestId(7)]);
        let more = one.gate.queue(&begun, answers()).await.unwrap();
        more[0].begun();
        tokio::time::sleep_until(deadline.into()).await;
        // The permit of the one that has begun stays.
        let instead = other.admit("two").await.unwrap();
        until(|| ended.get() == 1).await;
        assert!(other.admit("two").await.is_none());
        drop((turns, submitted, more, begun, instead));
        assert_eq!(other.let_in("two", 3).await, 2);
    });
}

#[test]
fn tokens_per_minute_are_counted_over_all_workers() {
    on_one_thread(async {
        let office = Office::new("much tpm=100\nother\n");
        let (one, other) = (office.worker(0).await, office.worker(1).await);
        let (here, there) = (
            one.admit("much").await.unwrap(),
            other.admit("much").await.unwrap(),
        );
        let turns = one.gate.queue(&here, prompt(50)).await.unwrap();
        let refused = other.gate.queue(&there, prompt(60)).await;
        let refusal = refused.map(drop).unwrap_err();
        assert!(
            refusal
                .error
                .wait()
                .is_some_and(|wait| wait <= Duration::from_secs(6))
        );
        one.gate.used(&one.tenant("much"), 45, Instant::now());
        // What was used is told before what is asked.
        drop(one.admit("other").await.unwrap());
        assert!(other.gate.queue(&there, prompt(20)).await.is_err());
        drop(turns);
    });
}

#[test]
fn a_keeper_refuses_times_that_no_clock_can_measure() {
    let config = serde_json::json!({
        "endpoint": "ipc:///nowhere", "max_requests": 1, "max_running": 1, "max_queued_tokens": 0, "api_keys": [],
        "admin_api_keys": [], "api_key_file": null, "priorities": false,
        "log": {"format": "text", "level": "info"}, "link": {"heartbeat_s": 0, "silence_s": 1},
    });
    let refusal = Keeper::start(&config.to_string()).err().expect("a refusal");
    assert!(
        refusal.to_string().contains("link.heartbeat_s"),
        "{refusal}"
    );
}
