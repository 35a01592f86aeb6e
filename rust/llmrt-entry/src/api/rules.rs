//! Fields that llmrt knows but does not act on: which values pass, and which are refused.
//!
//! A field that would change the answer and cannot is refused, never ignored. Its neutral value
//! passes, because clients send their defaults. `null` is the same as absence everywhere.

use super::Endpoint;
use super::error::ApiError;
use super::field;
use super::json::Json;

/// Values of a field under which it asks for nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Neutral {
    /// Every value: the field has no effect on the answer.
    Any,
    /// No value but `null`.
    Nothing,
    /// This boolean.
    Bool(bool),
    /// This number.
    Number(f64),
    /// This string.
    Text(&'static str),
    /// The empty array, object or string.
    Empty,
    /// Exactly `["text"]`.
    TextOnly,
    /// An object whose `type` is `text`.
    TypeText,
}

use Neutral::{Any, Bool, Empty, Nothing, Number, Text, TextOnly, TypeText};

/// A field, the endpoint it is meant for (both when `None`), and its neutral value.
pub type Rule = (&'static str, Option<Endpoint>, Neutral);

const COMPLETIONS: Option<Endpoint> = Some(Endpoint::Completions);

/// Every field of OpenAI, vLLM and SGLang requests that generation neither uses nor may ignore, and those it may.
pub const RULES: &[Rule] = &[
    // Bookkeeping of the hosted API.
    ("user", None, Any),
    ("metadata", None, Any),
    ("store", None, Bool(false)),
    ("service_tier", None, Any),
    ("safety_identifier", None, Any),
    ("prompt_cache_key", None, Any),
    ("prompt_cache_retention", None, Any),
    ("parallel_tool_calls", None, Any),
    ("request_id", None, Any),
    ("rid", None, Any),
    // Tools and structured output.
    ("tools", None, Nothing),
    ("tool_choice", None, Text("none")),
    ("functions", None, Nothing),
    ("function_call", None, Text("none")),
    ("response_format", None, TypeText),
    ("structured_outputs", None, Nothing),
    ("guided_json", None, Nothing),
    ("guided_regex", None, Nothing),
    ("guided_choice", None, Nothing),
    ("guided_grammar", None, Nothing),
    ("guided_decoding_backend", None, Nothing),
    ("guided_whitespace_pattern", None, Nothing),
    ("json_schema", None, Nothing),
    ("regex", None, Nothing),
    ("ebnf", None, Nothing),
    ("structural_tag", None, Nothing),
    ("grammar", None, Nothing),
    // Several answers, and what is told about one.
    ("top_logprobs", COMPLETIONS, Number(0.0)),
    ("echo", Some(Endpoint::Chat), Bool(false)),
    ("return_hidden_states", None, Bool(false)),
    ("return_routed_experts", None, Bool(false)),
    // How the prompt is made.
    ("suffix", None, Empty),
    ("add_generation_prompt", COMPLETIONS, Bool(true)),
    ("continue_final_message", COMPLETIONS, Bool(false)),
    ("chat_template", None, Nothing),
    ("chat_template_kwargs", COMPLETIONS, Empty),
    ("documents", None, Empty),
    ("prompt_embeds", None, Nothing),
    ("input_embeds", None, Nothing),
    ("mm_processor_kwargs", None, Empty),
    ("media_io_kwargs", None, Empty),
    ("web_search_options", None, Nothing),
    // How tokens are chosen.
    ("use_beam_search", None, Bool(false)),
    ("length_penalty", None, Number(1.0)),
    ("early_stopping", None, Bool(false)),
    ("logits_processors", None, Empty),
    ("custom_logit_processor", None, Nothing),
    ("custom_params", None, Empty),
    ("prediction", None, Nothing),
    ("reasoning_effort", None, Nothing),
    ("thinking_token_budget", None, Nothing),
    ("stop_regex", None, Empty),
    ("no_stop_trim", None, Bool(false)),
    ("vllm_xargs", None, Empty),
    // How the answer looks.
    ("audio", None, Nothing),
    ("modalities", None, TextOnly),
    ("verbosity", None, Text("medium")),
    ("include_reasoning", None, Bool(true)),
    ("separate_reasoning", None, Bool(true)),
    ("stream_reasoning", None, Bool(true)),
    ("spaces_between_special_tokens", None, Bool(true)),
    // When and where the request runs.
    ("lora_path", None, Nothing),
    ("session_params", None, Nothing),
    ("kv_transfer_params", None, Nothing),
];

/// Judges a field that generation does not read: `true` when it is known and harmless, `false` when unknown.
///
/// # Errors
/// 400 when the field asks for something that llmrt does not do.
pub fn check(endpoint: Endpoint, name: &str, value: &Json) -> Result<bool, ApiError> {
    let meant = |rule: &&Rule| rule.0 == name && rule.1.is_none_or(|only| only == endpoint);
    let Some((name, _, neutral)) = RULES.iter().find(meant) else {
        return Ok(false);
    };
    if neutral.admits(value) {
        return Ok(true);
    }
    let advice = neutral.advice();
    Err(
        field::invalid(name, format_args!("is not supported: {advice}"))
            .code("unsupported_parameter"),
    )
}

impl Neutral {
    fn admits(self, value: &Json) -> bool {
        match (self, value) {
            (Any, _) | (_, Json::Null) => true,
            (Bool(wanted), Json::Bool(given)) => wanted == *given,
            (Number(wanted), Json::Number(given)) => given.as_f64() == Some(wanted),
            (Text(wanted), Json::String(given)) => wanted == given,
            (Empty, Json::Array(items)) => items.is_empty(),
            (Empty, Json::Object(members)) => members.is_empty(),
            (Empty, Json::String(text)) => text.is_empty(),
            (TextOnly, Json::Array(items)) => items.len() == 1 && Text("text").admits(&items[0]),
            (TypeText, Json::Object(members)) => members
                .iter()
                .any(|(key, value)| key == "type" && Text("text").admits(value)),
            _ => false,
        }
    }

    fn advice(self) -> String {
        match self {
            Any | Nothing => "leave it out".into(),
            Bool(value) => format!("leave it out or send {value}"),
            Number(value) => format!("leave it out or send {value}"),
            Text(value) => format!("leave it out or send \"{value}\""),
            Empty => "leave it out or empty".into(),
            TextOnly => "leave it out or send [\"text\"]".into(),
            TypeText => "leave it out or send {\"type\": \"text\"}".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    fn judge(endpoint: Endpoint, name: &str, value: &str) -> Result<bool, ApiError> {
        check(endpoint, name, &parse(value.as_bytes()).unwrap())
    }

    #[test]
    fn neutral_values_pass_and_others_do_not() {
        let cases = [
            ("tools", "null", "[]"),
            ("tool_choice", r#""none""#, r#""auto""#),
            (
                "response_format",
                r#"{"type":"text"}"#,
                r#"{"type":"json_object"}"#,
            ),
            ("echo", "false", "true"),
            ("suffix", r#""""#, r#""x""#),
            ("modalities", r#"["text"]"#, r#"["text","audio"]"#),
            ("store", "false", "true"),
            ("use_beam_search", "false", "1"),
            ("length_penalty", "1", "0.5"),
            ("guided_json", "null", "{}"),
            ("reasoning_effort", "null", r#""low""#),
        ];
        for (name, good, bad) in cases {
            assert_eq!(judge(Endpoint::Chat, name, good), Ok(true), "{name} {good}");
            let error = judge(Endpoint::Chat, name, bad).unwrap_err();
            assert_eq!(error.status(), 400);
            let body = String::from_utf8(error.body().to_vec()).unwrap();
            assert!(body.contains(&format!(r#""param":"{name}""#)), "{body}");
            assert!(body.contains("unsupported_parameter"), "{body}");
        }
    }

    #[test]
    fn the_endpoint_decides_where_it_matters() {
        let judged = |endpoint| judge(endpoint, "continue_final_message", "true");
        assert_eq!(judged(Endpoint::Chat), Ok(false), "read before the rules");
        assert!(judged(Endpoint::Completions).is_err());
    }

    #[test]
    fn harmless_and_unknown_fields() {
        assert_eq!(
            judge(Endpoint::Chat, "user", r#"{"any":"thing"}"#),
            Ok(true)
        );
        assert_eq!(judge(Endpoint::Chat, "no_such_field", "1"), Ok(false));
    }

    #[test]
    fn the_documentation_lists_every_rule() {
        let page = include_str!("../../../../docs/api.md");
        for (name, _, _) in RULES {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/api.md does not mention {name}"
            );
        }
    }
}
