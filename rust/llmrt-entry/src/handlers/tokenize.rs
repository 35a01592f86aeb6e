//! `POST /tokenize` and `/detokenize`.

use std::rc::Rc;

use http::{Request, StatusCode};

use crate::api::ApiError;
use crate::api::tokenize::{
    DetokenizeRequest, Input, TokenizeRequest, detokenize_body, tokenize_body,
};
use crate::http::{RequestBody, Response, json, read_json};
use crate::shard::Shard;

/// Token ids of a text or a conversation.
pub async fn tokenize(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(&head.headers, body, &shard.config.limits).await?;
    let request = TokenizeRequest::parse(&body)?;
    shard.models.resolve(request.model.as_deref())?;
    let tokens = match request.input {
        Input::Text(text) => shard.prompts.text(text, request.add_special_tokens).await?,
        Input::Messages(messages) => {
            shard
                .prompts
                .chat(messages, request.add_generation_prompt)
                .await?
        }
    };
    Ok(json(
        StatusCode::OK,
        tokenize_body(&tokens, shard.api_limits.max_model_len),
    ))
}

/// Text of token ids.
pub async fn detokenize(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(&head.headers, body, &shard.config.limits).await?;
    let request = DetokenizeRequest::parse(&body, &shard.api_limits)?;
    shard.models.resolve(request.model.as_deref())?;
    let text = shard.prompts.decode(request.tokens).await?;
    Ok(json(StatusCode::OK, detokenize_body(&text)))
}
