use std::collections::{BTreeMap, HashSet};

use crate::{GgmlType, GgufError, Value, cursor::Cursor};

const DEFAULT_ALIGNMENT: usize = 32;
const MAX_DIMENSIONS: u32 = 4;

/// Where a tensor lies in the file and what it looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// Outermost dimension first, as torch has it (the file stores them the other way round).
    pub shape: Vec<usize>,
    pub ggml_type: GgmlType,
    /// Number of elements.
    pub len: usize,
    /// First byte of the data, from the start of the file.
    pub offset: usize,
    /// Bytes of the data; 0 if the type cannot be decoded and its size is therefore unknown.
    pub size: usize,
}

pub(crate) struct Contents {
    pub version: u32,
    pub metadata: BTreeMap<String, Value>,
    pub tensors: Vec<TensorInfo>,
}

/// Parses everything before the tensor data and checks that every tensor lies inside the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Contents, GgufError> {
    let mut cursor = Cursor::new(bytes);
    let version = parse_version(&mut cursor)?;
    let tensor_count = cursor.u64("the tensor count")?;
    let metadata_count = cursor.u64("the metadata count")?;
    let metadata = parse_metadata(&mut cursor, metadata_count)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = parse_tensors(&mut cursor, tensor_count)?;
    let data_start = cursor
        .position()
        .checked_next_multiple_of(alignment)
        .ok_or_else(|| {
            GgufError::Invalid("the tensor data begins beyond the address space".into())
        })?;
    for tensor in &mut tensors {
        place(tensor, data_start, alignment, bytes.len())?;
    }
    check_overlap(&tensors)?;
    Ok(Contents {
        version,
        metadata,
        tensors,
    })
}

fn parse_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if cursor
        .array("the magic number")
        .is_ok_and(|magic| &magic == b"GGUF")
    {
        match cursor.u32("the version")? {
            version @ (2 | 3) => Ok(version),
            version if matches!(version.swap_bytes(), 2 | 3) => Err(GgufError::BigEndian),
            version => Err(GgufError::Version(version)),
        }
    } else {
        Err(GgufError::Magic)
    }
}

fn parse_metadata(
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<BTreeMap<String, Value>, GgufError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.string("a metadata key")?.to_owned();
        let value = Value::parse(cursor)?;
        if metadata.contains_key(&key) {
            return Err(GgufError::Invalid(format!(
                "the metadata key {key:?} occurs twice"
            )));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<usize, GgufError> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value {
        Value::U32(value) if value.is_power_of_two() => Ok(*value as usize),
        _ => Err(GgufError::Invalid(
            "general.alignment is not a 32-bit power of two".into(),
        )),
    }
}

fn parse_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let tensor = parse_tensor(cursor)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufError::Invalid(format!(
                "the tensor {:?} occurs twice",
                tensor.name
            )));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// Reads one row of the tensor table; `offset` is still relative to the tensor data.
fn parse_tensor(cursor: &mut Cursor<'_>) -> Result<TensorInfo, GgufError> {
    const WHAT: &str = "the tensor table";
    let name = cursor.string("a tensor name")?.to_owned();
    let invalid = |why: String| GgufError::Invalid(format!("tensor {name:?} {why}"));
    let dimensions = cursor.u32(WHAT)?;
    if dimensions > MAX_DIMENSIONS {
        return Err(invalid(format!(
            "has {dimensions} dimensions; at most {MAX_DIMENSIONS} exist"
        )));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let extent = usize::try_from(cursor.u64(WHAT)?);
        shape.push(extent.map_err(|_| invalid("is larger than the address space".into()))?);
    }
    shape.reverse();
    let ggml_type = GgmlType::from_id(cursor.u32(WHAT)?);
    let offset = usize::try_from(cursor.u64(WHAT)?)
        .map_err(|_| invalid("lies beyond the address space".into()))?;
    let (len, size) = sizes(&shape, ggml_type).map_err(|why| invalid(why.into()))?;
    Ok(TensorInfo {
        name,
        shape,
        ggml_type,
        len,
        offset,
        size,
    })
}

/// Elements and stored bytes of a tensor. Blocks run along the innermost dimension and never cross a row.
fn sizes(shape: &[usize], ggml_type: GgmlType) -> Result<(usize, usize), &'static str> {
    let too_large = "is larger than the address space";
    // ggml counts bytes and elements in signed 64-bit numbers; one zero extent must not hide an overflow of the rest.
    let mut nonzero = shape.iter().map(|extent| (*extent).max(1));
    let bound = nonzero.try_fold(8_usize, |product, extent| product.checked_mul(extent));
    bound
        .filter(|bound| isize::try_from(*bound).is_ok())
        .ok_or(too_large)?;
    let len = shape.iter().product::<usize>();
    let Some((block_len, block_size)) = ggml_type.block() else {
        return Ok((len, 0));
    };
    if !shape.last().copied().unwrap_or(1).is_multiple_of(block_len) {
        return Err("has rows that are not a whole number of quantisation blocks");
    }
    let size = (len / block_len).checked_mul(block_size).ok_or(too_large)?;
    Ok((len, size))
}

/// Makes the offset absolute and checks that the data is aligned and inside the file.
fn place(
    tensor: &mut TensorInfo,
    data_start: usize,
    alignment: usize,
    file_size: usize,
) -> Result<(), GgufError> {
    let invalid = |why: &str| GgufError::Invalid(format!("tensor {:?} {why}", tensor.name));
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(invalid("is not aligned"));
    }
    let start = data_start.checked_add(tensor.offset);
    let end = start.and_then(|start| start.checked_add(tensor.size));
    match (start, end) {
        (Some(start), Some(end)) if end <= file_size || tensor.size == 0 => {
            tensor.offset = start;
            Ok(())
        }
        _ => Err(invalid(
            "lies beyond the end of the file; the file may be incomplete",
        )),
    }
}

/// Tensors that share bytes would let a small file describe an arbitrarily large model.
fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut ordered: Vec<&TensorInfo> = tensors.iter().filter(|tensor| tensor.size > 0).collect();
    ordered.sort_unstable_by_key(|tensor| tensor.offset);
    match ordered
        .windows(2)
        .find(|pair| pair[0].offset + pair[0].size > pair[1].offset)
    {
        Some(pair) => Err(GgufError::Invalid(format!(
            "the tensors {:?} and {:?} overlap",
            pair[0].name, pair[1].name
        ))),
        None => Ok(()),
    }
}
