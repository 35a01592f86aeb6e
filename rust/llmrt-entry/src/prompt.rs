//! Prompts: rendered, tokenized and undone on the tokenizer's threads, never on an I/O thread.

use std::sync::Arc;
use std::thread;

use llmrt_chat::{ChatError, ChatTemplate, RenderOptions, TemplateOptions};
use llmrt_text::pool::{PoolError, PoolOptions, TokenizerPool};
use llmrt_text::{Tokenizer, TokenizerError};
use serde_json::Value;

use crate::api::{ApiError, Prompt, Prompting, text_exceeds_context};
use crate::config::EntryConfig;
use crate::http::Held;

/// Work on fewer bytes than this is done at once where it comes up: a millisecond at most.
const INLINE: usize = 64 << 10;
/// Bytes of text that a token stands for at most times: what tells long jobs from short ones.
const BYTES_PER_TOKEN: usize = 4;

/// Why prompts cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] ChatError),
    #[error("cannot start the tokenizer's threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// The tokenizer, its threads, and the chat template.
pub struct Prompts {
    pool: TokenizerPool,
    template: Option<Arc<ChatTemplate>>,
}

impl Prompts {
    /// Loads what the configuration names.
    ///
    /// # Errors
    /// A file cannot be read, or is not a tokenizer or a template.
    pub fn load(config: &EntryConfig) -> Result<Self, PromptError> {
        let model = &config.model;
        let tokenizer = model.tokenizer.load(config.tokenizer_cache_bytes)?;
        let compile = |source: &String| {
            let options = TemplateOptions {
                bos_token: model.bos_token.clone(),
                eos_token: model.eos_token.clone(),
                ..TemplateOptions::default()
            };
            ChatTemplate::new(source, options).map(Arc::new)
        };
        let template = model.chat_template.as_ref().map(compile).transpose()?;
        let threads = match config.tokenizer_threads {
            0 => thread::available_parallelism().map_or(1, |count| count.get()),
            threads => threads,
        };
        let options = PoolOptions::new(threads);
        // Whoever was admitted can wait here: a burst is no reason to refuse it.
        let queue = options.queue.max(config.limits.max_requests as usize);
        let pool = TokenizerPool::new(tokenizer, PoolOptions { queue, ..options })?;
        Ok(Self { pool, template })
    }

    /// Jobs that wait for a thread.
    pub fn queued(&self) -> usize {
        let (short, long) = self.pool.queued();
        short + long
    }

    /// The prompt that a conversation makes.
    ///
    /// # Errors
    /// 400 when the template refuses the messages or there is none, and when their text is longer than any `context`
    /// tokens; 429 when too many prompts wait.
    pub async fn chat(
        &self,
        messages: Held<Vec<Value>>,
        prompting: Prompting,
        context: u32,
    ) -> Result<Held<Vec<u32>>, ApiError> {
        let Some(template) = self.template.clone() else {
            let message = "This model has no chat template; use /v1/completions.";
            return Err(ApiError::invalid(message).param("messages"));
        };
        let options = RenderOptions {
            add_generation_prompt: prompting.add_generation_prompt(),
            continue_final_message: prompting.continue_final_message,
            kwargs: prompting.kwargs,
        };
        let special = prompting.add_special_tokens;
        let size = messages.body_len();
        self.run(size, messages, move |tokenizer, messages| {
            let prompt = template
                .render(&Value::Array(messages), &options)
                .map_err(refused)?;
            check_length(tokenizer, &prompt, context, "messages")?;
            tokenizer.encode(&prompt, special).map_err(broken)
        })
        .await
    }

