//! A shard with a core that does what the test says.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::{Event, Identity, Inbox, LinkOptions, LinkOutbox, Outbox, Welcome};
use llmrt_wire::{
    Credit, FinishReason, Finished, First, Message, Outcome, Reply, Request, RequestId, TextFrame,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, spawn_local};

use super::until;
use crate::config::EntryConfig;
use crate::links::Links;
use crate::prompt::Prompts;
use crate::shard::{Command, Shard};
use crate::tenants::Keys;

/// Links that notice a death quickly.
pub fn options() -> LinkOptions {
    LinkOptions {
        heartbeat: Duration::from_millis(50),
        silence: Duration::from_secs(10),
        backoff: Duration::from_millis(10),
        ..LinkOptions::default()
    }
}

/// A directory of this test's own, removed at its end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("llmrt-entry-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `tokenizer.json` whose tokens are bytes, as in GPT-2's alphabet.
pub fn byte_tokenizer() -> String {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let vocab: serde_json::Map<_, _> = (0..256u32)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).unwrap().to_string(), byte.into())
        })
        .collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []
        }
    })
    .to_string()
}

/// An entry's configuration as JSON, for a tokenizer in `scratch`; `limits` overrides some.
pub fn config(scratch: &Scratch, limits: serde_json::Value) -> serde_json::Value {
    let tokenizer = scratch.0.join("tokenizer.json");
    std::fs::write(&tokenizer, byte_tokenizer()).unwrap();
    serde_json::json!({
        "listen_fd": -1,
        "endpoints": {"requests": "requests", "results": "results"},
        "model": {
            "name": "m", "aliases": ["org/alias"], "max_model_len": 64, "vocab_size": 256,
            "tokenizer": {"kind": "json", "path": tokenizer},
            "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
        },
        "tokenizer_threads": 1,
        "limits": limits,
        "stat_interval_s": 0.02,
    })
}

/// The entry under test and the core behind it.
pub struct Rig {
    pub address: SocketAddr,
    pub shard: Rc<Shard>,
    pub core: Core,
    pub commands: UnboundedSender<Command>,
    pub served: JoinHandle<()>,
    pub network: Network,
    _scratch: Scratch,
}

impl Rig {
    /// An entry whose core is up.
    pub async fn new(limits: serde_json::Value) -> Self {
        Self::with(|config| config["limits"] = limits).await
    }

    /// The same, with `change` made to its configuration.
    pub async fn with(change: impl FnOnce(&mut serde_json::Value)) -> Self {
        let scratch = Scratch::new();
        let mut config = config(&scratch, serde_json::json!({}));
        change(&mut config);
        let config = EntryConfig::from_json(&config.to_string()).unwrap();
        let network = Network::default();
        let core = Core::with_detokenizers(&network, config.detokenizers as u32);
        let results = MemoryInbox::bind(&network, "results", Welcome::new(), options()).unwrap();
        let identity = Identity::new("entry", 0);
        let outbox = Arc::new(memory::connect(&network, "requests", identity, options()));
        let prompts = Prompts::load(&config).unwrap();
        let keys = Keys::load(config.keys()).unwrap();
        let shard = Shard::new(config, keys, prompts, Links::new(outbox, 0), None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (commands, taken) = unbounded_channel();
        let served = spawn_local(shard.clone().run(Some(listener.into()), results, taken));
        until(|| shard.check_open().is_ok()).await;
        Self {
            address,
            shard,
            core,
            commands,
            served,
            network,
            _scratch: scratch,
        }
    }

    /// The requests of the next submit.
    pub async fn submitted(&mut self) -> Vec<Request> {
        match self.core.next().await {
            Message::Submit(submit) => submit.requests,
            other => panic!("{other:?} where a submit was expected"),
        }
    }

    /// Waits until nothing is open and no permit is out.
    pub async fn idle(&self) {
        let (router, gate) = (&self.shard.router, &self.shard.gate);
        until(|| router.open_requests() == 0 && gate.permits_taken() == 0).await;
    }
}

/// Scheduler and detokenizer in one.
pub struct Core {
    messages: UnboundedReceiver<Message>,
    answers: UnboundedSender<Message>,
    scheduler: JoinHandle<()>,
    detokenizers: Vec<LinkOutbox>,
    step: u64,
}

impl Core {
    pub fn start(network: &Network) -> Self {
        Self::with_detokenizers(network, 1)
    }

    pub fn with_detokenizers(network: &Network, detokenizers: u32) -> Self {
        let welcome = Welcome {
            credit: 1024,
            ..Welcome::new()
        };
        let inbox = MemoryInbox::bind(network, "requests", welcome, options()).unwrap();
        let (arrived, messages) = unbounded_channel();
        let (answers, sent) = unbounded_channel();
        let scheduler = spawn_local(drive(inbox, arrived, sent));
        Self {
            messages,
            answers,
            scheduler,
            detokenizers: (0..detokenizers)
                .map(|index| detokenizer(network, index))
                .collect(),
            step: 0,
        }
    }

