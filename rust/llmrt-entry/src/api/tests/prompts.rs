//! Prompts and conversations: what they become, and which field an error names.

use serde_json::{Value, json};

use super::super::Prompt;
use super::super::chat::{MAX_MESSAGES, MAX_PARTS};
use super::super::error::ApiError;
use super::{chat, completion, rendered};

#[test]
fn completion_prompts() {
    let prompts =
        |prompt: Value| completion(json!({ "prompt": prompt })).map(|request| request.prompts);
    let text = |text: &str| Prompt::Text(text.into());
    let tokens = |ids: &[u32]| Prompt::Tokens(ids.to_vec());
    let cases = [
        (json!("x"), vec![text("x")]),
        (json!(["x"]), vec![text("x")]),
        (
            json!(["a", "b", "a"]),
            vec![text("a"), text("b"), text("a")],
        ),
        (json!([1, 49]), vec![tokens(&[1, 49])]),
        (json!([[1, 49]]), vec![tokens(&[1, 49])]),
        (json!([[1], [2, 3]]), vec![tokens(&[1]), tokens(&[2, 3])]),
        (json!(["a", [1]]), vec![text("a"), tokens(&[1])]),
    ];
    for (given, expected) in cases {
        assert_eq!(prompts(given.clone()).unwrap(), expected, "{given}");
    }
    let cases = [
        (json!(null), "prompt"),
        (json!(""), "prompt"),
        (json!([]), "prompt"),
        (json!([""]), "prompt[0]"),
        (json!(["x", ""]), "prompt[1]"),
        (json!([[]]), "prompt[0]"),
        (json!([[1], []]), "prompt[1]"),
        (json!([["x"]]), "prompt[0][0]"),
        (json!([[[1]]]), "prompt[0][0]"),
        (json!(["x", 1]), "prompt[1]"),
        (json!([1, -1]), "prompt[1]"),
        (json!([50]), "prompt[0]"),
        (json!([[1], [50]]), "prompt[1][0]"),
        (json!([1, "x"]), "prompt[1]"),
        (json!([true]), "prompt[0]"),
        (json!({}), "prompt"),
        (json!(vec!["x"; 129]), "prompt"),
    ];
    for (bad, param) in cases {
        let error = prompts(bad.clone()).unwrap_err();
        assert_eq!(error.status(), 400);
        assert_eq!(rendered(&error)["param"], param, "{bad}: {error}");
    }
}

#[test]
fn prompts_times_answers_are_bounded() {
    let ask = |count: usize, n: u32| {
        completion(json!({"prompt": vec!["x"; count], "n": n, "best_of": n}))
    };
    assert_eq!(ask(64, 2).unwrap().prompts.len(), 64);
    assert_eq!(ask(1, 128).unwrap().options.details.n, 128);
    for (count, n, param) in [(65, 2, "prompt"), (1, 129, "n"), (128, 128, "prompt")] {
        let error = ask(count, n).unwrap_err();
        assert_eq!(rendered(&error)["param"], param, "{count} {n}: {error}");
    }
}

fn messages(messages: Value) -> Result<Vec<Value>, ApiError> {
    chat(json!({ "messages": messages })).map(|request| request.messages)
}

#[test]
fn conversations_as_templates_see_them() {
    let seen = messages(json!([
        {"content": "be brief", "role": "system"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}], "name": "Ann"},
        {"role": "assistant", "content": null, "tool_calls": [], "refusal": null, "reasoning_content": "hm"},
        {"role": "assistant"},
        {"role": "developer", "content": ""},
    ]));
    let expected = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": ""},
        {"role": "developer", "content": ""},
    ]);
    assert_eq!(Value::from(seen.unwrap()), expected);
}

#[test]
fn conversations_that_are_refused() {
    let user = json!({"role": "user", "content": "x"});
    let part = |part: Value| json!([{"role": "user", "content": [part]}]);
    let cases = [
        (json!(null), "messages"),
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!(vec![user.clone(); MAX_MESSAGES + 1]), "messages"),
        (json!([user, "hi"]), "messages[1]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": null, "content": "x"}]), "messages[0].role"),
        (
            json!([{"role": "king", "content": "x"}]),
            "messages[0].role",
        ),
        (
            json!([{"role": "tool", "content": "x", "tool_call_id": "1"}]),
            "messages[0].role",
        ),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": null}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": 5}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": []}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": "x", "name": 5}]),
            "messages[0].name",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{}]}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "function_call": {}}]),
            "messages[0].function_call",
        ),
        (part(json!("x")), "messages[0].content[0]"),
        (part(json!({"text": "x"})), "messages[0].content[0].type"),
        (part(json!({"type": "text"})), "messages[0].content[0].text"),
        (
            part(json!({"type": "text", "text": null})),
            "messages[0].content[0].text",
        ),
        (
            part(json!({"type": "image_url", "image_url": {}})),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": vec![json!({"type": "text", "text": ""}); MAX_PARTS + 1]}]),
            "messages[0].content",
        ),
    ];
    for (bad, param) in cases {
        let error = messages(bad).unwrap_err();
        assert_eq!(error.status(), 400);
        assert_eq!(rendered(&error)["param"], param, "{error}");
    }
}
