//! Faults on demand, by the step at which they happen.

use std::str::FromStr;
use std::time::Duration;

/// Longest stall or slow step that can be asked for.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// What happens to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The whole process stands still: no step, no answer, no sign of life.
    Stall(Duration),
    /// From now on a step takes this long, while the process stays responsive.
    Slow(Duration),
    /// The process ends at once, without a farewell.
    Die,
    /// One more token frame than the step made, whose columns contradict each other.
    Garbage,
}

/// A fault and the step before which it happens; steps count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub step: u64,
}

/// Why a fault was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{spec:?} is not a fault: {reason}; write stall:SECONDS, slow:MILLISECONDS, die or garbage, with @STEP behind it for \
     another step than the next"
)]
pub struct FaultError {
    spec: String,
    reason: &'static str,
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(spec: &str) -> Result<Self, FaultError> {
        let fail = |reason| FaultError {
            spec: spec.to_owned(),
            reason,
        };
        let (what, step) = match spec.trim().split_once('@') {
            None => (spec.trim(), 0),
            Some((what, step)) => match step.parse() {
                Ok(step) if step > 0 => (what, step),
                _ => return Err(fail("the step must be a whole number from 1 on")),
            },
        };
        let (name, value) = match what.split_once(':') {
            None => (what, None),
            Some((name, value)) => (name, Some(value)),
        };
        let time = |unit: f64| -> Result<Duration, FaultError> {
            let value: f64 = value
                .ok_or_else(|| fail("a time is missing"))?
                .parse()
                .map_err(|_| fail("the time must be a number"))?;
            match Duration::try_from_secs_f64(value * unit) {
                Ok(time) if time <= MAX_TIME => Ok(time),
                _ => Err(fail("the time must be between nothing and an hour")),
            }
        };
        let kind = match name {
            "stall" => FaultKind::Stall(time(1.0)?),
            "slow" => FaultKind::Slow(time(1e-3)?),
            "die" | "garbage" if value.is_some() => return Err(fail("it takes no value")),
            "die" => FaultKind::Die,
            "garbage" => FaultKind::Garbage,
            _ => return Err(fail("there is no such fault")),
        };
        Ok(Self { kind, step })
    }
}

/// Faults that are still to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl FromStr for Faults {
    type Err = FaultError;

    /// Reads a list separated by commas; an empty one has no faults.
    fn from_str(list: &str) -> Result<Self, FaultError> {
        let specs = list.split(',').filter(|spec| !spec.trim().is_empty());
        specs.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// Takes out what happens before step number `step`, in the order it was asked for.
    pub fn take(&mut self, step: u64) -> Vec<FaultKind> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let due = self.0.extract_if(.., |fault| fault.step <= step);
        due.map(|fault| fault.kind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_taken_by_step() {
        let mut faults: Faults = "stall:0.5@3, die@9,garbage,slow:20@3"
            .parse()
            .expect("valid faults");
        assert_eq!(faults.take(1), [FaultKind::Garbage]);
        assert_eq!(faults.take(2), []);
        let third = [
            FaultKind::Stall(Duration::from_millis(500)),
            FaultKind::Slow(Duration::from_millis(20)),
        ];
        assert_eq!(faults.take(3), third);
        assert_eq!(faults.take(20), [FaultKind::Die]);
        assert_eq!(faults.take(21), []);
        assert_eq!("".parse(), Ok(Faults::default()));
    }

    #[test]
    fn refusals_name_the_fault_and_the_forms() {
        for spec in [
            "burn",
            "stall",
            "stall:x",
            "stall:-1",
            "slow:1e300",
            "stall:nan",
            "die:3",
            "die@0",
            "die@x",
            "@3",
            ":",
        ] {
            let message = spec.parse::<Faults>().expect_err("refused").to_string();
            assert!(
                message.contains(spec) && message.contains("stall:SECONDS"),
                "{message}"
            );
        }
    }
}
