//! From a body to what the core is sent, or to the error that names the field.

use llmrt_wire::{Output, Sampling};
use serde_json::{Value, json};

use super::super::lists::{MAX_LOGIT_BIAS, MAX_STOP_BYTES};
use super::super::sampling::MAX_STOP_TOKEN_IDS;
use super::super::{CompletionRequest, Defaults, Limits, Options};
use super::{chat, completion, limits, rendered};

fn fit(options: Options, prompt_tokens: usize) -> (Sampling, Output) {
    options.generation.fit(prompt_tokens, &limits()).unwrap()
}

/// Both endpoints must refuse `extra` with 400 and name `param`.
fn refused(extra: Value, param: &str) {
    let errors = [
        chat(extra.clone()).map(drop).unwrap_err(),
        completion(extra.clone()).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.status(), 400, "{extra}");
        assert_eq!(rendered(&error)["param"], param, "{extra}: {error}");
        assert!(error.message().contains(param), "{extra}: {error}");
    }
}

fn accepted(extra: Value) {
    chat(extra.clone()).unwrap_or_else(|error| panic!("{extra}: {error}"));
    completion(extra.clone()).unwrap_or_else(|error| panic!("{extra}: {error}"));
}

#[test]
fn numbers_outside_their_range() {
    let cases = [
        (
            "temperature",
            vec![json!(-0.1), json!(2.1), json!("1"), json!(true), json!([])],
        ),
        (
            "top_p",
            vec![json!(0), json!(1e-60), json!(1.01), json!(-1), json!({})],
        ),
        ("top_k", vec![json!(-2), json!(1.5), json!("5")]),
        ("min_p", vec![json!(-0.01), json!(1.01)]),
        (
            "seed",
            vec![json!(0.5), json!(u64::MAX), json!("1"), json!(1e300)],
        ),
        (
            "max_tokens",
            vec![json!(0), json!(-1), json!(1.5), json!("7")],
        ),
        ("max_completion_tokens", vec![json!(0), json!(-5)]),
        ("min_tokens", vec![json!(-1), json!(101), json!(0.1)]),
        ("presence_penalty", vec![json!(-2.1), json!(2.1)]),
        ("frequency_penalty", vec![json!(-2.1), json!(2.1)]),
        (
            "repetition_penalty",
            vec![json!(0), json!(-1), json!(9.9e-7), json!(1000000.1)],
        ),
        ("ignore_eos", vec![json!(1), json!("true")]),
        ("include_stop_str_in_output", vec![json!(0)]),
        ("skip_special_tokens", vec![json!("no")]),
        ("stream", vec![json!(1), json!("true")]),
        ("model", vec![json!(1)]),
        ("n", vec![json!(0), json!(-1), json!(129), json!(5_000_000)]),
        (
            "priority",
            vec![json!(1u64 << 31), json!(0.5), json!("high")],
        ),
        ("cache_salt", vec![json!(1), json!("x".repeat(257))]),
        (
            "truncate_prompt_tokens",
            vec![json!(0), json!(-2), json!(101)],
        ),
        ("add_special_tokens", vec![json!(1)]),
    ];
    for (name, values) in cases {
        for value in values {
            refused(json!({name: value}), name);
        }
    }
}

#[test]
fn numbers_at_their_bounds() {
    let cases = [
        (
            "temperature",
            vec![json!(0), json!(2), json!(0.7), json!(null)],
        ),
        ("top_p", vec![json!(1), json!(0.001)]),
        (
            "top_k",
            vec![json!(-1), json!(0), json!(1), json!(i64::MAX), json!(5.0)],
        ),
        ("min_p", vec![json!(0), json!(1)]),
        (
            "seed",
            vec![json!(i64::MIN), json!(i64::MAX), json!(0), json!(-1)],
        ),
        (
            "max_tokens",
            vec![json!(1), json!(i64::MAX), json!(null), json!(16.0)],
        ),
        ("presence_penalty", vec![json!(-2), json!(2)]),
        ("repetition_penalty", vec![json!(1e-6), json!(1e6)]),
        (
            "logit_bias",
            vec![json!({"0": -100, "49": 100}), json!({}), json!(null)],
        ),
        (
            "stop",
            vec![
                json!("x"),
                json!([]),
                json!(["a", "b", "c", "d"]),
                json!(null),
            ],
        ),
        ("stop_token_ids", vec![json!([0, 49]), json!([])]),
        ("allowed_token_ids", vec![json!([0, 49]), json!(null)]),
        ("bad_words", vec![json!(["x", " y"]), json!([])]),
        ("deadline_ms", vec![json!(1), json!(86_400_000)]),
    ];
    for (name, values) in cases {
        for value in values {
            accepted(json!({name: value}));
        }
    }
}

