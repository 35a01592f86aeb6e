//! What a conversation or a template cannot do: run for ever, grow without end, or bring the process down.

use std::time::{Duration, Instant};

use llmrt_chat::{ChatError, ChatTemplate, Limits, RenderOptions, TemplateOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

const CHATML: &str = include_str!("../../../tests/golden/chat/chatml/template.jinja");
const QWEN3: &str = include_str!("../../../tests/golden/chat/qwen3/template.jinja");
const MISTRAL: &str = include_str!("../../../tests/golden/chat/mistral/template.jinja");

fn compile(source: &str) -> ChatTemplate {
    let options = TemplateOptions {
        eos_token: Some("</s>".into()),
        ..TemplateOptions::default()
    };
    ChatTemplate::new(source, options).unwrap()
}

fn compile_with(source: &str, limits: Limits) -> ChatTemplate {
    ChatTemplate::new(
        source,
        TemplateOptions {
            limits,
            ..TemplateOptions::default()
        },
    )
    .unwrap()
}

fn render(template: &ChatTemplate, messages: &Value) -> Result<String, ChatError> {
    template.render(messages, &RenderOptions::default())
}

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

fn long_conversation(messages: usize, bytes_each: usize) -> Value {
    let text = "word ".repeat(bytes_each / 5);
    (0..messages)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": text})
        })
        .collect()
}

#[test]
fn broken_templates_fail_at_load() {
    for source in [
        "{% if %}",
        "{{ 'open",
        "{% for x in y %}",
        "{% endif %}",
        "{{ 1 + }}",
        "{% unknown_tag %}",
    ] {
        let error = ChatTemplate::new(source, TemplateOptions::default()).unwrap_err();
        assert!(
            matches!(error, ChatError::Compile(_)),
            "{source}: {error:?}"
        );
        assert!(!error.is_client_error());
    }
}

#[test]
fn endless_work_runs_out_of_fuel() {
    let nested = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert_eq!(
        render(&compile(nested), &hello()),
        Err(ChatError::OutOfFuel)
    );
    assert!(matches!(
        render(&compile(recursive), &hello()),
        Err(ChatError::Render(_))
    ));
}

#[test]
fn output_is_capped_in_the_prompt_and_in_captures() {
    let limits = Limits {
        max_output_bytes: 1000,
        ..Limits::default()
    };
    let printed = "{% for i in range(100) %}{{ 'x' * 100 }}{% endfor %}";
    let literal = "{% for i in range(300) %}xxxxxxxxxx{% endfor %}";
    let captured = "{% set c %}{% for i in range(100) %}{{ 'x' * 100 }}{% endfor %}{% endset %}";
    for source in [printed, literal, captured] {
        let outcome = render(&compile_with(source, limits.clone()), &hello());
        assert_eq!(
            outcome,
            Err(ChatError::TooLarge { limit: 1000 }),
            "{source}"
        );
    }
}

#[test]
fn time_is_bounded() {
    let max_time = Duration::from_millis(20);
    let limits = Limits {
        max_time,
        base_fuel: u64::MAX,
        max_output_bytes: usize::MAX / 8,
        ..Limits::default()
    };
    let template = compile_with(
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ i }}{% endfor %}{% endfor %}",
        limits,
    );
    let started = Instant::now();
    assert_eq!(
        render(&template, &hello()),
        Err(ChatError::OutOfTime { limit: max_time })
    );
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn long_conversations_have_fuel() {
    for source in [CHATML, QWEN3, MISTRAL] {
        let template = compile(source);
        for messages in [
            long_conversation(999, 1000),
            long_conversation(20_000, 5),
            long_conversation(1, 1 << 20),
        ] {
            let prompt = render(&template, &messages).unwrap();
            assert!(prompt.len() > messages.as_array().unwrap().len() * 5);
        }
    }
}

#[test]
fn wide_padding_and_deep_values_are_refused() {
    let tower = "{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for expression in [
        "{{ 'a' | indent(999999999999) }}".to_owned(),
        "{{ 'a'.rjust(999999999999) }}".to_owned(),
        "{{ '%999999999999d' | format(1) }}".to_owned(),
        "{{ '{:>999999999999}'.format('a') }}".to_owned(),
        "{{ [1] | tojson(indent=999999999999) }}".to_owned(),
        format!("{tower}{{{{ ns.x | tojson }}}}"),
        format!("{tower}{{{{ ns.x }}}}"),
    ] {
        let outcome = render(&compile(&expression), &hello());
        assert!(
            matches!(outcome, Err(ChatError::Render(_))),
            "{expression}: {outcome:?}"
        );
    }
}

#[test]
fn templates_reach_neither_files_nor_other_templates() {
    for source in [
        "{% include '/etc/hostname' %}",
        "{% extends 'x' %}",
        "{% import 'x' as y %}{{ y }}",
    ] {
        assert!(
            matches!(
                render(&compile(source), &hello()),
                Err(ChatError::Render(_))
            ),
            "{source}"
        );
    }
    assert!(matches!(
        render(&compile("{{ debug() }}"), &hello()),
        Err(ChatError::Render(_))
    ));
    assert!(matches!(
        render(&compile("{% include 'chat_template' %}"), &hello()),
        Err(ChatError::Render(_))
    ));
}

