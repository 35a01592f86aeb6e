//! A stream of results as OpenAI events.

use bytes::BytesMut;
use llmrt_wire::Outcome;

use crate::api::{ApiError, Choice, ChunkWriter, Finish, Parts, Row, Telling, Told, Usage};
use crate::router::{Closing, EventWriter};

/// The events of an answer with one choice.
pub struct OpenAiEvents {
    pub writer: ChunkWriter,
    pub choice: Choice,
    /// The request's own stop tokens: only those are named as the reason.
    pub stop_token_ids: Vec<u32>,
    pub details: Option<Box<StreamedDetails>>,
}

/// What is told beside the text, and was not told yet.
pub struct StreamedDetails {
    pub telling: Telling,
    pub untold: Told,
}

impl StreamedDetails {
    fn parts(&mut self) -> Parts {
        self.telling.parts(std::mem::take(&mut self.untold))
    }
}

impl OpenAiEvents {
    fn finish_choice(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut) {
        let finish = Finish::new(outcome, &self.stop_token_ids);
        let parts = self.details.as_mut().map(|details| details.parts());
        let choice = &mut self.choice;
        self.writer
            .finish(out, choice, parts.as_ref(), &finish, usage);
    }
}

impl EventWriter for OpenAiEvents {
    fn row(&mut self, row: &Row, usage: Usage, out: &mut BytesMut) {
        let Some(details) = &mut self.details else {
            return self.writer.text(out, &mut self.choice, row.text, usage);
        };
        details.untold.add(row);
        // Tokens without text wait for the next text, or the end.
        if !row.text.is_empty() {
            let parts = details.parts();
            self.writer
                .told(out, &mut self.choice, row.text, &parts, usage);
        }
    }

    fn finish(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut) {
        self.finish_choice(outcome, usage, out);
        self.writer.end(out, usage);
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        error.write_event(out);
        ChunkWriter::done(out);
    }
}

/// The events of one choice among others; [`AllChoices`] ends the answer.
pub struct OneOfMany(pub OpenAiEvents);

impl EventWriter for OneOfMany {
    fn row(&mut self, row: &Row, usage: Usage, out: &mut BytesMut) {
        self.0.row(row, usage, out);
    }

    fn finish(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut) {
        self.0.finish_choice(outcome, usage, out);
    }

    fn fail(&mut self, _: &ApiError, _: &mut BytesMut) {}
}

/// The end of an answer with several choices.
pub struct AllChoices {
    pub writer: ChunkWriter,
    /// Choices for each prompt.
    pub n: usize,
}

impl Closing for AllChoices {
    fn finish(&self, usages: &[Usage], out: &mut BytesMut) {
        self.writer.end(out, Usage::of_choices(usages, self.n));
    }

    fn fail(&self, error: &ApiError, out: &mut BytesMut) {
        error.write_event(out);
        ChunkWriter::done(out);
    }
}
