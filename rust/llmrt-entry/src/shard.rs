//! The I/O shard: one thread that owns its connections, the open responses on them, the submit outbox and the
//! results inbox.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use llmrt_link::{Identity, Inbox, PeerState};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;

use crate::api::{self, ApiError, Models};
use crate::config::EntryConfig;
use crate::control::Control;
use crate::core::{Core, CoreState};
use crate::gate::{Bounds, Gate};
use crate::handlers::Probes;
use crate::http::{BodyBudget, Cors, Hosts, HttpService, RequestIds, Routes};
use crate::links::Links;
use crate::local::LocalRequest;
use crate::metrics::Metrics;
use crate::openapi::Documents;
use crate::prompt::Prompts;
use crate::results;
use crate::router::{Router, RouterLimits};
use crate::server::{Certificates, Connections, Listener, LocalExecutor};
use crate::stat_line;
use crate::succession::Succession;
use crate::tenants::Keys;

/// How long responses get to leave after their last event was queued, when the worker ends.
const FLUSH: Duration = Duration::from_secs(1);

/// What the owner of a worker can ask of it.
#[derive(Debug)]
pub enum Command {
    /// A process of the core is dead.
    CoreDown(CoreDown),
    /// Read the certificates and the file of keys again.
    Reload,
    /// Answer a request of this process.
    Request(Box<LocalRequest>),
    /// Take no new requests; give the open ones so long.
    Shutdown { timeout: Duration },
}

/// What the supervisor knows of a process that has died.
#[derive(Clone, Debug)]
pub struct CoreDown {
    pub reason: String,
    /// The scheduler that has died, by its incarnation; none when it was another process, whose end shows at its
    /// links.
    pub scheduler: Option<u64>,
    /// When the core is expected to be up again.
    pub back_in: Option<Duration>,
}

/// State of a shard, shared by the tasks on its thread.
pub struct Shard {
    pub config: EntryConfig,
    api_limits: RefCell<Arc<api::Limits>>,
    pub keys: Keys,
    pub bodies: BodyBudget,
    pub models: Models,
    pub prompts: Prompts,
    pub gate: Rc<Gate>,
    pub router: Rc<Router>,
    pub core: Core,
    /// The supervisor, where it is another process.
    pub control: Option<Control>,
    pub metrics: Rc<Metrics>,
    pub routes: Routes,
    pub hosts: Hosts,
    pub cors: Cors,
    pub documents: Documents,
    pub request_ids: RequestIds,
    pub connections: Connections,
    pub probes: Probes,
    /// Random per start; part of the ids of answers.
    pub incarnation: u64,
    draining: Cell<bool>,
    pub last_frame: Cell<Option<Instant>>,
}

impl Shard {
    /// # Errors
    /// The route table contradicts itself.
    pub fn new(
        config: EntryConfig,
        keys: Keys,
        prompts: Prompts,
        links: Links,
        certificates: Option<Certificates>,
    ) -> Result<Rc<Self>, matchit::InsertError> {
        let metrics = Rc::new(Metrics::new(&config.model.name));
        let bounds = Bounds {
            permits: config.limits.max_requests,
            running: config.limits.max_running,
            queued_tokens: config.limits.max_queued_tokens,
        };
        let gate = Gate::new(bounds, links.keeper);
        let limits = RouterLimits {
            buffer_bytes: config.limits.response_buffer_bytes,
            stall_timeout: config.limits.stall_timeout(),
            ping_interval: config.limits.ping_interval(),
        };
        Ok(Rc::new(Self {
            api_limits: RefCell::new(Arc::new(api::Limits {
                max_model_len: config.model.max_model_len,
                vocab_size: config.model.vocab_size,
                max_choices: config.limits.max_choices.min(config.limits.max_requests),
                priorities: config.priorities,
                defaults: config.model.defaults.clone(),
            })),
            keys,
            bodies: BodyBudget::new(config.limits.max_bodies_bytes),
            models: models(&config),
            prompts,
            router: Router::new(
                links.place,
                0,
                limits,
                gate.clone(),
                links.outbox.clone(),
                metrics.clone(),
            ),
            gate,
            core: Core::new(links.outbox, config.detokenizers),
            control: links.supervisor.map(Control::new),
            metrics,
            routes: Routes::new()?,
            hosts: Hosts::new(config.web.allowed_hosts.as_deref()),
            cors: Cors::new(&config.web.cors),
            documents: Documents::default(),
            request_ids: RequestIds::new(),
            connections: Connections::new(&config, certificates),
            probes: Probes::default(),
            incarnation: Identity::draw(),
            draining: Cell::new(false),
            last_frame: Cell::new(None),
            config,
        }))
    }