    /// The tokenizer behind all of this.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.pool.tokenizer()
    }

    /// Token ids of prompts; `special` adds what the tokenizer puts around a text.
    ///
    /// # Errors
    /// 400 when one is longer than any `context` tokens, 429 when too many prompts wait.
    pub async fn tokens(
        &self,
        prompts: Held<Vec<Prompt>>,
        special: bool,
        context: u32,
    ) -> Result<Held<Vec<Vec<u32>>>, ApiError> {
        let mut size = 0;
        for prompt in &prompts.value {
            if let Prompt::Text(text) = prompt {
                check_length(self.pool.tokenizer(), text, context, "prompt")?;
                size += text.len();
            }
        }
        let all = move |tokenizer: &Tokenizer, prompts: Vec<Prompt>| {
            let tokens = |prompt| match prompt {
                Prompt::Text(text) => tokenizer.encode(&text, special).map_err(broken),
                Prompt::Tokens(tokens) => Ok(tokens),
            };
            prompts.into_iter().map(tokens).collect()
        };
        if size == 0 {
            return prompts.try_map(|prompts| all(self.pool.tokenizer(), prompts));
        }
        self.run(size, prompts, all).await
    }

    /// Token sequences of words that must not come: as they stand at the beginning of a text, and behind a space.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn words(&self, words: Vec<String>) -> Result<Vec<Vec<u32>>, ApiError> {
        let size = words.iter().map(String::len).sum();
        self.on_threads(size, move |tokenizer| {
            let mut sequences = Vec::with_capacity(2 * words.len());
            for word in &words {
                let word = word.trim_start();
                for text in [word.to_owned(), format!(" {word}")] {
                    let tokens = tokenizer.encode(&text, false).map_err(broken)?;
                    if !tokens.is_empty() && !sequences.contains(&tokens) {
                        sequences.push(tokens);
                    }
                }
            }
            Ok(sequences)
        })
        .await
    }

    /// Makes the tokenizer's table of tokens, unless it is there: that takes longer than an I/O thread may.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn prepare_decoder(&self) -> Result<(), ApiError> {
        if self.tokenizer().has_decoder() {
            return Ok(());
        }
        let prepare = |tokenizer: &Tokenizer| {
            tokenizer.decoder();
            Ok(())
        };
        self.on_threads(0, prepare).await
    }

    /// Each token as the vocabulary spells it; empty for an id without a token.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn spelled(
        &self,
        ids: Held<Vec<u32>>,
    ) -> Result<Held<(Vec<u32>, Vec<String>)>, ApiError> {
        let size = ids.value.len() * BYTES_PER_TOKEN;
        self.run(size, ids, |tokenizer, ids| {
            let spell = |&id: &u32| tokenizer.id_to_token(id).unwrap_or_default();
            let spelled = ids.iter().map(spell).collect();
            Ok((ids, spelled))
        })
        .await
    }

    /// The text that a prompt's tokens stand for, special ones included.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn text(&self, ids: Vec<u32>) -> Result<String, ApiError> {
        let size = ids.len() * BYTES_PER_TOKEN;
        let decode = move |tokenizer: &Tokenizer| tokenizer.decode(&ids, false).map_err(broken);
        self.on_threads(size, decode).await
    }

    /// Does work that makes JSON of about `size` bytes: at once when that is quick, else where prompts are made.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn write<R: Send + 'static>(
        &self,
        size: usize,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        if size < INLINE {
            return Ok(work());
        }
        self.on_threads(size, |_| Ok(work())).await
    }

    /// Text of token ids, special ones included.
    ///
    /// # Errors
    /// 429 when too many jobs wait.
    pub async fn decode(&self, ids: Held<Vec<u32>>) -> Result<Held<String>, ApiError> {
        let size = ids.value.len() * BYTES_PER_TOKEN;
        self.run(size, ids, |tokenizer, ids| {
            tokenizer.decode(&ids, false).map_err(broken)
        })
        .await
    }

    /// Reads or writes JSON of `size` bytes: at once when that is quick, else where prompts are made.
    ///
    /// # Errors
    /// Those of `work`; 429 when too many jobs wait.
    pub async fn convert<T: Send + 'static, R: Send + 'static>(
        &self,
        size: usize,
        input: Held<T>,
        work: impl FnOnce(T) -> Result<R, ApiError> + Send + 'static,
    ) -> Result<Held<R>, ApiError> {
        if size < INLINE {
            return input.try_map(work);
        }
        self.run(size, input, |_, value| work(value)).await
    }

    /// The input's place in memory goes with it: a job keeps it though nobody waits for the job any more.
    async fn run<T: Send + 'static, R: Send + 'static>(
        &self,
        size: usize,
        input: Held<T>,
        job: impl FnOnce(&Tokenizer, T) -> Result<R, ApiError> + Send + 'static,
    ) -> Result<Held<R>, ApiError> {
        self.on_threads(size, move |tokenizer| {
            input.try_map(|value| job(tokenizer, value))
        })
        .await
    }

    async fn on_threads<R: Send + 'static>(
        &self,
        size: usize,
        job: impl FnOnce(&Tokenizer) -> Result<R, ApiError> + Send + 'static,
    ) -> Result<R, ApiError> {
        let queued = self.pool.submit(size, job).map_err(no_result)?;
        queued.await.map_err(no_result)?
    }
}

/// Refuses, before it costs seconds and gigabytes to tokenize, what cannot be `context` tokens or less.
fn check_length(
    tokenizer: &Tokenizer,
    text: &str,
    context: u32,
    param: &'static str,
) -> Result<(), ApiError> {
    if text.len() <= tokenizer.most_bytes(context) {
        return Ok(());
    }
    Err(text_exceeds_context(param, text.len(), context))
}

fn refused(error: ChatError) -> ApiError {
    if error.is_client_error() {
        return ApiError::invalid(error.to_string()).param("messages");
    }
    tracing::error!(%error, "chat template");
    ApiError::internal("The chat template failed.")
}

fn broken(error: TokenizerError) -> ApiError {
    tracing::error!(%error, "tokenizer");
    ApiError::internal("The tokenizer failed.")
}

fn no_result(error: PoolError) -> ApiError {
    match error {
        PoolError::Full => {
            ApiError::overloaded("Too many prompts wait to be tokenized; try again later.")
        }
        PoolError::Closed => ApiError::unavailable("The server is shutting down."),
        PoolError::Panicked(_) => ApiError::internal("The prompt could not be tokenized."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::BodyBudget;
    use crate::tests::rig::{Scratch, config};

    #[tokio::test(flavor = "current_thread")]
    async fn long_work_leaves_the_thread_and_keeps_its_place() {
        let scratch = Scratch::new();
        let config = config(&scratch, serde_json::json!({})).to_string();
        let prompts = Prompts::load(&EntryConfig::from_json(&config).unwrap()).unwrap();
        let budget = BodyBudget::new(10);
        let here = thread::current().id();
        for (size, is_here) in [(INLINE - 1, true), (INLINE, false)] {
            let mut place = budget.reserve();
            assert!(place.grow(10));
            let input = Held { value: (), place };
            let work = |()| Ok(thread::current().id());
            let done = prompts.convert(size, input, work).await.unwrap();
            assert_eq!(done.value == here, is_here);
            assert_eq!(budget.left(), 0);
        }
        assert_eq!(budget.left(), 10);
    }
}