#[test]
fn lists_and_maps_are_bounded() {
    let long = "x".repeat(MAX_STOP_BYTES);
    accepted(json!({"stop": long}));
    refused(json!({"stop": long + "x"}), "stop");
    refused(json!({"stop": ["a", "b", "c", "d", "e"]}), "stop");
    refused(json!({"stop": ""}), "stop");
    refused(json!({"stop": ["a", ""]}), "stop[1]");
    refused(json!({"stop": ["a", 1]}), "stop[1]");
    refused(json!({"stop": 5}), "stop");
    refused(
        json!({"stop_token_ids": vec![1; MAX_STOP_TOKEN_IDS + 1]}),
        "stop_token_ids",
    );
    refused(json!({"stop_token_ids": [1, 50]}), "stop_token_ids[1]");
    refused(json!({"stop_token_ids": [-1]}), "stop_token_ids[0]");
    for key in [
        "50",
        "-1",
        "01",
        "+1",
        "x",
        "",
        " 1",
        "99999999999999999999",
    ] {
        refused(json!({"logit_bias": {key: 1}}), "logit_bias");
    }
    refused(json!({"logit_bias": {"7": 100.5}}), "logit_bias.7");
    refused(json!({"logit_bias": {"7": null}}), "logit_bias.7");
    refused(json!({"logit_bias": [[7, 1]]}), "logit_bias");
    let many: Value = (0..=MAX_LOGIT_BIAS)
        .map(|id| (id.to_string(), json!(1)))
        .collect();
    refused(json!({"logit_bias": many}), "logit_bias");
}

#[test]
fn fields_against_each_other() {
    refused(json!({"min_tokens": 5, "max_tokens": 4}), "min_tokens");
    accepted(json!({"min_tokens": 5, "max_tokens": 5}));
    refused(
        json!({"max_completion_tokens": 3, "max_tokens": 4}),
        "max_completion_tokens",
    );
    accepted(json!({"max_completion_tokens": 4, "max_tokens": 4}));
    refused(
        json!({"stream_options": {"include_usage": true}}),
        "stream_options",
    );
    refused(
        json!({"stream_options": {}, "stream": false}),
        "stream_options",
    );
    accepted(json!({"stream_options": null}));
    accepted(json!({"stream_options": {"include_usage": null}, "stream": true}));
    let part = "stream_options.include_usage";
    refused(
        json!({"stream_options": {"include_usage": 1}, "stream": true}),
        part,
    );
    let part = "stream_options.continuous_usage_stats";
    refused(
        json!({"stream_options": {"continuous_usage_stats": "yes"}, "stream": true}),
        part,
    );
    refused(json!({"n": 2, "temperature": 0}), "n");
    accepted(json!({"n": 1, "temperature": 0}));
    refused(json!({"n": 2, "best_of": 3}), "best_of");
    refused(json!({"best_of": 2}), "best_of");
}

#[test]
fn what_is_not_supported_says_so() {
    let cases = [
        json!({"tools": []}),
        json!({"tool_choice": "auto"}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"reasoning_effort": "low"}),
        json!({"guided_choice": ["a"]}),
        json!({"chat_template": "{{ x }}"}),
        json!({"documents": [{"text": "x"}]}),
    ];
    for extra in cases {
        let (name, _) = extra.as_object().unwrap().iter().next().unwrap();
        refused(extra.clone(), name);
        let error = chat(extra.clone()).unwrap_err();
        assert_eq!(rendered(&error)["code"], "unsupported_parameter");
    }
}

#[test]
fn unknown_fields_are_noted_and_bounded() {
    let request = chat(json!({"frobnicate": 1, "user": "me", "n": 1})).unwrap();
    assert_eq!(request.options.unknown, ["`frobnicate`"]);
    let flood: Value = (0..1000)
        .map(|n| (format!("f{n}").repeat(100), json!(n)))
        .collect();
    let unknown = chat(flood).unwrap().options.unknown;
    assert!(unknown.len() <= 16 && unknown.iter().all(|name| name.len() < 100));
}

