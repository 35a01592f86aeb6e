//! The file of keys.
//!
//! ```text
//! # a comment
//! sk-plain-key
//! sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 name=team-a concurrent=8 rpm=60 tpm=100000
//! ```

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::tenant::Rules;

/// SHA-256 of a key.
pub type Digest = [u8; 32];

/// Bounds on a file: every request is compared with each of its keys.
const MAX_BYTES: u64 = 1 << 20;
const MAX_KEYS: usize = 4096;
const MAX_WEIGHT: u32 = 1000;
const MAX_NAME: usize = 64;

/// Why a file of keys was refused. Never shows a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{path}: {what}")]
    Whole { path: String, what: &'static str },
    #[error("{path}:{line}: {what}")]
    Line {
        path: String,
        line: usize,
        what: String,
    },
}

/// One line of the file.
#[derive(Debug, PartialEq)]
pub struct Listed {
    pub digest: Digest,
    pub rules: Rules,
}

/// What a key is kept as.
pub fn digest(key: &[u8]) -> Digest {
    Sha256::digest(key).into()
}

/// Reads a file of keys; `priorities` says whether the scheduler knows any.
///
/// # Errors
/// It cannot be read, or a line of it is no key with its limits.
pub fn read(path: &Path, priorities: bool) -> Result<Vec<Listed>, KeyFileError> {
    let shown = || path.display().to_string();
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| KeyFileError::Read {
            path: shown(),
            error,
        })?;
    let whole = |what| KeyFileError::Whole {
        path: shown(),
        what,
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(whole("more than 1 MiB is no file of keys"));
    }
    let mut listed: Vec<Listed> = Vec::new();
    let mut seen = HashSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let one = entry(key, words, priorities).and_then(|one| {
            let is_new = seen.insert(one.digest);
            is_new
                .then_some(one)
                .ok_or("the key stands in the file twice".to_owned())
        });
        listed.push(one.map_err(|what| KeyFileError::Line {
            path: shown(),
            line: number,
            what,
        })?);
    }
    // An emptied file must not open the server to everybody.
    if listed.is_empty() {
        return Err(whole("there is no key in it"));
    }
    if listed.len() > MAX_KEYS {
        return Err(whole("more than 4096 keys"));
    }
    Ok(listed)
}

fn entry<'a>(
    key: &str,
    settings: impl Iterator<Item = &'a str>,
    priorities: bool,
) -> Result<Listed, String> {
    let digest = match key.strip_prefix("sha256:") {
        Some(hex) => unhex(hex).ok_or("sha256: needs 64 hexadecimal digits behind it")?,
        None if key.bytes().all(|byte| byte.is_ascii_graphic()) => digest(key.as_bytes()),
        None => return Err("a key must be visible ASCII characters".to_owned()),
    };
    let mut rules = Rules::default();
    let mut seen = Vec::new();
    for setting in settings {
        // A word that is no setting may be a part of the key, so it is not shown.
        let (name, value) = setting
            .split_once('=')
            .ok_or("behind the key stand limits such as rpm=60, and nothing else")?;
        set(&mut rules, name, value, priorities)?;
        if seen.contains(&name) {
            return Err(format!("{name} is set twice"));
        }
        seen.push(name);
    }
    Ok(Listed { digest, rules })
}

fn set(rules: &mut Rules, name: &str, value: &str, priorities: bool) -> Result<(), String> {
    let what = |what: String| format!("{name} {what}");
    let count = |most| number(value, most).map_err(what);
    match name {
        "name" => rules.name = Some(label(value).map_err(what)?),
        "concurrent" => rules.concurrent = Some(count(u32::MAX)?),
        "queued_tokens" => rules.queued_tokens = Some(count(u32::MAX)?),
        "rpm" => rules.rpm = Some(count(u32::MAX)?),
        "tpm" => rules.tpm = Some(count(u32::MAX)?),
        "weight" => rules.weight = count(MAX_WEIGHT)?,
        "priority" if !priorities => {
            return Err("priority needs --schedule-policy priority".to_owned());
        }
        "priority" => {
            let priority = value.parse();
            rules.priority = Some(priority.map_err(|_| what("must be a whole number".to_owned()))?);
        }
        _ => {
            let names = "name, concurrent, queued_tokens, rpm, tpm, priority and weight";
            return Err(format!("a limit must be one of {names}"));
        }
    }
    Ok(())
}

