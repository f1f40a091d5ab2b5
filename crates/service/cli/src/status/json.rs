//! A list of mounts in JSON: each what the server says, with the rates.

use serde_json::{Value, json};

use super::Report;
use crate::schema;

pub(super) fn list(reports: &[Report]) -> String {
    let list: Vec<Value> = reports.iter().map(value).collect();
    let mut text = serde_json::to_string_pretty(&list).unwrap_or_default();
    text.push('\n');
    text
}

fn value(report: &Report) -> Value {
    let reading = &report.reading;
    let mut value = json!({
        (schema::FIELD): schema::urn("status:1"),
        "mount": reading.dir.to_string_lossy(),
        "source": reading.source,
        "window_seconds": report.window.seconds,
        "requests_per_second": report.window.per_second(),
    });
    let Ok(Value::Object(mut status)) = serde_json::to_value(&reading.status) else { return value };
    if let Some(Value::Array(requests)) = status.get_mut("requests") {
        for (request, rates) in requests.iter_mut().zip(&report.window.requests) {
            let Value::Object(request) = request else { continue };
            request.insert("per_second".to_owned(), json!(rates.per_second));
            let times = [
                ("p50_ns", rates.p50_ns),
                ("p90_ns", rates.p90_ns),
                ("p99_ns", rates.p99_ns),
                ("p999_ns", rates.p999_ns),
                ("max_ns", rates.max_ns),
            ];
            for (name, nanos) in times {
                request.insert(name.to_owned(), nanos.into());
            }
            // Their bounds are not in the list; --metrics has them.
            request.shift_remove("buckets");
        }
    }
    if let Value::Object(value) = &mut value {
        value.extend(status);
    }
    value
}
