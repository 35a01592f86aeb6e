//! Fields about prompts, details and places: their ranges, and what contradicts.

use serde_json::{Value, json};

use super::super::{CompletionRequest, Limits, Options};
use super::{chat, completion, limits, rendered};

#[test]
fn logprobs_have_a_form_for_each_endpoint() {
    let details = |result: Result<Options, _>| result.map(|options| options.details);
    let chat = |extra| details(super::chat(extra).map(|request| request.options));
    let completion = |extra| details(super::completion(extra).map(|request| request.options));
    assert_eq!(chat(json!({"logprobs": true})).unwrap().logprobs, Some(0));
    let both = chat(json!({"top_logprobs": 20, "logprobs": true})).unwrap();
    assert_eq!(both.logprobs, Some(20));
    assert_eq!(chat(json!({"top_logprobs": 0})).unwrap().logprobs, None);
    assert_eq!(
        completion(json!({"logprobs": 5})).unwrap().logprobs,
        Some(5)
    );
    assert_eq!(
        completion(json!({"logprobs": false})).unwrap().logprobs,
        None
    );
    let echoed = completion(json!({"logprobs": 5, "echo": true})).unwrap();
    assert_eq!(
        (echoed.prompt_logprobs, echoed.of_prompt()),
        (None, Some(5))
    );
    for (error, param) in [
        (chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (
            chat(json!({"top_logprobs": 1_000_000, "logprobs": true})),
            "top_logprobs",
        ),
        (chat(json!({"logprobs": 3})), "logprobs"),
        (chat(json!({"echo": true})), "echo"),
        (completion(json!({"logprobs": 21})), "logprobs"),
        (completion(json!({"logprobs": true})), "logprobs"),
        (completion(json!({"top_logprobs": 2})), "top_logprobs"),
        (completion(json!({"max_tokens": 0})), "max_tokens"),
    ] {
        assert_eq!(rendered(&error.unwrap_err())["param"], param);
    }
    let silent = super::completion(json!({"max_tokens": 0, "echo": true})).unwrap();
    let mut generation = silent.options.generation;
    generation.report(&silent.options.details);
    let (sampling, _) = generation.fit(5, &limits()).unwrap();
    assert_eq!(
        (sampling.max_tokens, sampling.prompt_logprobs),
        (0, Some(0))
    );
}

#[test]
fn how_a_conversation_becomes_a_prompt() {
    let options = |extra: Value| chat(extra).map(|request| request.options.prompting);
    let plain = options(json!({})).unwrap();
    assert!(plain.add_generation_prompt() && !plain.add_special_tokens);
    // Whoever leaves the last message open wants no head of another one behind it.
    let open = options(json!({"continue_final_message": true})).unwrap();
    assert!(open.continue_final_message && !open.add_generation_prompt());
    let kwargs = options(json!({"chat_template_kwargs": {"enable_thinking": false, "x": [1]}}));
    assert_eq!(kwargs.unwrap().kwargs["enable_thinking"], false);
    let deep: Value = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let cases = [
        json!({"continue_final_message": true, "add_generation_prompt": true}),
        json!({"chat_template_kwargs": {"chat_template": "{{ x }}"}}),
        json!({"chat_template_kwargs": {"messages": []}}),
        json!({"chat_template_kwargs": {"x": vec![0; 1024]}}),
        json!({"chat_template_kwargs": {"x": "y".repeat(65_536)}}),
        json!({"chat_template_kwargs": (0..65).map(|n| (n.to_string(), json!(n))).collect::<Value>()}),
        json!({"chat_template_kwargs": [deep.clone()]}),
    ];
    for bad in cases {
        let error = chat(bad.clone()).unwrap_err();
        let (name, _) = bad.as_object().unwrap().iter().next().unwrap();
        assert_eq!(rendered(&error)["param"], *name, "{bad}: {error}");
    }
    assert!(options(json!({"chat_template_kwargs": {"x": deep}})).is_ok());
    // Only conversations have these.
    for field in [
        json!({"continue_final_message": true}),
        json!({"add_generation_prompt": false}),
    ] {
        assert_eq!(
            rendered(&completion(field).unwrap_err())["code"],
            "unsupported_parameter"
        );
    }
}

#[test]
fn a_prompt_is_cut_to_its_end() {
    let most = |extra: Value| {
        let options = completion(extra).unwrap().options;
        options
            .prompting
            .most_tokens(options.generation.max_tokens(), 100)
    };
    assert_eq!(most(json!({})), u32::MAX as usize);
    assert_eq!(most(json!({"truncate_prompt_tokens": 7})), 7);
    assert_eq!(most(json!({"truncate_prompt_tokens": -1})), 84);
    assert_eq!(
        most(json!({"truncate_prompt_tokens": -1, "max_tokens": 1000})),
        1
    );
}

#[test]
fn priorities_need_a_queue_that_heeds_them() {
    let parse = |priorities| {
        let limits = Limits {
            priorities,
            ..limits()
        };
        CompletionRequest::parse(br#"{"prompt":"x","priority":-3,"cache_salt":"s"}"#, &limits)
    };
    let placing = parse(true).unwrap().options.placing;
    assert_eq!((placing.priority, &*placing.cache_salt), (-3, "s"));
    let error = parse(false).unwrap_err();
    assert_eq!(rendered(&error)["param"], "priority");
    assert!(
        error.message().contains("--schedule-policy priority"),
        "{error}"
    );
}
