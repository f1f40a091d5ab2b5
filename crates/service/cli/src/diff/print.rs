//! Prints a comparison: one line per path in the manner of `git diff --stat`, or a JSON object.

use std::io::{self, Write};

use extant::FileType;
use extant::diff::layer::LayerReport;
use extant::diff::{Change, Diff, Difference, Meta, Status, Which};
use serde_json::{Value, json};

use super::DiffArgs;
use crate::inspect::format::{count, escape, iso_seconds, iso_time, json_bytes, time_json};
use crate::look::print::is_device;
use crate::manners::{GREEN, RED, YELLOW, painted};
use crate::schema::tagged;

/// Columns of the longest path that is aligned with others.
const PATH_COLUMNS_MAX: usize = 50;

pub(super) fn text(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    let paths: Vec<String> = diff.changes.iter().map(|change| shown(&change.path)).collect();
    let columns = paths.iter().map(|path| path.chars().count()).filter(|len| *len <= PATH_COLUMNS_MAX);
    let columns = columns.max().unwrap_or(0);
    for (change, path) in diff.changes.iter().zip(&paths) {
        let style = match change.status.letter() {
            'A' => GREEN,
            'D' => RED,
            _ => YELLOW,
        };
        let letter = painted(change.status.letter(), style);
        writeln!(out, " {letter} {path:<columns$} | {}", description(change))?;
    }
    writeln!(out, " {}", summary(diff))?;
    out.flush()
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { escape(path) }
}

fn summary(diff: &Diff) -> String {
    let compared = count(diff.names, "name");
    if diff.is_empty() {
        let unread = match diff.problems.len() as u64 {
            0 => String::new(),
            problems => format!(", {} not compared", count(problems, "part")),
        };
        return format!("no differences in {compared}{unread}");
    }
    let parts = [
        (Status::Added, "added"),
        (Status::Deleted, "deleted"),
        (Status::Modified, "modified"),
        (Status::TypeChanged, "of another type"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .map(|(status, what)| (diff.count(*status), what))
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let differ = if diff.changes.len() == 1 { "differs" } else { "differ" };
    format!("{} of {compared} {differ}: {}", diff.changes.len(), parts.join(", "))
}

fn description(change: &Change) -> String {
    match (change.status, &change.a, &change.b) {
        (Status::Modified, Some(a), Some(b)) => {
            let parts: Vec<String> =
                change.differences.iter().map(|difference| phrase(difference, a, b)).collect();
            parts.join(", ")
        }
        (_, Some(a), Some(b)) => format!("{} -> {}", file(a), file(b)),
        (_, Some(meta), None) | (_, None, Some(meta)) => file(meta),
        (_, None, None) => String::new(),
    }
}

/// What a file is.
fn file(meta: &Meta) -> String {
    match meta.kind {
        FileType::Regular => format!("file, {}", count(meta.size, "byte")),
        kind if is_device(kind) => format!("{kind} {}", device(meta)),
        kind => kind.to_string(),
    }
}

fn device(meta: &Meta) -> String {
    format!("{}:{}", meta.device.0, meta.device.1)
}

fn phrase(difference: &Difference, a: &Meta, b: &Meta) -> String {
    match difference {
        Difference::Mode => format!("mode {:04o} -> {:04o}", a.mode, b.mode),
        Difference::Owner => format!("owner {}:{} -> {}:{}", a.uid, a.gid, b.uid, b.gid),
        Difference::Mtime if a.mtime.seconds == b.mtime.seconds => {
            format!("mtime {} -> {}", iso_time(a.mtime), iso_time(b.mtime))
        }
        Difference::Mtime => {
            format!("mtime {} -> {}", iso_seconds(a.mtime.seconds), iso_seconds(b.mtime.seconds))
        }
        Difference::Size => format!("size {} -> {}", a.size, b.size),
        Difference::Content { first } => format!("content from byte {first}"),
        Difference::Holes => "holes".to_owned(),
        Difference::Target { a, b } => format!("target {} -> {}", escape(a), escape(b)),
        Difference::Device => format!("device {} -> {}", device(a), device(b)),
        Difference::Xattr { name, in_a, in_b } => {
            let sign = match (in_a, in_b) {
                (true, false) => "-",
                (false, true) => "+",
                _ => "",
            };
            format!("xattr {sign}{}", escape(name))
        }
        Difference::Links { a, b, .. } if a == b => "hard links of other names".to_owned(),
        Difference::Links { a, b, .. } => format!("links {a} -> {b}"),
    }
}

pub(super) fn json(
    args: &DiffArgs,
    diff: &Diff,
    layer: Option<&LayerReport>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let layer = layer.map(|report| {
        json!({
            "entries": report.entries,
            "whiteouts": report.whiteouts,
            "opaque": report.opaque,
            "sockets": report.sockets,
        })
    });
    let problems = diff.problems.iter().map(|problem| {
        json!({
            "side": match problem.side {
                Which::A => "a",
                Which::B => "b",
            },
            "path": json_bytes(&problem.path),
            "why": problem.cause.to_string(),
        })
    });
    let object = json!({
        "a": args.a.to_string_lossy(),
        "b": args.b.to_string_lossy(),
        "equal": diff.is_empty() && diff.problems.is_empty(),
        "added": diff.count(Status::Added),
        "deleted": diff.count(Status::Deleted),
        "modified": diff.count(Status::Modified),
        "type_changed": diff.count(Status::TypeChanged),
        "names": diff.names,
        "compared_bytes": diff.bytes,
        "changes": diff.changes.iter().map(change_json).collect::<Vec<_>>(),
        "problems": problems.collect::<Vec<_>>(),
        "layer": layer,
    });
    serde_json::to_writer_pretty(&mut *out, &tagged("diff:1", object))?;
    writeln!(out)?;
    out.flush()
}

fn change_json(change: &Change) -> Value {
    json!({
        "path": json_bytes(&change.path),
        "status": change.status.letter().to_string(),
        "a": change.a.as_ref().map(meta_json),
        "b": change.b.as_ref().map(meta_json),
        "differences": change.differences.iter().map(difference_json).collect::<Vec<_>>(),
    })
}

fn meta_json(meta: &Meta) -> Value {
    json!({
        "type": meta.kind.to_string(),
        "mode": format!("{:04o}", meta.mode),
        "uid": meta.uid,
        "gid": meta.gid,
        "size": meta.size,
        "mtime": time_json(meta.mtime),
        "links": meta.links,
        "device": is_device(meta.kind).then(|| json!({"major": meta.device.0, "minor": meta.device.1})),
    })
}

fn difference_json(difference: &Difference) -> Value {
    match difference {
        Difference::Mode => json!({"what": "mode"}),
        Difference::Owner => json!({"what": "owner"}),
        Difference::Mtime => json!({"what": "mtime"}),
        Difference::Size => json!({"what": "size"}),
        Difference::Content { first } => json!({"what": "content", "first": first}),
        Difference::Holes => json!({"what": "holes"}),
        Difference::Target { a, b } => json!({"what": "target", "a": json_bytes(a), "b": json_bytes(b)}),
        Difference::Device => json!({"what": "device"}),
        Difference::Xattr { name, in_a, in_b } => {
            json!({"what": "xattr", "name": json_bytes(name), "in_a": in_a, "in_b": in_b})
        }
        Difference::Links { a, b, .. } => json!({"what": "links", "a": a, "b": b}),
    }
}
