//! What is told of a request's tokens besides their text.

use llmrt_wire::{LogprobRow, PromptLogprobs, TextFrame};

/// Token ids and log probabilities that wait for their request's next row, as its text does.
#[derive(Debug, Default)]
pub struct Told {
    ids: Vec<u32>,
    /// Log probabilities of as many tokens as there are ids, or of none.
    chosen: Vec<f32>,
    top: u32,
    top_ids: Vec<u32>,
    top_logprobs: Vec<f32>,
    pub prompt: Option<PromptLogprobs>,
}

impl Told {
    /// Takes tokens and, where the request asked, their log probabilities.
    pub fn push(&mut self, ids: &[u32], values: Option<LogprobRow>) {
        self.ids.extend_from_slice(ids);
        if let Some(values) = values {
            let values = values.first(ids.len());
            self.top = values.top;
            self.chosen.extend_from_slice(values.chosen);
            self.top_ids.extend_from_slice(values.top_ids);
            self.top_logprobs.extend_from_slice(values.top_logprobs);
        }
    }

    /// Adds what there is to the row `row` of a frame, its last, which stands for `tokens` tokens.
    ///
    /// Columns that do not have that many values, because the sender left some out, are not told of: they would spoil
    /// the frame for all others.
    pub fn add_to(self, frame: &mut TextFrame, row: u32, tokens: u32) {
        let tokens = tokens as usize;
        if self.ids.len() == tokens {
            frame.tokens.get_or_insert_default().push(row, &self.ids);
            let tops = tokens * self.top as usize;
            if self.chosen.len() == tokens && self.top_ids.len() == tops && tokens > 0 {
                let values = LogprobRow {
                    top: self.top,
                    chosen: &self.chosen,
                    top_ids: &self.top_ids,
                    top_logprobs: &self.top_logprobs,
                };
                frame.logprobs.get_or_insert_default().push(row, values);
            }
        }
        let prompt = self.prompt.map(|prompt| PromptLogprobs { row, ..prompt });
        frame.prompt_logprobs.extend(prompt);
    }
}
