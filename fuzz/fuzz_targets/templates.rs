//! A template and a conversation, both foreign: an error or a text within the bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmrt_chat::{ChatTemplate, Limits, RenderOptions, TemplateOptions};
use serde_json::json;

fuzz_target!(|input: (&str, &str, &str)| {
    let (source, first, second) = input;
    let limits = Limits::default();
    let most = limits.max_output_bytes;
    let options = TemplateOptions {
        limits,
        ..TemplateOptions::default()
    };
    let Ok(template) = ChatTemplate::new(source, options) else {
        return;
    };
    let messages = json!([{"role": "user", "content": first}, {"role": second, "content": first}]);
    if let Ok(text) = template.render(&messages, &RenderOptions::default()) {
        assert!(text.len() <= most);
    }
});
