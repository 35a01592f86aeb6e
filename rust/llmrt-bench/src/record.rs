//! What is kept of a run: histograms and counts, whose size does not grow with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::client::Fault;
use crate::config::Goodput;
use crate::exchange::Answer;

/// Longest time, microseconds, that is told from longer ones: a day.
const LONGEST_US: u64 = 86_400_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;
const MAX_BINS: usize = 1200;

/// Measurements of one phase.
pub struct Recorder {
    pub started: Instant,
    pub ttft: Histogram<u64>,
    pub tpot: Histogram<u64>,
    pub itl: Histogram<u64>,
    pub e2e: Histogram<u64>,
    /// How long after it was due a request was sent.
    pub send_lag: Histogram<u64>,
    pub completed: u64,
    pub failed: u64,
    pub good: u64,
    /// Chunks with text, of all requests, and of completed ones only.
    pub chunks: u64,
    pub completed_chunks: u64,
    pub prompt_tokens: u64,
    /// Tokens of completed requests: by usage where it was given, else chunks.
    pub output_tokens: u64,
    pub with_usage: u64,
    pub failures: BTreeMap<String, (u64, String)>,
    pub timeline: Timeline,
    goodput: Option<Goodput>,
}

impl Recorder {
    /// # Errors
    /// Never with the bounds above; the histograms' own check.
    pub fn new(goodput: Option<Goodput>) -> Result<Self, hdrhistogram::CreationError> {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_US, SIGNIFICANT_DIGITS);
        Ok(Self {
            started: Instant::now(),
            ttft: histogram()?,
            tpot: histogram()?,
            itl: histogram()?,
            e2e: histogram()?,
            send_lag: histogram()?,
            completed: 0,
            failed: 0,
            good: 0,
            chunks: 0,
            completed_chunks: 0,
            prompt_tokens: 0,
            output_tokens: 0,
            with_usage: 0,
            failures: BTreeMap::new(),
            timeline: Timeline::new(),
            goodput,
        })
    }

    /// A chunk with text, and the time since the one before it in its stream.
    pub fn chunk(&mut self, now: Instant, gap: Option<Duration>) {
        self.chunks += 1;
        self.timeline.add(now - self.started);
        if let Some(gap) = gap {
            self.itl.saturating_record(micros(gap));
        }
    }

    pub fn sent(&mut self, lag: Duration) {
        self.send_lag.saturating_record(micros(lag));
    }

    pub fn completed(&mut self, answer: &Answer) {
        let tokens = answer
            .usage
            .map_or(answer.chunks, |usage| usage.completion_tokens);
        self.completed += 1;
        self.completed_chunks += answer.chunks;
        self.output_tokens += tokens;
        if let Some(usage) = answer.usage {
            self.with_usage += 1;
            self.prompt_tokens += usage.prompt_tokens;
        }
        let e2e = answer.ended - answer.started;
        self.e2e.saturating_record(micros(e2e));
        let ttft = answer.text.map(|(first, _)| first - answer.started);
        if let Some(ttft) = ttft {
            self.ttft.saturating_record(micros(ttft));
        }
        let tpot = answer.text.and_then(|(first, last)| {
            let gaps = u32::try_from(tokens.checked_sub(1)?).ok()?;
            (last - first).checked_div(gaps)
        });
        if let Some(tpot) = tpot {
            self.tpot.saturating_record(micros(tpot));
        }
        if self
            .goodput
            .is_some_and(|limits| keeps(&limits, ttft, tpot, e2e))
        {
            self.good += 1;
        }
    }

    pub fn failed(&mut self, fault: Fault) {
        self.failed += 1;
        let entry = self
            .failures
            .entry(fault.kind)
            .or_insert((0, fault.message));
        entry.0 += 1;
    }
}

