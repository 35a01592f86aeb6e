//! The bounds of an engine.

/// Tokens of a page, for the gauge of pages in use.
pub(crate) const PAGE_SIZE: u32 = 16;

/// What an engine allows and promises.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest prompt plus answer, tokens.
    pub max_model_len: u32,
    pub vocab_size: u32,
    pub max_num_seqs: usize,
    /// Requests open at once, running or waiting; more are refused with 429.
    pub max_requests: usize,
    pub eos_token_ids: Vec<u32>,
    /// Tokens after which an answer ends by itself; 0 is never.
    pub answer_tokens: u32,
    /// Prompt tokens reported as cached; at least one is always left to compute.
    pub cached_tokens: u32,
    pub detokenizers: usize,
}

impl Limits {
    /// Pages that hold all requests at their longest.
    pub(crate) fn pages(&self) -> u64 {
        self.max_num_seqs as u64 * u64::from(self.max_model_len.div_ceil(PAGE_SIZE))
    }
}
