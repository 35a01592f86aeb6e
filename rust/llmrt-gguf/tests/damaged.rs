//! Files from strangers: whatever the bytes, the parser answers, and its memory is bounded by the size of the file.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use llmrt_gguf::{Dtype, GgufError, GgufFile, Value};
use proptest::prelude::*;

/// Remembers the largest request each thread made.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Builds a file field by field, sound or not.
#[derive(Clone)]
struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    fn new(tensors: u64, metadata: u64) -> Self {
        let bytes = b"GGUF".to_vec();
        Self { bytes }.u32(3).u64(tensors).u64(metadata)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn string(self, value: &str) -> Self {
        self.u64(value.len() as u64).raw(value.as_bytes())
    }

    fn key(self, key: &str, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }

    /// One row of the tensor table; `extents` innermost first, as the file has them.
    fn tensor(self, name: &str, extents: &[u64], ggml_type: u32, offset: u64) -> Self {
        let row = self.string(name).u32(extents.len() as u32);
        let row = extents.iter().fold(row, |row, extent| row.u64(*extent));
        row.u32(ggml_type).u64(offset)
    }

    fn data(mut self, len: usize) -> Self {
        let start = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(start + len, 0x11);
        self
    }

    fn parse(self) -> Result<GgufFile, GgufError> {
        GgufFile::from_bytes(self.bytes)
    }

    fn error(self) -> String {
        match self.parse() {
            Ok(_) => "the file was accepted".into(),
            Err(error) => error.to_string(),
        }
    }
}

fn sound() -> Builder {
    Builder::new(3, 5)
        .key("general.architecture", 8)
        .string("llama")
        .key("numbers", 9)
        .u32(5)
        .u64(3)
        .raw(&[1; 12])
        .key("strings", 9)
        .u32(8)
        .u64(2)
        .string("α")
        .string("")
        .key("nested", 9)
        .u32(9)
        .u64(1)
        .u32(7)
        .u64(2)
        .raw(&[0, 1])
        .key("flag", 7)
        .raw(&[1])
        .tensor("a", &[64, 2], 3, 0)
        .tensor("b", &[3], 0, 96)
        .tensor("c", &[256], 14, 128)
        .data(128 + 210)
}

#[test]
fn a_sound_file_is_read() {
    let file = sound().parse().unwrap();
    assert_eq!(file.str("general.architecture"), Some("llama"));
    assert_eq!(file.get("flag"), Some(&Value::Bool(true)));
    assert_eq!(file.array("strings").unwrap().len(), 2);
    assert_eq!(file.tensor("a").unwrap().shape, [2, 64]);
    assert_eq!(file.read("a", Dtype::F16).unwrap().len(), 256);
    assert!(matches!(
        file.read_into("a", Dtype::F16, &mut [0; 3]),
        Err(GgufError::BufferSize { expected: 256, .. })
    ));
}

#[test]
fn headers_that_are_not_gguf_2_or_3() {
    let with_version = |version: [u8; 4]| {
        Builder {
            bytes: b"GGUF".to_vec(),
        }
        .raw(&version)
    };
    assert!(matches!(
        with_version([1, 0, 0, 0]).parse(),
        Err(GgufError::Version(1))
    ));
    assert!(matches!(
        with_version([0, 0, 0, 3]).parse(),
        Err(GgufError::BigEndian)
    ));
    let other = Builder {
        bytes: b"GGML\x03\0\0\0".to_vec(),
    };
    assert!(matches!(other.parse(), Err(GgufError::Magic)));
}

#[test]
fn huge_counts_are_truncation() {
    let huge = u64::MAX / 2;
    let files = [
        Builder::new(huge, 0),
        Builder::new(0, huge),
        Builder::new(0, 1).u64(huge),
        Builder::new(0, 1).key("s", 8).u64(huge),
        Builder::new(0, 1).key("a", 9).u32(10).u64(huge),
        Builder::new(0, 1).key("a", 9).u32(8).u64(huge),
        Builder::new(0, 1).key("a", 9).u32(9).u64(huge),
    ];
    for file in files {
        LARGEST.set(0);
        assert!(matches!(file.parse(), Err(GgufError::Truncated { .. })));
        assert!(
            LARGEST.get() < 4096,
            "allocated {} bytes at once",
            LARGEST.get()
        );
    }
}

