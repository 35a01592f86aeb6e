//! The golden files of `tests/golden`, which the Python twin reads too.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::valid;
use llmrt_wire::{Message, WireError};

#[test]
fn every_valid_file_is_read_and_written_alike() {
    let mut seen = BTreeSet::new();
    for (name, expected) in valid() {
        let raw = read(&format!("{name}.bin"));
        let message = Message::decode(&raw).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(message, expected, "{name}");
        assert_eq!(expected.encode(), raw, "{name}");
        seen.insert(name.to_owned());
    }
    assert_eq!(seen, stems(""), "files without a case here, or the reverse");
}

#[test]
fn every_kind_has_a_golden_file() {
    let kinds: BTreeSet<u8> = valid().iter().map(|(_, m)| m.kind() as u8).collect();
    let known = (0..=u8::MAX).filter(|&kind| {
        !matches!(
            Message::decode(&[0x91, 0xcc, kind]),
            Err(WireError::UnknownKind(_))
        )
    });
    assert_eq!(kinds, known.collect());
}

#[test]
fn every_invalid_file_is_refused() {
    let names = stems("invalid");
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        let raw = read(&format!("invalid/{name}.bin"));
        if let Ok(message) = Message::decode(&raw) {
            panic!("{name} was read as {message:?}");
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let error = |name: &str| match Message::decode(&read(&format!("invalid/{name}.bin"))) {
        Err(error) => error.to_string(),
        Ok(message) => panic!("{name} was read as {message:?}"),
    };
    assert_eq!(error("unknown_kind"), "unknown message kind 99");
    assert_eq!(
        error("trailing_byte"),
        "message of kind 4 has 1 bytes behind its end"
    );
    assert!(error("number_too_wide").contains("canonical"));
    assert!(error("column_not_whole").contains("multiple of 4"));
    assert!(error("text_without_row").contains("1 bytes of text belong to no row"));
}

#[test]
fn every_truncation_is_refused() {
    for (name, message) in valid() {
        let raw = message.encode();
        let step = (raw.len() / 500).max(1);
        for end in (0..raw.len()).step_by(step).chain([raw.len() - 1]) {
            assert!(Message::decode(&raw[..end]).is_err(), "{name} cut at {end}");
        }
    }
}

/// Names of the golden files in a folder.
fn stems(folder: &str) -> BTreeSet<String> {
    std::fs::read_dir(golden_dir().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "bin"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

fn golden_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(golden_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