    /// The next message from the entry.
    pub async fn next(&mut self) -> Message {
        self.messages.recv().await.expect("a message")
    }

    /// The next request; calls for stats on the way are answered.
    pub async fn request(&mut self) -> Request {
        match self.next_but_calls().await {
            Message::Submit(mut submit) => submit.requests.remove(0),
            other => panic!("{other:?} where a submit was expected"),
        }
    }

    /// The next aborted ids.
    pub async fn aborted(&mut self) -> Vec<RequestId> {
        match self.next_but_calls().await {
            Message::Abort(abort) => abort.ids,
            other => panic!("{other:?} where an abort was expected"),
        }
    }

    async fn next_but_calls(&mut self) -> Message {
        loop {
            match self.next().await {
                Message::Call(call) => {
                    assert_eq!(call.method, "stats");
                    let value =
                        r#"{"num_requests_running": 3, "kv_cache_usage_perc": 0.5}"#.to_owned();
                    let reply = Reply {
                        tag: Default::default(),
                        call: call.call,
                        ok: true,
                        value,
                    };
                    self.answers.send(reply.into()).unwrap();
                }
                other => return other,
            }
        }
    }

    /// Answers calls for stats, for ever.
    pub async fn answer_calls(&mut self) {
        let message = self.next_but_calls().await;
        panic!("{message:?} where only calls were expected");
    }

    /// Grants credit for one request.
    pub fn credit(&self) {
        self.answers
            .send(
                Credit {
                    tag: Default::default(),
                    count: 1,
                }
                .into(),
            )
            .unwrap();
    }

    /// Sends one step's frame.
    pub fn step(&mut self, rows: &[Row]) {
        self.step += 1;
        let mut frame = TextFrame {
            step: self.step,
            ..TextFrame::default()
        };
        for (index, row) in rows.iter().enumerate() {
            let index = index as u32;
            frame.ids.push(row.id.0);
            frame.counts.push(row.tokens);
            frame.text.push_str(&row.text);
            frame.ends.push(frame.text.len() as u32);
            if row.first {
                frame.first.push(First {
                    row: index,
                    cached_tokens: 1,
                    queue_us: 10,
                    prefill_us: 20,
                });
            }
            if let Some(outcome) = row.outcome.clone() {
                frame.finished.push(Finished {
                    row: index,
                    outcome,
                });
            }
        }
        self.detokenizers[0].send(&frame.into()).unwrap();
    }

    /// Sends a frame as it is.
    pub fn frame(&mut self, frame: TextFrame) {
        self.detokenizers[0].send(&frame.into()).unwrap();
    }

    /// Ends a detokenizer.
    pub fn end_detokenizer(&self, index: u32) {
        self.detokenizers[index as usize].close("killed by the test");
    }

    /// Starts a successor of it.
    pub fn replace_detokenizer(&mut self, network: &Network, index: u32) {
        self.detokenizers[index as usize] = detokenizer(network, index);
    }

    /// The scheduler says that it ends.
    pub async fn die(&mut self) {
        (self.answers, _) = unbounded_channel();
        (&mut self.scheduler).await.unwrap();
    }
}

fn detokenizer(network: &Network, index: u32) -> LinkOutbox {
    let identity = Identity::new("detokenizer", index);
    memory::connect(network, "results", identity, options())
}

/// Keeps the scheduler's inbox going; closes it when nothing can be sent any more.
async fn drive(
    mut inbox: MemoryInbox,
    arrived: UnboundedSender<Message>,
    mut sent: UnboundedReceiver<Message>,
) {
    let mut entry = None;
    loop {
        tokio::select! {
            event = inbox.recv() => match event {
                Event::Message { message, .. } => drop(arrived.send(message)),
                Event::Joined { peer, .. } => entry = Some(peer),
                Event::Left { .. } => entry = None,
            },
            message = sent.recv() => match message {
                Some(message) => inbox.send(entry.unwrap(), &message).unwrap(),
                None => return inbox.close("killed by the test").await,
            },
        }
    }
}

/// One row of a frame.
#[derive(Clone)]
pub struct Row {
    id: RequestId,
    tokens: u32,
    text: String,
    first: bool,
    outcome: Option<Outcome>,
}

/// One token of text.
pub fn token(id: RequestId, text: &str) -> Row {
    Row {
        id,
        tokens: 1,
        text: text.to_owned(),
        first: false,
        outcome: None,
    }
}

/// The end of a request.
pub fn end(id: RequestId, reason: FinishReason) -> Row {
    let (status, message) = if reason == FinishReason::Error {
        (500, "broken")
    } else {
        (0, "")
    };
    let message = message.to_owned();
    let outcome = Outcome {
        reason,
        stop_token: None,
        stop_string: None,
        status,
        message,
    };
    Row {
        id,
        tokens: 0,
        text: String::new(),
        first: false,
        outcome: Some(outcome),
    }
}

impl Row {
    /// Marks the row as a request's first.
    pub fn first(mut self) -> Self {
        self.first = true;
        self
    }
}
