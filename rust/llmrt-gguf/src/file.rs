use std::{collections::HashMap, fs::File, path::Path};

use memmap2::Mmap;

use crate::{
    Array, Dtype, GgmlType, GgufError, TensorInfo, Value, dequant,
    parse::{Contents, parse},
};

/// An open GGUF file. Tensor data stays on disk until it is read.
///
/// The file is mapped, not copied: it must not be changed or truncated while it is open.
pub struct GgufFile {
    bytes: Bytes,
    contents: Contents,
    by_name: HashMap<String, usize>,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl GgufFile {
    /// Maps the file at `path` and parses its metadata and tensor table.
    ///
    /// # Errors
    /// The file cannot be read, is not GGUF version 2 or 3, is one part of a split model, or is damaged.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "not a regular file",
            )));
        }
        // SAFETY: the map is private to this process and read-only. That nobody truncates the file meanwhile is the
        // documented duty of whoever opens it, as with every runtime that maps its weights.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Self::new(Bytes::Mapped(map))
    }

    /// Parses a GGUF file held in memory. Errors as in [`GgufFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::new(Bytes::Owned(bytes))
    }

    fn new(bytes: Bytes) -> Result<Self, GgufError> {
        let contents = parse(bytes.as_slice())?;
        match contents.metadata.get("split.count").and_then(Value::as_u64) {
            Some(parts) if parts > 1 => return Err(GgufError::Split(parts)),
            _ => {}
        }
        let names = contents.tensors.iter().enumerate();
        let by_name = names
            .map(|(index, tensor)| (tensor.name.clone(), index))
            .collect();
        Ok(Self {
            bytes,
            contents,
            by_name,
        })
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.contents.version
    }

    /// All metadata keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.contents.metadata.keys().map(String::as_str)
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.contents.metadata.get(key)
    }

    /// The string under `key`; `None` if it is absent or no string.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The non-negative integer under `key`; `None` if it is absent or no such number.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// The boolean under `key`; `None` if it is absent or no boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// The array under `key`; `None` if it is absent or no array.
    pub fn array(&self, key: &str) -> Option<&Array> {
        self.get(key)?.as_array()
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }

    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        match self.by_name.get(name) {
            Some(index) => Ok(&self.contents.tensors[*index]),
            None => Err(GgufError::NoSuchTensor(name.to_owned())),
        }
    }

    /// Bytes that [`GgufFile::read_into`] needs for this tensor in this dtype.
    ///
    /// # Errors
    /// The tensor does not exist, or its type cannot be decoded.
    pub fn read_size(&self, name: &str, dtype: Dtype) -> Result<usize, GgufError> {
        let tensor = self.tensor(name)?;
        match tensor.ggml_type {
            GgmlType::Other(_) => Err(unsupported(tensor)),
            // The parser keeps eight bytes per element inside the address space.
            _ => Ok(tensor.len * dtype.size()),
        }
    }

    /// Dequantises a tensor into `out` as little-endian elements of `dtype`, in row-major order of its shape.
    ///
    /// Runs on the current rayon pool; the global one has as many threads as the process may use cores.
    ///
    /// # Errors
    /// As [`GgufFile::read_size`], or `out` has another size than that.
    pub fn read_into(&self, name: &str, dtype: Dtype, out: &mut [u8]) -> Result<(), GgufError> {
        let tensor = self.tensor(name)?;
        let expected = self.read_size(name, dtype)?;
        if out.len() != expected {
            return Err(GgufError::BufferSize {
                tensor: name.to_owned(),
                expected,
                actual: out.len(),
            });
        }
        if expected > 0 {
            let data = &self.bytes.as_slice()[tensor.offset..][..tensor.size];
            dequant::dequantize(tensor.ggml_type, data, dtype, out);
        }
        Ok(())
    }

    /// Dequantises a tensor into a new buffer; see [`GgufFile::read_into`].
    pub fn read(&self, name: &str, dtype: Dtype) -> Result<Vec<u8>, GgufError> {
        let mut out = vec![0; self.read_size(name, dtype)?];
        self.read_into(name, dtype, &mut out)?;
        Ok(out)
    }
}

fn unsupported(tensor: &TensorInfo) -> GgufError {
    GgufError::UnsupportedType {
        tensor: tensor.name.clone(),
        type_name: tensor.ggml_type.to_string(),
    }
}
