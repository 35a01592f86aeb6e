//! Columns: vectors of fixed-width numbers as little-endian msgpack `bin`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number with a fixed width on the wire.
pub trait Scalar: Copy {
    /// Bytes of one value.
    const WIDTH: usize;
    /// Appends the little-endian bytes of `self`.
    fn put(self, out: &mut Vec<u8>);
    /// Reads one value from exactly [`Self::WIDTH`] bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! scalar {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            const WIDTH: usize = size_of::<$t>();
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(bytes);
                <$t>::from_le_bytes(raw)
            }
        }
    )*};
}
scalar!(u32, u64, f32);

/// A column of a frame. On the wire: `bin`, little-endian, no padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Column<T>(pub Vec<T>);

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> std::ops::Deref for Column<T> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> std::ops::DerefMut for Column<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T> From<Vec<T>> for Column<T> {
    fn from(values: Vec<T>) -> Self {
        Self(values)
    }
}

impl<T: Scalar> Serialize for Column<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut raw = Vec::with_capacity(self.0.len() * T::WIDTH);
        for value in &self.0 {
            value.put(&mut raw);
        }
        serializer.serialize_bytes(&raw)
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Column<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Raw<T>(PhantomData<T>);
        impl<T: Scalar> Visitor<'_> for Raw<T> {
            type Value = Column<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "bytes whose length is a multiple of {}", T::WIDTH)
            }
            fn visit_bytes<E: Error>(self, raw: &[u8]) -> Result<Self::Value, E> {
                if !raw.len().is_multiple_of(T::WIDTH) {
                    return Err(E::invalid_length(raw.len(), &self));
                }
                Ok(Column(raw.chunks_exact(T::WIDTH).map(T::get).collect()))
            }
        }
        deserializer.deserialize_bytes(Raw(PhantomData))
    }
}