#[test]
fn max_tokens_defaults_and_room() {
    assert_eq!(
        fit(completion(json!({})).unwrap().options, 10).0.max_tokens,
        16
    );
    assert_eq!(fit(chat(json!({})).unwrap().options, 10).0.max_tokens, 90);
    assert_eq!(
        fit(chat(json!({"max_tokens": null})).unwrap().options, 99)
            .0
            .max_tokens,
        1
    );
    assert_eq!(
        fit(chat(json!({"max_tokens": 1u64 << 40})).unwrap().options, 10)
            .0
            .max_tokens,
        90
    );
    assert_eq!(
        fit(
            chat(json!({"max_completion_tokens": 3})).unwrap().options,
            10
        )
        .0
        .max_tokens,
        3
    );
}

#[test]
fn prompts_must_leave_room() {
    for prompt_tokens in [100, 101, usize::MAX] {
        let options = chat(json!({"max_tokens": 1})).unwrap().options;
        let error = options
            .generation
            .fit(prompt_tokens, &limits())
            .unwrap_err();
        assert_eq!(error.status(), 400);
        assert_eq!(rendered(&error)["code"], "context_length_exceeded");
        assert_eq!(rendered(&error)["param"], "messages");
    }
    let empty = completion(json!({}))
        .unwrap()
        .options
        .generation
        .fit(0, &limits())
        .unwrap_err();
    assert_eq!(rendered(&empty)["param"], "prompt");
    let greedy = chat(json!({"min_tokens": 50})).unwrap().options;
    let error = greedy.generation.fit(80, &limits()).unwrap_err();
    assert_eq!(rendered(&error)["param"], "min_tokens");
}

#[test]
fn every_field_reaches_the_core() {
    let request = chat(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1, "max_tokens": 20,
        "min_tokens": 2, "ignore_eos": true, "stop": ["a", "b"], "stop_token_ids": [3],
        "include_stop_str_in_output": true, "skip_special_tokens": false, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"4": -100},
        "stream": true, "stream_options": {"include_usage": true}, "model": "m",
    }));
    let options = request.unwrap().options;
    assert_eq!(options.model.as_deref(), Some("m"));
    assert!(options.streaming.stream && options.streaming.include_usage);
    let (sampling, output) = fit(options, 5);
    let expected = Sampling {
        temperature: 0.5,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.1,
        seed: Some(u64::MAX),
        max_tokens: 20,
        min_tokens: 2,
        ignore_eos: true,
        stop_token_ids: vec![3],
        presence_penalty: 1.0,
        frequency_penalty: -1.0,
        repetition_penalty: 1.1,
        logit_bias: vec![(4, -100.0)],
        ..Sampling::default()
    };
    assert_eq!(sampling, expected);
    let stop = vec!["a".into(), "b".into()];
    let expected = Output {
        stop,
        include_stop: true,
        skip_special_tokens: false,
        min_tokens: 2,
        ..Output::default()
    };
    assert_eq!(output, expected);
}

#[test]
fn the_models_preferences_fill_gaps_only() {
    let defaults = Defaults {
        temperature: Some(0.2),
        top_k: Some(50),
        ..Defaults::default()
    };
    let limits = Limits {
        defaults,
        ..limits()
    };
    let body = br#"{"prompt":"x","top_k":7}"#;
    let request = CompletionRequest::parse(body, &limits).unwrap();
    let (sampling, _) = request.options.generation.fit(1, &limits).unwrap();
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (0.2, 7, 1.0)
    );
}

#[test]
fn long_input_is_not_repeated() {
    let flood = "y".repeat(1 << 20);
    let errors = [
        chat(json!({"messages": [{"role": flood, "content": ""}]})).unwrap_err(),
        chat(json!({"messages": [{"role": "user", "content": [{"type": flood}]}]})).unwrap_err(),
        chat(json!({"logit_bias": {flood.clone(): 1}})).unwrap_err(),
        chat(json!({"stream": true, "stream_options": {flood: {}}, "temperature": 9})).unwrap_err(),
    ];
    for error in errors {
        assert!(error.body().len() < 2000);
    }
}
