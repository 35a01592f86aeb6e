//! Prompts equal those of `transformers`, byte by byte. `tests/golden/chat/README.md` says where they come from.

use std::path::PathBuf;

use llmrt_chat::{ChatError, ChatTemplate, Clock, ContentFormat, RenderOptions, TemplateOptions};
use serde_json::{Map, Value, json};

/// Snippets that the engine renders otherwise: tuples print as lists, text has no length in a loop, `%` is never
/// negative, a backward slice cannot stop at 0, none iterates as empty, namespaces are mappings. Chat templates in use
/// depend on none of them.
const KNOWN_DIFFERENCES: [&str; 11] = [
    "{{ text.partition('l') }}",
    "{{ text.rpartition('l') }}",
    "{{ text.partition('#') }}",
    "{{ text.rpartition('#') }}",
    "{{ tree.items() | list }}",
    "{{ tree | items | list }}",
    "{{ 7 % -3 }}",
    "{% for x in 'añb' %}{{ loop.index }}{{ x }}{{ loop.first }}{{ loop.revindex }} {% endfor %}",
    "{{ [1, 2, 3][:0:-1] }}",
    "{% for x in none %}x{% endfor %}",
    "{{ namespace(a=1) is mapping }}",
];

fn golden(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/chat");
    std::fs::read_to_string(root.join(path)).unwrap()
}

fn read_cases(path: &str) -> Value {
    serde_json::from_str(&golden(path)).unwrap()
}

fn template_options(cases: &Value) -> TemplateOptions {
    let token = |name: &str| cases[name].as_str().map(str::to_owned);
    TemplateOptions {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        clock: Clock::fixed(cases["now"].as_str().unwrap().parse().unwrap()),
        ..TemplateOptions::default()
    }
}

fn render_options(case: &Value) -> RenderOptions {
    let flag = |name: &str| case.get(name).and_then(Value::as_bool).unwrap_or(false);
    RenderOptions {
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        kwargs: case
            .get("kwargs")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
    }
}

/// `None` when the outcome is the recorded one.
fn difference(case: &Value, outcome: Result<String, ChatError>) -> Option<String> {
    let as_recorded = match &outcome {
        Ok(prompt) => case["expected"] == *prompt,
        Err(ChatError::Raised(message)) => case["raises"] == *message,
        Err(error) => {
            case["fails"] == json!(true)
                && (error.is_client_error() || matches!(error, ChatError::Compile(_)))
        }
    };
    (!as_recorded).then(|| {
        let recorded = ["expected", "raises", "fails"]
            .map(|name| case.get(name).cloned().unwrap_or(Value::Null));
        format!(
            "{}\n  recorded {recorded:?}\n  got      {outcome:?}",
            case.get("name").unwrap_or(&case["template"])
        )
    })
}

fn check_family(family: &str) {
    let cases = read_cases(&format!("{family}/cases.json"));
    let template = ChatTemplate::new(
        &golden(&format!("{family}/template.jinja")),
        template_options(&cases),
    )
    .unwrap();
    let format = match cases["content"].as_str().unwrap() {
        "text" => ContentFormat::Text,
        "parts" => ContentFormat::Parts,
        _ => ContentFormat::Either,
    };
    assert_eq!(template.content_format(), format, "{family}");
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() >= 30);
    let differences: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            difference(
                case,
                template.render(&case["messages"], &render_options(case)),
            )
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{family}: {}",
        differences.join("\n")
    );
}

macro_rules! families {
    ($($family:ident),*) => {
        $(#[test] fn $family() { check_family(stringify!($family)); })*
    };
}

families!(
    chatml, llama31, llama32, mistral, qwen25, qwen3, gemma2, phi3, phi4, smollm2, parts
);

#[test]
fn python_methods_filters_and_printing() {
    let cases = read_cases("python_cases.json");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let list = cases["cases"].as_array().unwrap();
    assert!(list.len() > 200);
    let mut unexpected = Vec::new();
    for case in list {
        let source = case["template"].as_str().unwrap();
        let outcome = ChatTemplate::new(source, template_options(&cases))
            .and_then(|template| template.render(&messages, &render_options(case)));
        match (
            difference(case, outcome),
            KNOWN_DIFFERENCES.contains(&source),
        ) {
            (Some(difference), false) => unexpected.push(difference),
            (None, true) => {
                unexpected.push(format!("{source} no longer differs: take it off the list"))
            }
            _ => {}
        }
    }
    assert!(
        unexpected.is_empty(),
        "{} differences\n{}",
        unexpected.len(),
        unexpected.join("\n")
    );
}

#[test]
fn kwargs_win_over_special_tokens_but_not_over_the_conversation() {
    let options = TemplateOptions {
        bos_token: Some("<s>".into()),
        ..TemplateOptions::default()
    };
    let template = ChatTemplate::new("{{ bos_token }}{{ messages[0].content }}", options).unwrap();
    let messages = json!([{"role": "user", "content": "x"}]);
    let with = |name: &str| {
        let kwargs = Map::from_iter([(name.to_owned(), json!("<k>"))]);
        template.render(
            &messages,
            &RenderOptions {
                kwargs,
                ..RenderOptions::default()
            },
        )
    };
    assert_eq!(with("bos_token").unwrap(), "<k>x");
    assert!(matches!(with("messages"), Err(ChatError::Invalid(_))));
}
