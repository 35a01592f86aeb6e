//! The values behind the golden files; `tests/golden/cases.py` states them in Python.

use llmrt_wire::{
    Abort, Call, Credit, Dead, Ended, FinishReason, Finished, First, Heartbeat, Hello, Logprobs,
    Message, Opened, Outcome, Output, PromptLogprobs, Ready, Reply, Request, RequestId, Sampling,
    Submit, TextFrame, TokenFrame, TokenIds,
};

pub fn valid() -> Vec<(&'static str, Message)> {
    let mut cases = control();
    cases.extend(requests());
    cases.extend(frames());
    cases
}

fn control() -> Vec<(&'static str, Message)> {
    vec![
        ("hello", hello(1, "entry", 3, 0x0123_4567_89AB_CDEF)),
        (
            "hello_extremes",
            hello(u16::MAX, "räum", u32::MAX, u64::MAX),
        ),
        ("ready", ready(1, 42, 256, r#"{"max_model_len":8192}"#)),
        ("ready_empty", ready(0, 0, 0, "")),
        (
            "dead",
            Dead {
                tag: Default::default(),
                incarnation: 9,
                reason: "out of memory".into(),
            }
            .into(),
        ),
        (
            "heartbeat",
            Heartbeat {
                tag: Default::default(),
                incarnation: u64::MAX,
                sequence: 128,
            }
            .into(),
        ),
        (
            "credit",
            Credit {
                tag: Default::default(),
                count: 65536,
            }
            .into(),
        ),
        (
            "call",
            Call {
                tag: Default::default(),
                call: 1,
                method: "health".into(),
                arguments: r#"{"deep":true}"#.into(),
            }
            .into(),
        ),
        (
            "reply",
            Reply {
                tag: Default::default(),
                call: 1,
                ok: false,
                value: "\"no such method: ☃\"".into(),
            }
            .into(),
        ),
    ]
}

fn hello(version: u16, role: &str, index: u32, incarnation: u64) -> Message {
    Hello {
        tag: Default::default(),
        version,
        role: role.into(),
        index,
        incarnation,
    }
    .into()
}

fn ready(version: u16, incarnation: u64, credit: u32, info: &str) -> Message {
    Ready {
        tag: Default::default(),
        version,
        incarnation,
        credit,
        info: info.into(),
    }
    .into()
}

fn rich_output() -> Output {
    Output {
        stop: vec!["\n\n".into(), "停止".into(), "🛑".into()],
        include_stop: true,
        skip_special_tokens: false,
        min_tokens: 2,
        token_ids: true,
    }
}

fn rich_request() -> Request {
    Request {
        id: RequestId::new(0xABC, 7, (1 << 44) - 1),
        prompt: vec![0, 1, 49151, u32::MAX].into(),
        sampling: Sampling {
            temperature: 0.7,
            top_p: 0.95,
            top_k: 40,
            min_p: 0.05,
            seed: Some(u64::MAX),
            max_tokens: 128,
            min_tokens: 2,
            ignore_eos: true,
            stop_token_ids: vec![2, 49151],
            presence_penalty: -2.0,
            frequency_penalty: 0.5,
            repetition_penalty: 1.1,
            logit_bias: vec![(0, -100.0), (u32::MAX, 100.0)],
            allowed_token_ids: Some(vec![0, 2, 49151].into()),
            bad_words: vec![vec![7].into(), vec![7, 8, 9].into()],
            logprobs: Some(20),
            prompt_logprobs: Some(0),
        },
        output: rich_output(),
        priority: i32::MIN,
        cache_salt: "größe".into(),
        deadline_ms: Some(250),
    }
}

fn plain_request(prompt: Vec<u32>) -> Request {
    Request {
        id: RequestId(1),
        prompt: prompt.into(),
        sampling: Sampling::default(),
        output: Output::default(),
        priority: 200,
        cache_salt: String::new(),
        deadline_ms: None,
    }
}

fn submit(requests: Vec<Request>) -> Message {
    Submit {
        tag: Default::default(),
        requests,
    }
    .into()
}

fn requests() -> Vec<(&'static str, Message)> {
    let edges = [
        0,
        127,
        128,
        255,
        256,
        65535,
        65536,
        0xFFFF_FFFF,
        1 << 32,
        u64::MAX,
    ];
    vec![
        (
            "submit",
            submit(vec![rich_request(), plain_request(vec![5])]),
        ),
        ("submit_empty", submit(Vec::new())),
        (
            "submit_long_prompt",
            submit(vec![plain_request((0..300).collect())]),
        ),
        (
            "abort",
            Abort {
                tag: Default::default(),
                ids: edges.map(RequestId).to_vec(),
            }
            .into(),
        ),
        (
            "ended",
            Ended {
                tag: Default::default(),
                ids: (0..20).map(RequestId).collect(),
            }
            .into(),
        ),
    ]
}

fn outcome(reason: FinishReason) -> Outcome {
    Outcome {
        reason,
        stop_token: None,
        stop_string: None,
        status: 0,
        message: String::new(),
    }
}

fn first() -> First {
    First {
        row: 1,
        cached_tokens: 1024,
        queue_us: 70_000,
        prefill_us: 1 << 40,
    }
}

fn frames() -> Vec<(&'static str, Message)> {
    let stopped = Outcome {
        stop_token: Some(2),
        ..outcome(FinishReason::Stop)
    };
    let failed = Outcome {
        status: 500,
        message: "the page pool is too small".into(),
        ..outcome(FinishReason::Error)
    };
    let matched = Outcome {
        stop_string: Some("停止".into()),
        ..outcome(FinishReason::Stop)
    };
    let opened = Opened {
        id: RequestId(7),
        prompt_tail: (0..16).collect::<Vec<_>>().into(),
        output: rich_output(),
    };
    let tokens = TokenFrame {
        tag: Default::default(),
        step: u64::MAX,
        opened: vec![opened],
        ids: vec![7, 8, u64::MAX].into(),
        counts: vec![1, 3, 0].into(),
        tokens: vec![2, 10, 11, u32::MAX].into(),
        first: vec![first()],
        finished: vec![
            Finished {
                row: 0,
                outcome: stopped,
            },
            Finished {
                row: 2,
                outcome: failed,
            },
        ],
        ..TokenFrame::default()
    };
    let text = TextFrame {
        tag: Default::default(),
        step: 12,
        ids: vec![7, 8, 9].into(),
        counts: vec![2, 1, 0].into(),
        ends: vec![9, 13, 13].into(),
        text: "日本語👍".into(),
        first: vec![first()],
        finished: vec![
            Finished {
                row: 0,
                outcome: matched,
            },
            Finished {
                row: 2,
                outcome: outcome(FinishReason::Length),
            },
        ],
        ..TextFrame::default()
    };
    let long = TextFrame {
        step: 1,
        ids: vec![1].into(),
        counts: vec![u32::MAX].into(),
        ends: vec![70_000].into(),
        text: "x".repeat(70_000),
        finished: vec![Finished {
            row: 0,
            outcome: outcome(FinishReason::Abort),
        }],
        ..TextFrame::default()
    };
    vec![
        ("token_frame_logprobs", token_frame_logprobs().into()),
        ("text_frame_logprobs", text_frame_logprobs().into()),
        ("token_frame", tokens.into()),
        ("token_frame_empty", TokenFrame::default().into()),
        ("text_frame", text.into()),
        ("text_frame_empty", TextFrame::default().into()),
        ("text_frame_long", long.into()),
    ]
}

fn logprobs() -> Logprobs {
    Logprobs {
        rows: vec![0, 1].into(),
        top: vec![0, 2].into(),
        chosen: vec![-0.5, -1.5, -2.5, f32::NEG_INFINITY].into(),
        top_ids: vec![1, 2, 3, 4, 5, u32::MAX].into(),
        top_logprobs: vec![-0.25, -0.5, -0.75, -1.0, -1.25, -1.5].into(),
    }
}

fn prompt_logprobs() -> Vec<PromptLogprobs> {
    let short = PromptLogprobs {
        row: 1,
        top: 1,
        chosen: vec![-3.5, -0.125].into(),
        top_ids: vec![9, 10].into(),
        top_logprobs: vec![-3.5, -0.0625].into(),
    };
    let empty = PromptLogprobs {
        row: 2,
        top: 5,
        ..PromptLogprobs::default()
    };
    vec![short, empty]
}

fn token_frame_logprobs() -> TokenFrame {
    TokenFrame {
        step: 1,
        ids: vec![7, 8, 9].into(),
        counts: vec![1, 3, 0].into(),
        tokens: vec![2, 10, 11, u32::MAX].into(),
        logprobs: Some(logprobs()),
        prompt_logprobs: prompt_logprobs(),
        ..TokenFrame::default()
    }
}

fn text_frame_logprobs() -> TextFrame {
    TextFrame {
        step: 1,
        ids: vec![7, 8, 9].into(),
        counts: vec![1, 3, 2].into(),
        ends: vec![1, 3, 4].into(),
        text: "abcd".into(),
        tokens: Some(TokenIds {
            rows: vec![0, 1, 2].into(),
            ids: vec![2, 10, 11, u32::MAX, 5, 6].into(),
        }),
        logprobs: Some(logprobs()),
        prompt_logprobs: prompt_logprobs(),
        ..TextFrame::default()
    }
}
