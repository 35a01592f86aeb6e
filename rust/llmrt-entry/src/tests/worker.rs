//! A worker as its owner sees it: real links, an inherited socket, a thread of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use serde_json::{Value, json};

use super::PATIENCE;
use super::rig::{Scratch, config};
use crate::{CoreDown, EntryConfig, EntryWorker, StartError};

fn with_links(scratch: &Scratch, fd: i32) -> Value {
    let mut config = config(scratch, json!({}));
    config["listen_fd"] = fd.into();
    for name in ["requests", "results"] {
        config["endpoints"][name] = format!("ipc://{}", scratch.0.join(name).display()).into();
    }
    config
}

fn start(config: &Value) -> Result<EntryWorker, StartError> {
    EntryWorker::start(EntryConfig::from_json(&config.to_string())?)
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_worker_starts_answers_and_ends() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let worker = start(&with_links(&scratch, listener.into_raw_fd())).unwrap();
    // The core is not there yet: alive, but not ready.
    assert!(get(address, "/health").starts_with("HTTP/1.1 200 "));
    assert!(get(address, "/ready").starts_with("HTTP/1.1 503 "));
    assert!(!worker.wait(Some(Duration::ZERO)));
    worker.shutdown(Duration::from_secs(600));
    assert!(worker.wait(Some(PATIENCE)));
    worker.core_down(CoreDown {
        reason: "too late".to_owned(),
        scheduler: Some(1),
        back_in: None,
    });
    TcpStream::connect(address).unwrap_err();
}

#[test]
fn a_dropped_worker_ends() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(start(&with_links(&scratch, listener.into_raw_fd())).unwrap());
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn a_dropped_worker_ends_though_a_client_of_it_lives_on() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let worker = start(&with_links(&scratch, listener.into_raw_fd())).unwrap();
    let client = worker.client().unwrap();
    drop(worker);
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    drop(client);
}

#[test]
fn what_cannot_start_says_why() {
    let scratch = Scratch::new();
    let file = std::fs::File::open(scratch.0.parent().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = with_links(&scratch, listener.as_raw_fd());
    let change = |path: &str, value: Value| {
        let mut config = good.clone();
        *config.pointer_mut(path).unwrap() = value;
        config
    };
    for (config, words) in [
        (
            change("/listen_fd", (-1).into()),
            "listen_fd -1 is not a descriptor",
        ),
        (
            change("/listen_fd", file.as_raw_fd().into()),
            "cannot listen",
        ),
        (
            change("/model/tokenizer/path", "/nowhere/tokenizer.json".into()),
            "/nowhere/tokenizer.json",
        ),
        (
            change("/model/chat_template", "{% for".into()),
            "chat template",
        ),
        (
            change("/endpoints/results", "ipc:///nowhere/results".into()),
            "/nowhere/results",
        ),
        (
            change("/endpoints/requests", "carrier pigeon".into()),
            "carrier pigeon",
        ),
        (
            change("/model/max_model_len", 0.into()),
            "model.max_model_len",
        ),
    ] {
        match start(&config) {
            Ok(_) => panic!("started in spite of: {words}"),
            Err(error) => assert!(error.to_string().contains(words), "{error}"),
        }
    }
}
