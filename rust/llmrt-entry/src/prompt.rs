//! Prompts: rendered, tokenized and undone on the tokenizer's threads, never on an I/O thread.

use std::sync::Arc;
use std::thread;

use llmrt_chat::{ChatError, ChatTemplate, RenderOptions, TemplateOptions};
use llmrt_text::pool::{PoolError, PoolOptions, TokenizerPool};
use llmrt_text::{Tokenizer, TokenizerError};
use serde_json::Value;

use crate::api::{ApiError, text_exceeds_context};
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
        let tokenizer = model.tokenizer.load()?;
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

    /// Token ids of a conversation; `open` ends it with the head of an answer.
    ///
    /// # Errors
    /// 400 when the template refuses the messages or there is none, and when their text is longer than any `context`
    /// tokens; 429 when too many prompts wait.
    pub async fn chat(
        &self,
        messages: Held<Vec<Value>>,
        open: bool,
        context: u32,
    ) -> Result<Held<Vec<u32>>, ApiError> {
        let Some(template) = self.template.clone() else {
            let message = "This model has no chat template; use /v1/completions.";
            return Err(ApiError::invalid(message).param("messages"));
        };
        let options = RenderOptions {
            add_generation_prompt: open,
            ..RenderOptions::default()
        };
        let size = messages.body_len();
        self.run(size, messages, move |tokenizer, messages| {
            let prompt = template
                .render(&Value::Array(messages), &options)
                .map_err(refused)?;
            check_length(tokenizer, &prompt, context, "messages")?;
            // Templates write special tokens themselves.
            tokenizer.encode(&prompt, false).map_err(broken)
        })
        .await
    }

    /// Token ids of a text; `special` adds what the tokenizer puts around one.
    ///
    /// # Errors
    /// 400 when it is longer than any `context` tokens, 429 when too many prompts wait.
    pub async fn text(
        &self,
        text: Held<String>,
        special: bool,
        context: u32,
    ) -> Result<Held<Vec<u32>>, ApiError> {
        check_length(self.pool.tokenizer(), &text.value, context, "prompt")?;
        let size = text.value.len();
        self.run(size, text, move |tokenizer, text| {
            tokenizer.encode(&text, special).map_err(broken)
        })
        .await
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
        let job = move |tokenizer: &Tokenizer| input.try_map(|value| job(tokenizer, value));
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