    /// Serves until a shutdown was asked for and has ended. Must run on a `LocalSet`.
    pub async fn run<I: Inbox + 'static>(
        self: Rc<Self>,
        listener: Option<Listener>,
        inbox: I,
        mut commands: UnboundedReceiver<Command>,
    ) {
        let accepting = listener.map(|listener| spawn_local(self.clone().accept(listener)));
        spawn_local(results::take(self.clone(), inbox));
        spawn_local(self.clone().watch_scheduler());
        spawn_local(self.clone().take_replies());
        spawn_local(self.gate.clone().ask_keeper());
        let shard = self.clone();
        spawn_local(async move { shard.router.watch_stalls().await });
        let shard = self.clone();
        spawn_local(async move { shard.router.ping_silent().await });
        spawn_local(stat_line::write(self.clone()));
        if let Some(certificates) = self.connections.certificates() {
            spawn_local(async move { certificates.watch().await });
        }
        let shard = self.clone();
        spawn_local(async move { shard.keys.watch().await });
        let timeout = loop {
            let Some(command) = commands.recv().await else {
                // The owner is gone: nobody could shut us down any more.
                break Duration::ZERO;
            };
            if let Some(timeout) = self.obey(command) {
                break timeout;
            }
        };
        let drained = self.drain(timeout);
        tokio::pin!(drained);
        loop {
            tokio::select! {
                () = &mut drained => break,
                // A second request to shut down may shorten the first.
                Some(command) = commands.recv() => if let Some(timeout) = self.obey(command) {
                    drained.set(self.drain(timeout));
                },
            }
        }
        if let Some(accepting) = accepting {
            accepting.abort();
        }
    }

    async fn accept(self: Rc<Self>, listener: Listener) {
        let shard = self.clone();
        let service = move |peer| HttpService::of(shard.clone(), peer);
        self.connections.accept(listener, service).await;
    }

    /// Does what the owner asks; a shutdown is left to the caller, with its timeout.
    fn obey(self: &Rc<Self>, command: Command) -> Option<Duration> {
        match command {
            Command::CoreDown(down) => self.core_down(&down),
            Command::Reload => drop(spawn_local(self.clone().reload())),
            Command::Request(request) => LocalExecutor.execute(request.answer(self.clone())),
            Command::Shutdown { timeout } => return Some(timeout),
        }
        None
    }

    /// Reads again whatever is in files.
    async fn reload(self: Rc<Self>) {
        let certificates = self.connections.certificates();
        if let Some(certificates) = &certificates {
            certificates.reload().await;
        }
        self.keys.reload().await;
        if certificates.is_none() && !self.keys.has_file() {
            tracing::info!("no certificates or keys to reload");
        }
    }

    fn core_down(&self, down: &CoreDown) {
        if let Some(wait) = down.back_in {
            self.core.expect_back(wait);
        }
        if let Some(incarnation) = down.scheduler
            && self.core.told_down(incarnation, &down.reason)
        {
            self.core_lost(&down.reason);
        }
    }

    /// Whether a new generation can be taken.
    ///
    /// # Errors
    /// 503 while the worker drains and while the core is not up.
    pub fn check_open(&self) -> Result<(), ApiError> {
        use crate::metrics::Rejection::{CoreDown, Draining};
        if self.draining.get() {
            self.metrics.rejected(Draining);
            return Err(ApiError::unavailable("The server is shutting down."));
        }
        let message = match self.core.state() {
            CoreState::Up => return Ok(()),
            CoreState::Starting => "The model is still loading.",
            CoreState::Down { .. } => "The model is not running.",
        };
        self.metrics.rejected(CoreDown);
        Err(self.core.unavailable(message))
    }

    /// Whether the worker takes no new requests any more.
    pub fn draining(&self) -> bool {
        self.draining.get()
    }

    /// What somebody who looks in is told.
    pub fn stats(&self) -> serde_json::Value {
        let core = match self.core.state() {
            CoreState::Starting => "starting",
            CoreState::Up => "up",
            CoreState::Down { .. } => "down",
        };
        let last_frame = self.last_frame.get().map(|at| at.elapsed().as_secs_f64());
        serde_json::json!({
            "core": core,
            "open_requests": self.router.open_requests(),
            "permits": self.gate.permits_taken(),
            "open_connections": self.connections.open(),
            "queued_prompts": self.prompts.queued(),
            "queued_tokens": self.gate.queued_tokens(),
            "waiting_turns": self.gate.waiting_turns(),
            "seconds_since_last_frame": last_frame,
        })
    }

    /// Ends the open requests of a scheduler that died or was replaced.
    async fn watch_scheduler(self: Rc<Self>) {
        let mut state = self.core.watch_scheduler();
        let mut succession = Succession::default();
        loop {
            let now = state.borrow_and_update().clone();
            if let Some(reason) = succession.lost(&now) {
                self.core_lost(reason);
            }
            if let PeerState::Ready { info, .. } = &now {
                tracing::info!("the scheduler is ready");
                self.fit_core(info);
            }
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    /// What requests are checked against.
    pub fn api_limits(&self) -> Arc<api::Limits> {
        self.api_limits.borrow().clone()
    }

    /// Takes over a context that is shorter than the configured one, as the core's description has it when its memory
    /// holds no more.
    fn fit_core(&self, info: &str) {
        #[derive(serde::Deserialize)]
        struct Described {
            max_model_len: u32,
        }
        // A core that describes nothing holds what was configured.
        let configured = self.config.model.max_model_len;
        let max_model_len = serde_json::from_str(info).map_or(configured, |core: Described| {
            core.max_model_len.min(configured)
        });
        if max_model_len < configured {
            tracing::warn!(
                max_model_len,
                configured,
                "the core holds shorter sequences"
            );
        }
        let limits = api::Limits {
            max_model_len,
            ..api::Limits::clone(&self.api_limits())
        };
        self.api_limits.replace(Arc::new(limits));
        self.models.set_max_model_len(max_model_len);
    }

    async fn take_replies(self: Rc<Self>) {
        let Some(mut incoming) = self.core.take_incoming() else {
            return;
        };
        while let Some(message) = incoming.recv().await {
            self.core.incoming(message);
        }
    }

    fn core_lost(&self, reason: &str) {
        let open = self.router.open_requests();
        tracing::warn!(reason, open, "the core is lost");
        let error = ApiError::unavailable("The model's process ended; the answer is incomplete.");
        self.router.fail_all(&error);
    }

    /// Ends the requests whose text a detokenizer made; those of others go on when its successor is there.
    pub fn detokenizer_lost(&self, index: usize, reason: &str) {
        tracing::warn!(index, reason, "a detokenizer is lost");
        let error = ApiError::unavailable("The text of this answer got lost with its process.");
        let detokenizers = self.config.detokenizers;
        self.router
            .fail(&error, |id| id.detokenizer(detokenizers) == index);
    }

    /// Lets open requests end, for `timeout`; then ends them.
    async fn drain(&self, timeout: Duration) {
        self.draining.set(true);
        self.connections.drain();
        tracing::info!(open = self.router.open_requests(), "shutting down");
        if tokio::time::timeout(timeout, self.connections.closed())
            .await
            .is_ok()
        {
            return;
        }
        self.router
            .fail_all(&ApiError::unavailable("The server is shutting down."));
        if tokio::time::timeout(FLUSH, self.connections.closed())
            .await
            .is_err()
        {
            tracing::warn!(
                open = self.connections.open(),
                "connections closed by force"
            );
        }
    }
}

fn models(config: &EntryConfig) -> Models {
    let model = &config.model;
    Models::new(
        model.name.clone(),
        model.aliases.clone(),
        model.created,
        model.max_model_len,
    )
}
