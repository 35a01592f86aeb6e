//! A compiled chat template and its one operation, `render`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{Environment, Value};
use serde_json::{Value as Json, json};

use crate::bounds::{Prompt, Watch};
use crate::content::{self, ContentFormat, Conversation};
use crate::error::{ChatError, classify, describe};
use crate::options::{Limits, RenderOptions, TemplateOptions};
use crate::{python, source};

/// The engine's name for the one template of an environment.
const NAME: &str = "chat_template";

/// Variables that `render` sets itself.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Marks where the last message ends. Its trailing space shows whether the template trims content.
const CONTINUE_TAG: &str = "CONTINUE-THIS-MESSAGE-HERE ";

/// A model's chat template, compiled once and shared between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    limits: Limits,
    format: ContentFormat,
}

impl ChatTemplate {
    /// Compiles `source` and finds out by trial which forms of `content` it takes.
    ///
    /// # Errors
    /// [`ChatError::Compile`] when the template is broken.
    pub fn new(source: &str, options: TemplateOptions) -> Result<Self, ChatError> {
        let mut env = python::environment(options.clock);
        let tokens = [
            ("bos_token", options.bos_token),
            ("eos_token", options.eos_token),
        ];
        for (name, token) in tokens
            .into_iter()
            .filter_map(|(name, token)| Some((name.to_owned(), token?)))
        {
            env.add_global(name, token);
        }
        for (name, token) in options.special_tokens {
            env.add_global(name, token);
        }
        env.add_template_owned(NAME, source::adapt(source))
            .map_err(|error| ChatError::Compile(describe(&error)))?;
        let mut template = Self {
            env,
            limits: options.limits,
            format: ContentFormat::Either,
        };
        template.format = template.probe();
        Ok(template)
    }

    /// Which forms of `content` the template takes.
    pub fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// Renders `messages`, a list of objects with `role` and `content`, to the prompt.
    ///
    /// # Errors
    /// Every error but [`ChatError::Engine`] is the request's fault, see [`ChatError::is_client_error`].
    pub fn render(&self, messages: &Json, options: &RenderOptions) -> Result<String, ChatError> {
        if !options.continue_final_message {
            return self.run(content::convert(messages, self.format, None)?, options);
        }
        if options.add_generation_prompt {
            return Err(ChatError::Invalid(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false".into(),
            ));
        }
        let text = content::final_text(messages)?;
        let conversation = content::convert(messages, self.format, Some(CONTINUE_TAG))?;
        cut(self.run(conversation, options)?, text)
    }

    fn run(
        &self,
        conversation: Conversation,
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let expected = conversation.bytes as usize + 1024;
        let mut env = self.env.clone();
        env.set_fuel(Some(self.fuel(&conversation)));
        python::print_with(&mut env, Watch::start(&self.limits));
        let context = context(conversation, options)?;
        let mut prompt = Prompt::with_cap(self.limits.max_output_bytes, expected);
        // Templates are foreign code to the engine: should they find a bug in it, only this request fails.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let template = env.get_template(NAME)?;
            template.render_captured_to(context, &mut prompt).map(drop)
        }));
        match outcome {
            Ok(Ok(())) => prompt.into_string().ok_or(ChatError::Engine),
            Ok(Err(error)) => Err(classify(error)),
            Err(_) => Err(ChatError::Engine),
        }
    }

    fn fuel(&self, conversation: &Conversation) -> u64 {
        let limits = &self.limits;
        let values = conversation.values.saturating_mul(limits.fuel_per_value);
        let bytes = conversation.bytes.saturating_mul(limits.fuel_per_byte);
        // The engine counts in signed numbers.
        limits
            .base_fuel
            .saturating_add(values)
            .saturating_add(bytes)
            .min(isize::MAX as u64)
    }

    /// Renders small conversations with either form of content and looks for their text in the prompt.
    fn probe(&self) -> ContentFormat {
        let roles: [&[&str]; 3] = [
            &["system", "user", "assistant", "user"],
            &["user", "assistant", "user"],
            &["user"],
        ];
        let takes_text = roles.iter().find(|roles| self.shows(roles, false));
        match takes_text {
            Some(roles) if self.shows(roles, true) => ContentFormat::Either,
            Some(_) => ContentFormat::Text,
            None if roles.iter().any(|roles| self.shows(roles, true)) => ContentFormat::Parts,
            None => ContentFormat::Text,
        }
    }

    /// Whether the texts of a conversation with these roles appear in its prompt, and nothing of their wrapping.
    fn shows(&self, roles: &[&str], as_parts: bool) -> bool {
        let words: Vec<String> = (0..roles.len()).map(|i| format!("probe{i}word")).collect();
        let messages: Vec<Json> = roles
            .iter()
            .zip(&words)
            .map(|(role, word)| match as_parts {
                true => json!({"role": role, "content": [{"type": "text", "text": word}]}),
                false => json!({"role": role, "content": word}),
            })
            .collect();
        let Ok(conversation) = content::convert(&Json::from(messages), ContentFormat::Either, None)
        else {
            return false;
        };
        self.run(conversation, &RenderOptions::default())
            .is_ok_and(|prompt| {
                words.iter().all(|word| prompt.contains(word.as_str()))
                    && !words.iter().any(|word| {
                        prompt.contains(&format!("'text': '{word}'"))
                            || prompt.contains(&format!("\"text\": \"{word}\""))
                    })
            })
    }
}

/// The variables of one render.
fn context(conversation: Conversation, options: &RenderOptions) -> Result<Value, ChatError> {
    let mut variables: Vec<(Value, Value)> =
        Vec::with_capacity(RESERVED.len() + options.kwargs.len());
    for (name, value) in &options.kwargs {
        if RESERVED.contains(&name.as_str()) {
            return Err(ChatError::Invalid(format!(
                "chat_template_kwargs must not contain '{name}'"
            )));
        }
        variables.push((Value::from(name.as_str()), content::variable(value)?));
    }
    variables.push((Value::from("messages"), conversation.messages));
    variables.push((Value::from("tools"), Value::from(())));
    variables.push((Value::from("documents"), Value::from(())));
    variables.push((
        Value::from("add_generation_prompt"),
        Value::from(options.add_generation_prompt),
    ));
    Ok(variables.into_iter().collect())
}

/// Cuts a prompt after the text of its last message.
fn cut(mut prompt: String, text: &str) -> Result<String, ChatError> {
    let is_space = python::is_space;
    let at = prompt.rfind(CONTINUE_TAG.trim_end());
    let (Some(at), true) = (at, prompt.contains(text.trim_matches(is_space))) else {
        return Err(ChatError::Invalid(
            "continue_final_message: the chat template changes or drops the text of the last message".into(),
        ));
    };
    let spacing_kept = prompt[at..].starts_with(CONTINUE_TAG);
    prompt.truncate(at);
    if !spacing_kept {
        prompt.truncate(prompt.trim_end_matches(is_space).len());
    }
    Ok(prompt)
}
