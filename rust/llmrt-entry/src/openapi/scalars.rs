//! Numbers whose bounds depend on the served model and the configuration.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// An id of the model's vocabulary; [`super::document`] sets the greatest.
#[derive(Deserialize)]
pub struct TokenId(#[expect(dead_code)] u32);

/// A number of choices; [`super::document`] sets the greatest.
pub struct Count;

macro_rules! integer_from {
    ($type:ident, $least:literal, $about:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "integer", "minimum": $least, "description": $about})
            }
        }
    };
}

integer_from!(TokenId, 0, "An id of the model's vocabulary.");
integer_from!(Count, 1, "A number of choices.");