#[test]
fn odd_messages_are_client_errors() {
    let template = compile(CHATML);
    let mut deep = json!("x");
    for _ in 0..100 {
        deep = json!([deep]);
    }
    for messages in [
        json!(null),
        json!("hi"),
        json!([]),
        json!([1]),
        json!([{}]),
        json!([{"role": 1, "content": "x"}]),
        json!([{"role": "user", "content": 7}]),
        json!([{"role": "user", "content": {"type": "text"}}]),
        json!([{"role": "user", "content": [{"text": "no type"}]}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": ["text"]}]),
        json!([{"role": "user", "content": "x", "extra": deep}]),
    ] {
        let error = render(&template, &messages).unwrap_err();
        assert!(
            matches!(error, ChatError::Invalid(_)),
            "{messages}: {error:?}"
        );
    }
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let expected = ChatError::Unsupported {
        index: 0,
        kind: "image_url".into(),
    };
    assert_eq!(render(&template, &image), Err(expected));
}

#[test]
fn error_messages_stay_short() {
    let long = json!([{"role": "user", "content": "é".repeat(100_000)}]);
    let raised = render(
        &compile("{{ raise_exception('no: ' ~ messages[0].content) }}"),
        &long,
    )
    .unwrap_err();
    assert!(
        matches!(&raised, ChatError::Raised(message) if message.starts_with("no: éé")),
        "{raised:?}"
    );
    let failed = render(
        &compile("{{ strftime_now('%' ~ messages[0].content) }}"),
        &long,
    )
    .unwrap_err();
    assert!(matches!(failed, ChatError::Render(_)), "{failed:?}");
    for error in [raised, failed] {
        assert!(error.is_client_error());
        assert!(error.to_string().chars().count() < 600);
    }
}

#[test]
fn continuing_excludes_a_generation_prompt_and_needs_text() {
    let template = compile(CHATML);
    let options = |add_generation_prompt| RenderOptions {
        add_generation_prompt,
        continue_final_message: true,
        ..RenderOptions::default()
    };
    assert!(matches!(
        template.render(&hello(), &options(true)),
        Err(ChatError::Invalid(_))
    ));
    let silent = json!([{"role": "user", "content": "x"}, {"role": "assistant"}]);
    assert!(matches!(
        template.render(&silent, &options(false)),
        Err(ChatError::Invalid(_))
    ));
    let dropped = compile("{{ messages[0].role }}");
    assert!(matches!(
        dropped.render(&hello(), &options(false)),
        Err(ChatError::Invalid(_))
    ));
}

#[test]
fn a_template_is_shared_between_threads() {
    let template = compile(CHATML);
    let expected = render(&template, &hello()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(render(&template, &hello()).unwrap(), expected);
                }
            });
        }
    });
}

/// Fragments that random templates are put together from.
const FRAGMENTS: [&str; 40] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    " if ",
    " for ",
    " in ",
    " else ",
    "endif",
    "endfor",
    " set ",
    "=",
    "messages",
    "message",
    ".content",
    "['role']",
    "[0]",
    "[::-1]",
    "[3:1:-1]",
    "(",
    ")",
    "'",
    "\"",
    " + ",
    " ~ ",
    " | ",
    "trim",
    "tojson",
    "length",
    "x",
    "7",
    "-1",
    "loop.index",
    "\n",
    "generation",
    "raise_exception",
];

fn any_content() -> impl Strategy<Value = Value> {
    prop_oneof![
        ".{0,40}".prop_map(Value::from),
        "[ -~\u{80}-\u{2fff}<|>{}%#']{0,80}".prop_map(Value::from),
        prop::collection::vec(".{0,10}", 0..3).prop_map(|texts| texts
            .into_iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect()),
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
    ]
}

fn any_messages() -> impl Strategy<Value = Value> {
    let role = prop_oneof![
        Just("user"),
        Just("assistant"),
        Just("system"),
        Just("tool"),
        Just("")
    ];
    let message =
        (role, any_content()).prop_map(|(role, content)| json!({"role": role, "content": content}));
    prop::collection::vec(message, 0..6).prop_map(Value::from)
}

fn any_source() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&FRAGMENTS[..]), 0..24)
        .prop_map(|pieces| pieces.concat())
}

fn any_expression() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&FRAGMENTS[16..]), 1..8)
        .prop_map(|pieces| format!("{{{{ {} }}}}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A panic inside the engine would surface as `Engine`; outside of it, as a failed test.
    #[test]
    fn random_conversations_never_panic(messages in any_messages(), continued in any::<bool>(), prompt in any::<bool>()) {
        for source in [CHATML, QWEN3, MISTRAL] {
            let template = compile(source);
            let options = RenderOptions {
                add_generation_prompt: prompt,
                continue_final_message: continued,
                ..RenderOptions::default()
            };
            prop_assert_ne!(template.render(&messages, &options), Err(ChatError::Engine));
        }
    }

    /// Every text of a conversation appears in the prompt, whatever it contains: content is never parsed.
    #[test]
    fn content_is_never_interpreted(text in "[{}%#'\"<|>a-z\\\\ -]{0,60}") {
        let messages = json!([{"role": "user", "content": text}]);
        let prompt = render(&compile(CHATML), &messages).unwrap();
        prop_assert_eq!(prompt, format!("<|im_start|>user\n{text}<|im_end|>\n"));
    }

    #[test]
    fn random_templates_never_panic(source in prop_oneof![any_source(), any_expression(), ".{0,60}"], messages in any_messages()) {
        if let Ok(template) = ChatTemplate::new(&source, TemplateOptions::default()) {
            _ = render(&template, &messages);
        }
    }
}
