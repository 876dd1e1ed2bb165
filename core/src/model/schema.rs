//! The published schema of the snapshot, compared with its types.

use std::borrow::Cow;
use std::path::Path;
use std::{env, fs};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{DeviceIndex, PackedNumber, PackedOption, Snapshot};

impl JsonSchema for DeviceIndex {
    fn schema_name() -> Cow<'static, str> {
        "DeviceIndex".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "NVML's index of a GPU, such as 0, or with the index of a MIG device in it, such as 0:1.",
            "type": "string",
            "pattern": "^[0-9]+(:[0-9]+)?$",
        })
    }
}

impl<T: PackedNumber> JsonSchema for PackedOption<T>
where
    Option<T>: JsonSchema,
{
    fn inline_schema() -> bool {
        Option::<T>::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

#[test]
fn the_published_schema_is_the_schema_of_the_types() {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Snapshot>();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    // Links and line breaks are rustdoc's.
    let text = [("[`super::", "`"), ("[`", "`"), ("`]", "`"), ("\\n", " ")]
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/snapshot.schema.json");
    if env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        published == text,
        "docs/snapshot.schema.json differs from the types: \
         run 'UPDATE_SCHEMA=1 cargo test -p genv-core schema', and see that fields were only added"
    );
}
