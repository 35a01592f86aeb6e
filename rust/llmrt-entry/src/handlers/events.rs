//! A stream of results as OpenAI events.

use bytes::BytesMut;
use llmrt_wire::Outcome;

use crate::api::{ApiError, Choice, ChunkWriter, Finish, Usage};
use crate::router::EventWriter;

/// The events of an answer with one choice.
pub struct OpenAiEvents {
    pub writer: ChunkWriter,
    pub choice: Choice,
    /// The request's own stop tokens: only those are named as the reason.
    pub stop_token_ids: Vec<u32>,
}

impl EventWriter for OpenAiEvents {
    fn text(&mut self, text: &str, out: &mut BytesMut) {
        self.writer.text(out, &mut self.choice, text);
    }

    fn finish(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut) {
        let finish = Finish::new(outcome, &self.stop_token_ids);
        self.writer.finish(out, &mut self.choice, "", &finish);
        self.writer.end(out, usage);
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        error.write_event(out);
        ChunkWriter::done(out);
    }
}
