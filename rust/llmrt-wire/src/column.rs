//! Columns: vectors of fixed-width numbers as little-endian msgpack `bin`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number with a fixed width on the wire.
pub trait Scalar: Copy + Default + FromBytes + IntoBytes + Immutable {
    /// The value whose bytes in memory are the little-endian bytes of `self`, and the other way round.
    fn little_endian(self) -> Self;
}

impl Scalar for u32 {
    fn little_endian(self) -> Self {
        self.to_le()
    }
}

impl Scalar for u64 {
    fn little_endian(self) -> Self {
        self.to_le()
    }
}

impl Scalar for f32 {
    fn little_endian(self) -> Self {
        Self::from_bits(self.to_bits().to_le())
    }
}

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
        if cfg!(target_endian = "little") {
            return serializer.serialize_bytes(self.0.as_bytes());
        }
        let turned: Vec<T> = self.0.iter().map(|value| value.little_endian()).collect();
        serializer.serialize_bytes(turned.as_bytes())
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Column<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Raw<T>(PhantomData<T>);
        impl<T: Scalar> Visitor<'_> for Raw<T> {
            type Value = Column<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "bytes whose length is a multiple of {}", size_of::<T>())
            }
            fn visit_bytes<E: Error>(self, raw: &[u8]) -> Result<Self::Value, E> {
                if !raw.len().is_multiple_of(size_of::<T>()) {
                    return Err(E::invalid_length(raw.len(), &self));
                }
                let mut values = vec![T::default(); raw.len() / size_of::<T>()];
                values.as_mut_bytes().copy_from_slice(raw);
                if cfg!(target_endian = "big") {
                    for value in &mut values {
                        *value = value.little_endian();
                    }
                }
                Ok(Column(values))
            }
        }
        deserializer.deserialize_bytes(Raw(PhantomData))
    }
}
