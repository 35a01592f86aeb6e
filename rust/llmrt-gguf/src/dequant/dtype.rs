use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::TILE;

/// Element type of a dequantised tensor. Narrowing rounds to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// Writes at most one tile of `values` to `out` as little-endian elements.
    pub(super) fn store(self, values: &[f32], out: &mut [u8]) {
        match self {
            Dtype::F32 => write(values, out, f32::to_le_bytes),
            Dtype::F16 => {
                let mut narrow = [f16::ZERO; TILE];
                let narrow = &mut narrow[..values.len()];
                narrow.convert_from_f32_slice(values);
                write(narrow, out, f16::to_le_bytes);
            }
            Dtype::Bf16 => write(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        }
    }
}

fn write<T: Copy, const N: usize>(values: &[T], out: &mut [u8], encode: impl Fn(T) -> [u8; N]) {
    let (cells, _) = out.as_chunks_mut::<N>();
    for (cell, value) in cells.iter_mut().zip(values) {
        *cell = encode(*value);
    }
}

/// Reads `"f32"`, `"f16"` and `"bf16"`.
impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Dtype::F32),
            "f16" => Ok(Dtype::F16),
            "bf16" => Ok(Dtype::Bf16),
            _ => Err(format!(
                "unknown dtype {name:?}: use \"f32\", \"f16\" or \"bf16\""
            )),
        }
    }
}
