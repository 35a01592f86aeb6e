//! One function per block layout of ggml (`ggml-common.h`). Products and sums are rounded in ggml's order, so results
//! are equal bit by bit.

fn half(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

pub fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half(block, 0);
}

pub fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::bf16::from_le_bytes(*block).to_f32();
}

/// `d * (q - 8)`: f16 scale, then 32 nibbles; low nibbles are the first half.
pub fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = scale * f32::from((byte & 15) as i8 - 8);
        *high = scale * f32::from((byte >> 4) as i8 - 8);
    }
}

/// `d * q + m`: f16 scale and minimum, then 32 nibbles as in Q4_0.
pub fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    let minimum = half(block, 2);
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = scale * f32::from(byte & 15) + minimum;
        *high = scale * f32::from(byte >> 4) + minimum;
    }
}

/// `d * q`: f16 scale, then 32 signed bytes.
pub fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = scale * f32::from(*byte as i8);
    }
}

/// `d * s * q - dmin * m`: two f16, eight packed pairs of 6-bit scale `s` and minimum `m`, then 256 nibbles.
/// A scale pair serves 32 elements; 32 bytes hold two of these groups, the low nibbles first.
pub fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    let minimum = half(block, 2);
    let (packed, nibbles) = block[4..].split_at(12);
    let groups = nibbles.chunks_exact(32).zip(out.chunks_exact_mut(64));
    for (pair, (bytes, out)) in groups.enumerate() {
        for (which, out) in out.chunks_exact_mut(32).enumerate() {
            let (sub_scale, sub_minimum) = q4_k_scales(packed, 2 * pair + which);
            let scale = scale * f32::from(sub_scale);
            let minimum = minimum * f32::from(sub_minimum);
            for (byte, out) in bytes.iter().zip(out) {
                *out = scale * f32::from(byte >> (4 * which) & 15) - minimum;
            }
        }
    }
}

/// Scale and minimum of group `index`. Groups 0-3 lie in the low six bits of bytes 0-3 and 4-7; groups 4-7 have their
/// low four bits in bytes 8-11 and their high two in the spare bits of bytes 0-7.
fn q4_k_scales(packed: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        let low = packed[index + 4];
        (
            low & 15 | packed[index - 4] >> 6 << 4,
            low >> 4 | packed[index] >> 6 << 4,
        )
    }
}

/// `d * s * (q - 32)`: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, then f16 `d`.
/// Each half of the block is four groups of 32 that share 64 low and 32 high bytes; a scale serves 16 elements.
pub fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(block, 208);
    for (which, out) in out.chunks_exact_mut(128).enumerate() {
        let low = &block[64 * which..][..64];
        let high = &block[128 + 32 * which..][..32];
        let scales = &block[192 + 8 * which..][..8];
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let low = &low[group % 2 * 32..][..32];
            for (index, out) in out.iter_mut().enumerate() {
                let nibble = low[index] >> (group / 2 * 4) & 15;
                let pair = high[index] >> (2 * group) & 3;
                let scale = scale * f32::from(scales[2 * group + index / 16] as i8);
                *out = scale * f32::from((nibble | pair << 4) as i8 - 32);
            }
        }
    }
}
