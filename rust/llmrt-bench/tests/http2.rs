//! HTTP/2 against a server that sets limits, resets streams and goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, server};
use http::Response;
use llmrt_bench::{BenchConfig, Progress, Report, Watcher, run};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";

/// How a server treats its connections and streams.
#[derive(Clone, Copy)]
struct Manners {
    max_streams: u32,
    /// Streams after which a connection is closed by the book.
    streams_per_connection: usize,
    /// Every so many requests one is reset after its first token; 0 for none.
    reset_every: usize,
}

const POLITE: Manners = Manners {
    max_streams: 100,
    streams_per_connection: usize::MAX,
    reset_every: 0,
};

/// Serves on a thread that ends with the test process; returns the URL.
fn serve(manners: Manners) -> String {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(socket).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, manners, requests.clone()));
            }
        });
    });
    url
}

async fn connection(stream: TcpStream, manners: Manners, requests: Arc<AtomicUsize>) {
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(manners.max_streams);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut count = 0;
    while let Some(Ok((_, respond))) = connection.accept().await {
        count += 1;
        if count == manners.streams_per_connection {
            connection.graceful_shutdown();
        }
        let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
        let reset = manners.reset_every > 0 && number.is_multiple_of(manners.reset_every);
        tokio::spawn(answer(respond, reset));
    }
}

async fn answer(mut respond: SendResponse<Bytes>, reset: bool) {
    let head = Response::builder().header("content-type", "text/event-stream");
    let mut body = respond
        .send_response(head.body(()).unwrap(), false)
        .unwrap();
    let first = body.send_data(TOKEN.into(), false);
    // Long enough for what may run at once to do so.
    tokio::time::sleep(Duration::from_millis(5)).await;
    if reset {
        body.send_reset(Reason::INTERNAL_ERROR);
    } else {
        let rest = format!("{TOKEN}data: [DONE]\n\n");
        first
            .and_then(|()| body.send_data(rest.into(), true))
            .unwrap();
    }
}

struct Patient;

impl Watcher for Patient {
    fn tick(&mut self, _: Progress) -> bool {
        true
    }
}

fn measure(url: &str, changes: serde_json::Value) -> Report {
    let mut config = json!({
        "base_url": url, "endpoint": "completions", "model": "m", "http2": true, "timeout": 30, "warmup": 1,
        "num_prompts": 24, "max_concurrency": 6,
        "workload": {"kind": "random", "input_len": 4, "output_len": 2},
    });
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    let config = BenchConfig::from_json(&config.to_string()).unwrap();
    run(&config, &mut Patient).unwrap()
}

#[test]
fn requests_share_connections_as_the_flag_says() {
    let url = serve(POLITE);
    let report = measure(&url, json!({"streams_per_connection": 4}));
    assert_eq!((report.completed, report.chunks), (24, 48));
    assert_eq!(report.connections, 2);
    assert_eq!(report.peak_concurrency, 6);
}

#[test]
fn a_servers_own_limit_opens_more_connections() {
    let url = serve(Manners {
        max_streams: 2,
        ..POLITE
    });
    let report = measure(&url, json!({}));
    assert_eq!((report.completed, report.failed), (24, 0));
    // Two at once on each; a third is not needed where an early request has ended by then.
    assert!(
        (2..=3).contains(&report.connections),
        "{}",
        report.connections
    );
}

#[test]
fn a_reset_stream_fails_alone() {
    let url = serve(Manners {
        reset_every: 5,
        ..POLITE
    });
    let report = measure(&url, json!({}));
    // The warm-up is the first of 25 requests.
    assert_eq!(
        (report.completed, report.failed, report.connections),
        (19, 5, 1)
    );
    assert_eq!(report.failures[0].kind, "early_close");
    assert!(
        report.failures[0].message.contains("stream error"),
        "{:?}",
        report.failures
    );
}

#[test]
fn a_connection_that_goes_away_is_replaced() {
    let url = serve(Manners {
        streams_per_connection: 3,
        ..POLITE
    });
    let report = measure(&url, json!({"max_concurrency": 1, "num_prompts": 11}));
    assert_eq!(
        (report.completed, report.failed),
        (11, 0),
        "{:?}",
        report.failures
    );
    assert!(report.connections >= 4, "{}", report.connections);
}

#[test]
fn a_watcher_cuts_a_run() {
    struct Hasty;
    impl Watcher for Hasty {
        fn tick(&mut self, progress: Progress) -> bool {
            progress.completed < 3
        }
    }
    let url = serve(POLITE);
    let config = json!({
        "base_url": url, "endpoint": "chat", "model": "m", "http2": true, "timeout": 30, "num_prompts": 20_000,
        "max_concurrency": 2, "workload": {"kind": "random", "input_len": 1, "output_len": 2},
    });
    let report = run(
        &BenchConfig::from_json(&config.to_string()).unwrap(),
        &mut Hasty,
    )
    .unwrap();
    assert_eq!(report.cut, Some("interrupted"));
    assert!((3..20_000).contains(&report.completed));
    let all = report.completed + report.failed + report.unfinished + report.not_sent;
    assert_eq!(all, 20_000);
}