/// A request without a first token misses a limit on it; one with a single token has no TPOT to miss.
fn keeps(limits: &Goodput, ttft: Option<Duration>, tpot: Option<Duration>, e2e: Duration) -> bool {
    let within =
        |limit: Option<f64>, time: Duration| limit.is_none_or(|ms| time.as_secs_f64() * 1e3 <= ms);
    within(limits.ttft, ttft.unwrap_or(Duration::MAX))
        && within(limits.tpot, tpot.unwrap_or(Duration::ZERO))
        && within(limits.e2e, e2e)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Chunks per interval. Intervals double when there would be too many.
pub struct Timeline {
    pub interval: Duration,
    pub bins: Vec<u64>,
}

impl Timeline {
    fn new() -> Self {
        Self {
            interval: Duration::from_millis(50),
            bins: Vec::new(),
        }
    }

    fn add(&mut self, at: Duration) {
        let mut bin = self.bin(at);
        while bin >= MAX_BINS {
            self.bins = self.bins.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.interval *= 2;
            bin = self.bin(at);
        }
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
    }

    fn bin(&self, at: Duration) -> usize {
        usize::try_from(at.as_nanos() / self.interval.as_nanos()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Usage;

    fn answer(ttft_ms: u64, last_ms: u64, chunks: u64, usage: Option<u64>) -> Answer {
        let started = Instant::now();
        let at = |ms| started + Duration::from_millis(ms);
        Answer {
            started,
            text: (chunks > 0).then(|| (at(ttft_ms), at(last_ms))),
            ended: at(last_ms + 1),
            chunks,
            usage: usage.map(|completion_tokens| Usage {
                prompt_tokens: 7,
                completion_tokens,
            }),
        }
    }

    fn ms(histogram: &Histogram<u64>) -> Vec<u64> {
        histogram
            .iter_recorded()
            .map(|v| (v.value_iterated_to() + 500) / 1000)
            .collect()
    }

    #[test]
    fn times_per_token_use_the_servers_count() {
        let mut recorder = Recorder::new(None).unwrap();
        recorder.completed(&answer(100, 500, 3, Some(5)));
        assert_eq!(
            (ms(&recorder.ttft), ms(&recorder.tpot), ms(&recorder.e2e)),
            (vec![100], vec![100], vec![501])
        );
        assert_eq!((recorder.output_tokens, recorder.prompt_tokens), (5, 7));
        recorder.completed(&answer(100, 300, 3, None));
        assert_eq!(
            (
                recorder.output_tokens,
                recorder.with_usage,
                recorder.completed
            ),
            (8, 1, 2)
        );
    }

    #[test]
    fn answers_of_one_token_and_none_have_no_tpot() {
        let mut recorder = Recorder::new(None).unwrap();
        recorder.completed(&answer(10, 10, 1, Some(1)));
        recorder.completed(&answer(0, 10, 0, Some(0)));
        assert_eq!(
            (recorder.tpot.len(), recorder.ttft.len(), recorder.e2e.len()),
            (0, 1, 2)
        );
    }

    #[test]
    fn goodput_counts_requests_within_every_limit() {
        let limits = Goodput {
            ttft: Some(50.0),
            tpot: Some(20.0),
            e2e: None,
        };
        let mut recorder = Recorder::new(Some(limits)).unwrap();
        recorder.completed(&answer(40, 80, 3, Some(3)));
        recorder.completed(&answer(60, 80, 3, Some(3)));
        recorder.completed(&answer(40, 100, 3, Some(3)));
        recorder.completed(&answer(0, 10, 0, None));
        recorder.completed(&answer(40, 40, 1, Some(1)));
        assert_eq!(recorder.good, 2);
    }

    #[test]
    fn failures_keep_the_first_message() {
        let mut recorder = Recorder::new(None).unwrap();
        recorder.failed(Fault::new("429", "first"));
        recorder.failed(Fault::new("429", "second"));
        assert_eq!(recorder.failures["429"], (2, "first".to_owned()));
    }

    #[test]
    fn a_long_timeline_stays_small_and_loses_nothing() {
        let mut timeline = Timeline::new();
        for second in 0..3000 {
            timeline.add(Duration::from_secs(second));
        }
        assert!(timeline.bins.len() <= MAX_BINS);
        assert_eq!(timeline.bins.iter().sum::<u64>(), 3000);
        assert_eq!(timeline.interval, Duration::from_millis(3200));
        assert_eq!(timeline.bins[0], 4);
    }
}