fn number(value: &str, most: u32) -> Result<u32, String> {
    match value.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("must be a whole number between 1 and {most}")),
    }
}

fn label(value: &str) -> Result<Arc<str>, String> {
    let fits = (1..=MAX_NAME).contains(&value.len()) && !value.contains(char::is_control);
    fits.then(|| value.into())
        .ok_or(format!("must be 1 to {MAX_NAME} bytes of text"))
}

fn unhex(hex: &str) -> Option<Digest> {
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = Digest::default();
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::rig::Scratch;

    const HASH: &str = "sha256:9F86D081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn parse(text: &str) -> Result<Vec<Listed>, String> {
        let scratch = Scratch::new();
        let path = scratch.0.join("keys");
        std::fs::write(&path, text).unwrap();
        read(&path, true).map_err(|error| {
            let prefix = path.display().to_string();
            error.to_string().strip_prefix(&prefix).unwrap().to_owned()
        })
    }

    #[test]
    fn keys_and_hashes_with_limits() {
        let settings = "name=a concurrent=1 queued_tokens=2 rpm=3 tpm=4 priority=-5 weight=6";
        let listed = parse(&format!("# one\n\n  plain \r\n{HASH} {settings}\n #x\n")).unwrap();
        assert_eq!(listed.len(), 2);
        assert_eq!(listed[0].digest, digest(b"plain"));
        assert_eq!(listed[0].rules, Rules::default());
        assert_eq!(listed[1].digest, digest(b"test"));
        let wanted = Rules {
            name: Some("a".into()),
            concurrent: Some(1),
            queued_tokens: Some(2),
            rpm: Some(3),
            tpm: Some(4),
            priority: Some(-5),
            weight: 6,
        };
        assert_eq!(listed[1].rules, wanted);
    }

    #[test]
    fn refusals_name_the_line_and_never_the_key() {
        for (text, complaint) in [
            ("", ": there is no key in it"),
            ("# sesame", ": there is no key in it"),
            ("a\nb secret\n", ":2: behind the key stand limits"),
            (
                "sesame rpm=0",
                ":1: rpm must be a whole number between 1 and",
            ),
            ("sesame rpm=1.5", ":1: rpm must be"),
            (
                "sesame weight=1001",
                ":1: weight must be a whole number between 1 and 1000",
            ),
            ("sesame rpm=1 rpm=1", ":1: rpm is set twice"),
            (
                "sesame priority=high",
                ":1: priority must be a whole number",
            ),
            ("sesame name=", ":1: name must be"),
            ("sesame speed=1", ":1: a limit must be one of"),
            ("\u{fc}sesame", ":1: a key must be visible ASCII"),
            ("sha256:sesame", ":1: sha256: needs 64"),
            ("sesame\nsesame", ":2: the key stands in the file twice"),
            (
                format!("test\n{HASH}").as_str(),
                ":2: the key stands in the file twice",
            ),
            ("x\n".repeat(600_000).as_str(), ": more than 1 MiB"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(complaint), "{error}");
            assert!(
                !error.contains("sesame") && !error.contains("secret"),
                "{error}"
            );
        }
        let many: String = (0..=MAX_KEYS).map(|key| format!("key-{key}\n")).collect();
        assert_eq!(parse(&many).unwrap_err(), ": more than 4096 keys");
        let missing = read(Path::new("/nowhere/keys"), true).unwrap_err();
        assert!(
            missing
                .to_string()
                .starts_with("/nowhere/keys: No such file")
        );
    }

    #[test]
    fn priorities_need_a_scheduler_that_knows_them() {
        let scratch = Scratch::new();
        let path = scratch.0.join("keys");
        std::fs::write(&path, "a priority=1").unwrap();
        assert!(read(&path, true).is_ok());
        let error = read(&path, false).unwrap_err().to_string();
        assert!(
            error.ends_with(":1: priority needs --schedule-policy priority"),
            "{error}"
        );
    }
}
