//! Bodies of every route that takes one: an error of 400 that stays small, or a request in range.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmrt_entry::api::tokenize::{DetokenizeRequest, TokenizeRequest};
use llmrt_entry::api::{ApiError, ChatRequest, CompletionRequest, Limits};

fuzz_target!(|body: &[u8]| {
    let limits = Limits {
        max_model_len: 100,
        vocab_size: 50,
        max_choices: 8,
        priorities: true,
        defaults: Default::default(),
    };
    refused_well(ChatRequest::parse(body, &limits));
    refused_well(TokenizeRequest::parse(body, &limits));
    refused_well(DetokenizeRequest::parse(body, &limits));
    if let Some(request) = refused_well(CompletionRequest::parse(body, &limits))
        && let Ok((sampling, output)) = request.options.generation.fit(40, &limits)
    {
        assert!(sampling.max_tokens <= 60 && sampling.min_tokens <= sampling.max_tokens);
        assert!((0.0..=2.0).contains(&sampling.temperature));
        assert!(sampling.stop_token_ids.iter().all(|id| *id < 50));
        assert!(output.stop.iter().all(|stop| !stop.is_empty()));
    }
});

fn refused_well<T>(parsed: Result<T, ApiError>) -> Option<T> {
    parsed
        .inspect_err(|error| assert!(error.status() == 400 && error.body().len() < 4096))
        .ok()
}
