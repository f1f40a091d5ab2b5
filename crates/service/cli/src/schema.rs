//! The ids of the JSON that the command prints, in the first field of each object: `"schema":
//! "urn:extant:df:1"`.
//!
//! docs/schemas has a file for each id, docs/json.md says when a number changes. The tests compare all that
//! they see of the command's JSON with these files.

use serde::Serialize;
use serde_json::{Map, Value};

/// Name of the field.
pub(crate) const FIELD: &str = "schema";

/// The URN of a schema. `name` has its version: `df:1`.
pub(crate) fn urn(name: &str) -> String {
    format!("urn:extant:{name}")
}

/// An object with the id of its schema.
pub(crate) fn tagged(name: &str, object: impl Serialize) -> Value {
    let mut map = Map::new();
    map.insert(FIELD.to_owned(), urn(name).into());
    if let Ok(Value::Object(fields)) = serde_json::to_value(object) {
        map.extend(fields);
    }
    map.into()
}
