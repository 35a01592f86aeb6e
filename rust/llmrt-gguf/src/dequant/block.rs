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

/// `d * (q - 16)`: f16 scale, 32 fifth bits, then 32 nibbles as in Q4_0.
pub fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    let fifth = fifth_bits(block, 2);
    for (index, byte) in block[6..].iter().enumerate() {
        out[index] = scale * f32::from((byte & 15 | fifth(index)) as i8 - 16);
        out[index + 16] = scale * f32::from((byte >> 4 | fifth(index + 16)) as i8 - 16);
    }
}

/// `d * q + m`: f16 scale and minimum, 32 fifth bits, then 32 nibbles as in Q4_0.
pub fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    let minimum = half(block, 2);
    let fifth = fifth_bits(block, 4);
    for (index, byte) in block[8..].iter().enumerate() {
        out[index] = scale * f32::from(byte & 15 | fifth(index)) + minimum;
        out[index + 16] = scale * f32::from(byte >> 4 | fifth(index + 16)) + minimum;
    }
}

/// The fifth bit of each element, in its place, from four bytes at `at`.
fn fifth_bits(block: &[u8], at: usize) -> impl Fn(usize) -> u8 + use<> {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |index| ((bits >> index & 1) << 4) as u8
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
    let groups = Groups::new(block);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let nibbles = &block[16 + group / 2 * 32..][..32];
        groups.decode(group, out, |index| nibbles[index] >> (group % 2 * 4) & 15);
    }
}

/// As Q4_K, with 32 bytes before the nibbles: bit `g` of byte `i` is the fifth bit of element `i` in group `g`.
pub fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let groups = Groups::new(block);
    let fifth = &block[16..48];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let nibbles = &block[48 + group / 2 * 32..][..32];
        groups.decode(group, out, |index| {
            nibbles[index] >> (group % 2 * 4) & 15 | (fifth[index] >> group & 1) << 4
        });
    }
}

/// What Q4_K and Q5_K blocks begin with: scale and minimum of the block, then those of its eight groups.
struct Groups<'a> {
    scale: f32,
    minimum: f32,
    packed: &'a [u8],
}

impl<'a> Groups<'a> {
    fn new(block: &'a [u8]) -> Self {
        Self {
            scale: half(block, 0),
            minimum: half(block, 2),
            packed: &block[4..16],
        }
    }

    fn decode(&self, group: usize, out: &mut [f32], quant: impl Fn(usize) -> u8) {
        let (scale, minimum) = packed_pair(self.packed, group);
        let scale = self.scale * f32::from(scale);
        let minimum = self.minimum * f32::from(minimum);
        for (index, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(quant(index)) - minimum;
        }
    }
}

/// Scale and minimum of group `index`. Groups 0-3 lie in the low six bits of bytes 0-3 and 4-7; groups 4-7 have their
/// low four bits in bytes 8-11 and their high two in the spare bits of bytes 0-7.
fn packed_pair(packed: &[u8], index: usize) -> (u8, u8) {
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
