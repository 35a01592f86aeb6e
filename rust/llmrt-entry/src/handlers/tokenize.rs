//! `POST /tokenize` and `/detokenize`.

use std::rc::Rc;

use bytes::Bytes;
use http::{Request, StatusCode};

use crate::api::ApiError;
use crate::api::tokenize::{
    DetokenizeRequest, Input, TokenizeRequest, detokenize_body, tokenize_body,
};
use crate::http::{Held, RequestBody, Response, json, read_json};
use crate::shard::Shard;

/// Digits and a comma of a token id in an answer, about.
const BYTES_PER_ID: usize = 6;

/// Token ids of a text or a conversation.
pub async fn tokenize(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(shard, &head.headers, body).await?;
    let parse = |body: Bytes| TokenizeRequest::parse(&body);
    let Held {
        value: request,
        place,
    } = shard.prompts.convert(body.body_len(), body, parse).await?;
    shard.models.resolve(request.model.as_deref())?;
    let max_model_len = shard.api_limits().max_model_len;
    let tokens = match request.input {
        Input::Text(value) => {
            let (text, special) = (Held { value, place }, request.add_special_tokens);
            shard.prompts.text(text, special, max_model_len).await?
        }
        Input::Messages(value) => {
            let (messages, open) = (Held { value, place }, request.add_generation_prompt);
            shard.prompts.chat(messages, open, max_model_len).await?
        }
    };
    let size = tokens.value.len() * BYTES_PER_ID;
    let write = move |tokens: Vec<u32>| Ok(tokenize_body(&tokens, max_model_len));
    Ok(whole(shard.prompts.convert(size, tokens, write).await?))
}

/// Text of token ids.
pub async fn detokenize(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(shard, &head.headers, body).await?;
    let limits = shard.api_limits();
    let parse = move |body: Bytes| DetokenizeRequest::parse(&body, &limits);
    let Held {
        value: request,
        place,
    } = shard.prompts.convert(body.body_len(), body, parse).await?;
    shard.models.resolve(request.model.as_deref())?;
    let value = request.tokens;
    let text = shard.prompts.decode(Held { value, place }).await?;
    let size = text.value.len();
    let write = |text: String| Ok(detokenize_body(&text));
    Ok(whole(shard.prompts.convert(size, text, write).await?))
}

/// The answer keeps the place of its request: no permit bounds how many of them wait for their readers.
fn whole(body: Held<Bytes>) -> Response {
    json(StatusCode::OK, body.value).map(|answer| answer.holding(body.place))
}
