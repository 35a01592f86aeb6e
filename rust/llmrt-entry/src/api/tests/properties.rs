//! Whatever a client sends: a 400 that stays small, or a request that is in range.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{chat, completion, limits};

proptest! {
    #[test]
    fn any_value_of_any_field_is_taken_or_refused(name in name(), value in value()) {
        for result in [chat(json!({&name: value})).map(drop), completion(json!({&name: value})).map(drop)] {
            if let Err(error) = result {
                prop_assert_eq!(error.status(), 400);
                prop_assert!(error.body().len() < 4096);
            }
        }
    }

    #[test]
    fn what_is_sent_to_the_core_is_in_range(fields in proptest::collection::vec((name(), value()), 0..6), tokens in 0usize..120) {
        let extra: Value = fields.into_iter().collect();
        let Ok(request) = completion(extra) else { return Ok(()) };
        let Ok((sampling, output)) = request.options.generation.fit(tokens, &limits()) else { return Ok(()) };
        prop_assert!((0.0..=2.0).contains(&sampling.temperature));
        prop_assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0);
        prop_assert!((0.0..=1.0).contains(&sampling.min_p));
        prop_assert!(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite());
        prop_assert!(sampling.max_tokens <= 100 - tokens as u32);
        prop_assert!(sampling.min_tokens <= sampling.max_tokens);
        prop_assert!(sampling.stop_token_ids.iter().all(|id| *id < 50));
        prop_assert!(sampling.logit_bias.iter().all(|(id, bias)| *id < 50 && bias.abs() <= 100.0));
        prop_assert!(output.stop.len() <= 4 && output.stop.iter().all(|stop| !stop.is_empty()));
    }
}

fn name() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "n",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "echo",
        "allowed_token_ids",
        "bad_words",
        "deadline_ms",
        "priority",
        "truncate_prompt_tokens",
        "chat_template_kwargs",
        "tools",
        "response_format",
        "modalities",
        "skip_special_tokens",
    ];
    prop_oneof![4 => proptest::sample::select(KNOWN).prop_map(String::from), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..120).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3.0..3.0).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9]{1,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key = prop_oneof![
            "[0-9]{1,2}",
            "role|content|type|text|include_usage",
            any::<String>()
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((key, inner), 0..4)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}
