//! `POST /tokenize` and `/detokenize`.

use std::rc::Rc;

use bytes::Bytes;
use http::{Request, StatusCode};

use crate::api::tokenize::{
    DetokenizeRequest, Input, TokenizeRequest, detokenize_body, tokenize_body,
};
use crate::api::{ApiError, Prompt};
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
    let body = read_json(shard, &head, body).await?;
    let limits = shard.api_limits();
    let max_model_len = limits.max_model_len;
    let parse = move |body: Bytes| TokenizeRequest::parse(&body, &limits);
    let Held {
        value: request,
        place,
    } = shard.prompts.convert(body.body_len(), body, parse).await?;
    shard.models.resolve(request.model.as_deref())?;
    let prompting = request.prompting;
    let most = prompting.most_tokens(None, max_model_len);
    let tokens = match request.input {
        Input::Text(text) => {
            let prompt = Held {
                value: vec![Prompt::Text(text)],
                place,
            };
            let special = prompting.add_special_tokens;
            let tokens = shard.prompts.tokens(prompt, special, max_model_len).await?;
            tokens.try_map(|mut tokens| Ok::<_, ApiError>(tokens.pop().unwrap_or_default()))?
        }
        Input::Messages(value) => {
            let messages = Held { value, place };
            shard
                .prompts
                .chat(messages, prompting, max_model_len)
                .await?
        }
    };
    let tokens = tokens.try_map(|tokens| Ok::<_, ApiError>(last(tokens, most)))?;
    let size = tokens.value.len() * BYTES_PER_ID;
    if request.return_token_strs {
        let spelled = shard.prompts.spelled(tokens).await?;
        let write = move |(tokens, spelled): (Vec<u32>, Vec<String>)| {
            Ok(tokenize_body(&tokens, Some(&spelled), max_model_len))
        };
        return Ok(whole(
            shard.prompts.convert(2 * size, spelled, write).await?,
        ));
    }
    let write = move |tokens: Vec<u32>| Ok(tokenize_body(&tokens, None, max_model_len));
    Ok(whole(shard.prompts.convert(size, tokens, write).await?))
}

/// The last tokens of a prompt, `most` of them if it has so many.
pub fn last(mut tokens: Vec<u32>, most: usize) -> Vec<u32> {
    tokens.drain(..tokens.len().saturating_sub(most));
    tokens
}

/// Text of token ids.
pub async fn detokenize(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(shard, &head, body).await?;
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