#[test]
fn shapes_and_places_that_cannot_be() {
    let one = |extents: &[u64], ggml_type, offset| {
        Builder::new(1, 0)
            .tensor("t", extents, ggml_type, offset)
            .data(64)
            .error()
    };
    assert!(one(&[1 << 40, 1 << 40], 0, 0).contains("larger than the address space"));
    assert!(one(&[1 << 40, 0, 1 << 40], 0, 0).contains("larger than the address space"));
    assert!(one(&[u64::MAX], 2, 0).contains("larger than the address space"));
    assert!(one(&[33], 3, 0).contains("quantisation blocks"));
    assert!(one(&[17], 0, 0).contains("beyond the end"));
    assert!(one(&[1], 0, u64::MAX - 31).contains("beyond the end"));
    assert!(one(&[1], 0, 4).contains("not aligned"));
    assert!(one(&[1; 5], 0, 0).contains("5 dimensions"));
    assert_eq!(one(&[16], 0, 0), "the file was accepted");
}

#[test]
fn contradictions() {
    let twice = Builder::new(2, 0)
        .tensor("t", &[1], 0, 0)
        .tensor("t", &[1], 0, 32);
    assert!(twice.data(64).error().contains("\"t\" occurs twice"));
    let key_twice = Builder::new(0, 2).key("k", 4).u32(1).key("k", 4).u32(2);
    assert!(key_twice.error().contains("\"k\" occurs twice"));
    let shared = Builder::new(2, 0)
        .tensor("a", &[16], 0, 0)
        .tensor("b", &[1], 0, 32);
    assert!(shared.data(64).error().contains("overlap"));
    for alignment in [0, 3] {
        let odd = Builder::new(0, 1)
            .key("general.alignment", 4)
            .u32(alignment);
        assert!(odd.error().contains("power of two"));
    }
    let split = Builder::new(0, 1).key("split.count", 2).raw(&[3, 0]);
    assert!(matches!(split.parse(), Err(GgufError::Split(3))));
    let bool_two = Builder::new(0, 1).key("flag", 7).raw(&[2]);
    assert!(bool_two.error().contains("boolean"));
    let bad_text = Builder::new(0, 1).key("s", 8).u64(1).raw(&[0xff]);
    assert!(bad_text.error().contains("UTF-8"));
    let odd_type = Builder::new(0, 1).key("s", 13);
    assert!(odd_type.error().contains("unknown metadata type 13"));
}

#[test]
fn endless_nesting_is_refused() {
    let deep = (0..100_000).fold(Builder::new(0, 1).key("a", 9), |file, _| file.u32(9).u64(1));
    assert!(deep.error().contains("nested"));
}

#[test]
fn a_type_that_cannot_be_decoded_is_named() {
    let file = Builder::new(1, 0)
        .tensor("odd", &[256], 10, 0)
        .data(84)
        .parse()
        .unwrap();
    let error = file.read("odd", Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("odd") && error.contains("Q2_K"), "{error}");
}

/// Parses and reads everything, and checks that no single allocation was out of proportion.
fn exercise(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let limit = 64 * bytes.len() + 4096;
    LARGEST.set(0);
    if let Ok(file) = GgufFile::from_bytes(bytes) {
        for tensor in file.tensors() {
            let _ = file.read(&tensor.name, Dtype::F32);
        }
    }
    prop_assert!(
        LARGEST.get() <= limit,
        "allocated {} bytes at once",
        LARGEST.get()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn truncated_anywhere(len in 0..sound().bytes.len()) {
        let mut bytes = sound().bytes;
        bytes.truncate(len);
        prop_assert!(GgufFile::from_bytes(bytes).is_err());
    }

    #[test]
    fn mutated_anywhere(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sound().bytes;
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        exercise(bytes)?;
    }

    #[test]
    fn integers_replaced(at in 4..sound().bytes.len() - 8, value in prop_oneof![
        Just(0), Just(u64::MAX), Just(i64::MAX as u64), Just(1 << 32), any::<u64>(), 0..64_u64,
    ]) {
        let mut bytes = sound().bytes;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        exercise(bytes)?;
    }

    #[test]
    fn noise(tail in prop::collection::vec(any::<u8>(), 0..512)) {
        exercise([b"GGUF\x03\0\0\0".as_slice(), &tail].concat())?;
    }
}
