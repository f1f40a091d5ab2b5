//! The schemas of docs/schemas, with which all JSON is compared that a test sees.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

/// Folder of the published schemas.
pub(crate) const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/schemas");

struct All {
    schemas: boon::Schemas,
    /// By id.
    indexes: BTreeMap<String, boon::SchemaIndex>,
}

/// The ids of the published schemas.
pub(crate) fn ids() -> Vec<String> {
    all().indexes.keys().cloned().collect()
}

/// Compares output in JSON with the schemas that it names. Returns their ids.
///
/// # Panics
/// If an object names no schema or breaks it, or if it has a field that the schema does not have.
#[track_caller]
pub(crate) fn check(line: &str, text: &str) -> Vec<String> {
    let lines: Vec<Value> = match serde_json::from_str(text) {
        Ok(Value::Array(items)) => items,
        Ok(object) => vec![object],
        // JSON Lines, or output that the reader did not take to its end.
        Err(_) => text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    };
    let mut ids = Vec::new();
    for object in lines.iter().filter(|value| value.is_object()) {
        let Some(id) = object["schema"].as_str() else { panic!("`{line}` prints no schema: {object}") };
        let Some(&index) = all().indexes.get(id) else { panic!("`{line}`: docs/schemas has no {id}") };
        if let Err(error) = all().schemas.validate(object, index) {
            panic!("`{line}` does not print what docs/schemas says of {id}: {error:#}\n{object:#}");
        }
        ids.push(id.to_owned());
    }
    ids.dedup();
    ids
}

fn all() -> &'static All {
    static ALL: OnceLock<All> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut compiler = boon::Compiler::new();
        compiler.set_default_draft(boon::Draft::V2020_12);
        let mut ids = Vec::new();
        for file in std::fs::read_dir(DIR).unwrap() {
            let path = file.unwrap().path();
            let mut schema: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let id = schema["$id"].as_str().unwrap().to_owned();
            assert_eq!(path, file_of(&id), "{id}");
            close(&mut schema);
            compiler.add_resource(&id, schema).unwrap();
            ids.push(id);
        }
        let mut schemas = boon::Schemas::new();
        let compiled = |id: String| {
            let index = compiler.compile(&id, &mut schemas).unwrap_or_else(|error| panic!("{id}: {error:#}"));
            (id, index)
        };
        let indexes = ids.into_iter().map(compiled).collect();
        All { schemas, indexes }
    })
}

/// The file of a schema: `df-1.json` of `urn:extant:df:1`.
fn file_of(id: &str) -> std::path::PathBuf {
    let name = id.strip_prefix("urn:extant:").unwrap().replace(':', "-");
    Path::new(DIR).join(format!("{name}.json"))
}

/// Forbids fields that the schema does not name. The published files allow them, because a later version of
/// the command may add some.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") && map.contains_key("type") {
                map.entry("additionalProperties").or_insert(false.into());
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
