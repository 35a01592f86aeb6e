//! Dequantisation: stored blocks to little-endian f32, f16 or bf16.

mod block;
mod dtype;

pub use dtype::Dtype;
use rayon::prelude::*;

use crate::GgmlType;

/// Elements decoded at a time into a scratch buffer that stays in the first-level cache.
const TILE: usize = 1024;
/// Elements one rayon task takes: large enough to hide its start, small enough to share a tensor evenly.
const TASK: usize = 64 * TILE;

/// Decodes `data`, which must be whole blocks of `ggml_type`, into `out`, which must have room for exactly its elements.
pub(crate) fn dequantize(ggml_type: GgmlType, data: &[u8], dtype: Dtype, out: &mut [u8]) {
    match ggml_type {
        GgmlType::F32 if dtype == Dtype::F32 => out.copy_from_slice(data),
        GgmlType::F16 if dtype == Dtype::F16 => out.copy_from_slice(data),
        GgmlType::Bf16 if dtype == Dtype::Bf16 => out.copy_from_slice(data),
        GgmlType::F32 => run::<1, 4>(data, dtype, out, block::f32),
        GgmlType::F16 => run::<1, 2>(data, dtype, out, block::f16),
        GgmlType::Bf16 => run::<1, 2>(data, dtype, out, block::bf16),
        GgmlType::Q4_0 => run::<32, 18>(data, dtype, out, block::q4_0),
        GgmlType::Q4_1 => run::<32, 20>(data, dtype, out, block::q4_1),
        GgmlType::Q5_0 => run::<32, 22>(data, dtype, out, block::q5_0),
        GgmlType::Q5_1 => run::<32, 24>(data, dtype, out, block::q5_1),
        GgmlType::Q8_0 => run::<32, 34>(data, dtype, out, block::q8_0),
        GgmlType::Q4K => run::<256, 144>(data, dtype, out, block::q4_k),
        GgmlType::Q5K => run::<256, 176>(data, dtype, out, block::q5_k),
        GgmlType::Q6K => run::<256, 210>(data, dtype, out, block::q6_k),
        GgmlType::Other(_) => unreachable!("the file refuses types that have no block layout"),
    }
}

/// Splits the tensor over the rayon pool and decodes it tile by tile. `LEN` elements are stored in `SIZE` bytes.
fn run<const LEN: usize, const SIZE: usize>(
    data: &[u8],
    dtype: Dtype,
    out: &mut [u8],
    decode: impl Fn(&[u8; SIZE], &mut [f32; LEN]) + Sync,
) {
    let data_task = TASK / LEN * SIZE;
    let out_task = TASK * dtype.size();
    let tasks = out.par_chunks_mut(out_task).zip(data.par_chunks(data_task));
    tasks.for_each(|(out, data)| {
        let mut tile = [0_f32; TILE];
        let tiles = out
            .chunks_mut(TILE * dtype.size())
            .zip(data.chunks(TILE / LEN * SIZE));
        for (out, data) in tiles {
            let (blocks, _) = data.as_chunks::<SIZE>();
            let (values, _) = tile.as_chunks_mut::<LEN>();
            for (block, values) in blocks.iter().zip(values) {
                decode(block, values);
            }
            dtype.store(&tile[..blocks.len() * LEN], out);
        }
    });
}
