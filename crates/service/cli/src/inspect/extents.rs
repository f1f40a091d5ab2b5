//! `inspect … extents`: a file's map, with nodes and runs in logical order.

use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::InspectError;
use super::format::{count, percent, range_text};
use super::mapping::{self, Event, MappedRun, Mapping, NodeFacts};
use super::page::Page;
use super::reader::{FoundInode, Reader};

/// Prints a file's map.
///
/// # Errors
/// [`InspectError::Absent`] if the file has no map.
pub(super) fn show(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) -> Result<(), InspectError> {
    let mapping = Mapping::of(&file.inode);
    if !matches!(mapping, Mapping::Extents | Mapping::Indirect) {
        let why = format!("inode {} has no block map: it keeps {}", file.ino, mapping.words());
        return Err(InspectError::Absent(why));
    }
    page.number("inode", file.ino.0);
    page.fact("kind", mapping.words(), mapping.words());
    let (mut runs, mut blocks, mut nodes) = (0, 0, 0);
    page.list("map", Some("levels from the root; logical -> physical blocks, both ends included"));
    // Indentation of the runs below the last node.
    let mut indent = 0;
    mapping::walk(reader, file, &mut |event| {
        match event {
            Event::Node(node) => {
                nodes += u64::from(node.block.is_some());
                indent = usize::from(node.level) + 1;
                print_node(&node, mapping, page);
            }
            Event::Run(run) => {
                runs += 1;
                blocks += run.len;
                print_run(&run, indent, page);
            }
        }
        if page.is_broken() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    page.close();
    page.fact(
        "total",
        format!("{}, {}, {}", count(runs, "run"), count(blocks, "block"), count(nodes, "node block")),
        json!({"runs": runs, "blocks": blocks, "node_blocks": nodes}),
    );
    Ok(())
}

fn print_node(node: &NodeFacts, mapping: Mapping, page: &mut Page<'_>) {
    let indent = "  ".repeat(node.level.into());
    let kind = match (mapping, node.depth) {
        (Mapping::Extents, 0) => "leaf",
        (Mapping::Extents, _) => "index",
        (_, 0) => "indirect",
        (_, 1) => "double indirect",
        (_, _) => "triple indirect",
    };
    let place = node.block.map_or("in the inode".to_owned(), |block| format!("block {block}"));
    let checksum = match node.checksum_is_right {
        Some(false) => "  checksum WRONG",
        Some(true) => "  checksum ok",
        None => "",
    };
    page.item(
        format_args!(
            "{indent}level {} {kind}, {place}: from logical {}, {} of {} entries ({}){checksum}",
            node.level,
            node.lblk,
            node.used,
            node.max,
            percent(node.used as u64, node.max as u64),
        ),
        json!({
            "node": kind, "level": node.level, "depth": node.depth, "block": node.block.map(|block| block.0),
            "logical": node.lblk, "entries": node.used, "entries_max": node.max,
            "checksum_ok": node.checksum_is_right.map_or(Value::Null, Value::from),
        }),
    );
}

fn print_run(run: &MappedRun, indent: usize, page: &mut Page<'_>) {
    let unwritten = if run.unwritten { "  unwritten" } else { "" };
    page.item(
        format_args!(
            "{}{} -> {}  {}{unwritten}",
            "  ".repeat(indent),
            range_text(run.lblk, run.len),
            range_text(run.pblk, run.len),
            count(run.len, "block"),
        ),
        json!({"logical": run.lblk, "physical": run.pblk, "len_blocks": run.len, "unwritten": run.unwritten}),
    );
}
