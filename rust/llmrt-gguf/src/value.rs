use crate::{GgufError, cursor::Cursor};

/// Arrays of arrays deeper than this are refused: nothing real has them, and each level costs a stack frame.
const MAX_DEPTH: usize = 4;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array; all elements have one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The value as a non-negative integer, whatever integer type it was stored in.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a number, if it was stored as F32 or F64.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        const WHAT: &str = "a metadata value";
        let offset = cursor.position();
        Ok(match cursor.u32(WHAT)? {
            0 => Value::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
            1 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
            2 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
            3 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
            4 => Value::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
            5 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
            6 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
            7 => Value::Bool(boolean(cursor.array::<1>(WHAT)?[0])?),
            8 => Value::String(cursor.string("a metadata string")?.to_owned()),
            9 => Value::Array(Array::parse(cursor, 1)?),
            10 => Value::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
            11 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
            12 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
            other => return Err(unknown_type(other, offset)),
        })
    }
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parse(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, GgufError> {
        let offset = cursor.position();
        if depth > MAX_DEPTH {
            return Err(GgufError::Invalid(format!(
                "arrays are nested more than {MAX_DEPTH} deep at byte {offset}"
            )));
        }
        let element_type = cursor.u32("an array's element type")?;
        let len = cursor.u64("an array's length")?;
        Ok(match element_type {
            0 => Array::U8(scalars(cursor, len, u8::from_le_bytes)?),
            1 => Array::I8(scalars(cursor, len, i8::from_le_bytes)?),
            2 => Array::U16(scalars(cursor, len, u16::from_le_bytes)?),
            3 => Array::I16(scalars(cursor, len, i16::from_le_bytes)?),
            4 => Array::U32(scalars(cursor, len, u32::from_le_bytes)?),
            5 => Array::I32(scalars(cursor, len, i32::from_le_bytes)?),
            6 => Array::F32(scalars(cursor, len, f32::from_le_bytes)?),
            7 => Array::Bool(booleans(cursor, len)?),
            8 => Array::String(strings(cursor, len)?),
            9 => Array::Array(arrays(cursor, len, depth)?),
            10 => Array::U64(scalars(cursor, len, u64::from_le_bytes)?),
            11 => Array::I64(scalars(cursor, len, i64::from_le_bytes)?),
            12 => Array::F64(scalars(cursor, len, f64::from_le_bytes)?),
            other => return Err(unknown_type(other, offset)),
        })
    }
}

fn unknown_type(id: u32, offset: usize) -> GgufError {
    GgufError::Invalid(format!("unknown metadata type {id} at byte {offset}"))
}

fn boolean(byte: u8) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(GgufError::Invalid(format!(
            "a boolean is {byte}, not 0 or 1"
        ))),
    }
}

/// Takes the bytes before it allocates, so that a huge `len` costs nothing.
fn scalars<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    len: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let bytes = cursor.take(len.saturating_mul(N as u64), "a metadata array")?;
    let (chunks, _) = bytes.as_chunks::<N>();
    Ok(chunks.iter().map(|chunk| decode(*chunk)).collect())
}

fn booleans(cursor: &mut Cursor<'_>, len: u64) -> Result<Vec<bool>, GgufError> {
    let bytes = cursor.take(len, "a metadata array")?;
    bytes.iter().map(|byte| boolean(*byte)).collect()
}

/// Grows as elements arrive: `len` is a claim until the bytes behind it have been seen.
fn strings(cursor: &mut Cursor<'_>, len: u64) -> Result<Vec<String>, GgufError> {
    let mut out = Vec::new();
    for _ in 0..len {
        out.push(cursor.string("a metadata string")?.to_owned());
    }
    Ok(out)
}

fn arrays(cursor: &mut Cursor<'_>, len: u64, depth: usize) -> Result<Vec<Array>, GgufError> {
    let mut out = Vec::new();
    for _ in 0..len {
        out.push(Array::parse(cursor, depth + 1)?);
    }
    Ok(out)
}
