//! CPU time and memory of processes, from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

/// A process that cannot be measured.
#[derive(Debug, Error)]
#[error("process {pid}: {reason}")]
pub struct ProcessError {
    pub pid: u32,
    pub reason: String,
}

/// A process at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub parent: u32,
    /// Clock ticks since boot; tells a process from a later one with the same id.
    pub started: u64,
    /// User and system time of its living and ended threads, in steps of a clock tick (10 ms).
    pub cpu: Duration,
    pub rss_kib: u64,
    /// Most since the process started.
    pub peak_kib: u64,
}

/// Samples the processes and, if asked, their descendants.
///
/// # Errors
/// One of `pids` does not exist, or there is no `/proc`.
pub fn sample(pids: &[u32], tree: bool) -> Result<BTreeMap<u32, Sample>, ProcessError> {
    let mut found = BTreeMap::new();
    for &pid in pids {
        let sample = read(pid).map_err(|e| ProcessError {
            pid,
            reason: e.to_string(),
        })?;
        found.insert(pid, sample);
    }
    if tree && !pids.is_empty() {
        add_descendants(&mut found);
    }
    Ok(found)
}

/// Samples those that are left, and descendants that came.
#[must_use]
pub fn sample_again(pids: &[u32], tree: bool) -> BTreeMap<u32, Sample> {
    let mut found: BTreeMap<u32, Sample> = pids
        .iter()
        .filter_map(|&pid| Some((pid, read(pid).ok()?)))
        .collect();
    if tree && !pids.is_empty() {
        add_descendants(&mut found);
    }
    found
}

fn add_descendants(found: &mut BTreeMap<u32, Sample>) {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return;
    };
    // A process may end between the listing and the reading.
    let mut others: BTreeMap<u32, Sample> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, read(pid).ok()?)))
        .collect();
    let mut parents: BTreeSet<u32> = found.keys().copied().collect();
    while !parents.is_empty() {
        let children: Vec<u32> = others
            .iter()
            .filter(|(pid, sample)| parents.contains(&sample.parent) && !found.contains_key(pid))
            .map(|(&pid, _)| pid)
            .collect();
        parents = children.iter().copied().collect();
        found.extend(children.iter().filter_map(|pid| others.remove_entry(pid)));
    }
}

fn read(pid: u32) -> std::io::Result<Sample> {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let stat = std::fs::read_to_string(directory.join("stat"))?;
    let status = std::fs::read_to_string(directory.join("status"))?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    parse(&stat, &status, ticks_per_second)
        .ok_or_else(|| std::io::Error::other("its /proc files have an unknown form"))
}

/// The name in `stat` stands in parentheses and may contain any character.
fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Option<Sample> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = field(11)? + field(12)?;
    // A zombie has no memory and no such lines.
    let memory = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    Some(Sample {
        name: name.to_owned(),
        parent: u32::try_from(field(1)?).ok()?,
        started: field(19)?,
        cpu: Duration::from_micros(ticks * 1_000_000 / ticks_per_second.max(1)),
        rss_kib: memory("VmRSS:"),
        peak_kib: memory("VmHWM:"),
    })
}

/// CPU time of this process, all threads.
#[must_use]
pub fn own_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let stat = "12 (a) b (c)) S 7 0 0 0 0 0 0 0 0 0 250 50 9 9 20 0 1 0 4242 0 0";
        let status = "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n";
        let sample = parse(stat, status, 100).unwrap();
        assert_eq!(sample.name, "a) b (c)");
        assert_eq!((sample.parent, sample.started), (7, 4242));
        assert_eq!(sample.cpu, Duration::from_secs(3));
        assert_eq!((sample.rss_kib, sample.peak_kib), (1024, 2048));
        assert_eq!(parse("12 (a", status, 100), None);
        assert_eq!(parse("12 (a) S 7", status, 100), None);
    }

    #[test]
    fn a_process_and_its_child_are_found() {
        let me = std::process::id();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let alone = sample(&[me], false).unwrap();
        let tree = sample(&[me], true).unwrap();
        assert_eq!(alone.keys().copied().collect::<Vec<_>>(), [me]);
        assert_eq!(tree[&child.id()].parent, me);
        assert!(alone[&me].rss_kib > 0 && alone[&me].peak_kib >= alone[&me].rss_kib);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!sample_again(&[me], true).contains_key(&child.id()));
        assert!(sample(&[child.id()], false).is_err());
    }

    #[test]
    fn own_time_runs_with_work() {
        let before = own_cpu();
        let mut sum = 0_u64;
        while own_cpu() - before < Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
