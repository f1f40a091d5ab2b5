//! `inspect … inode`: the fixed fields, the inode's address, and a summary of its contents.

use std::ops::ControlFlow;

use extant_base::Ino;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{BASE_SIZE, flags};
use serde_json::{Value, json};

use super::attributes;
use super::dirwalk::{inline_value, symlink_target};
use super::format::{
    bytes_and_human, checksum_json, checksum_text, count, flags_json, flags_text, human, iso_time,
    json_bytes, mode_letters, quote, super_time, time_json,
};
use super::mapping::{self, Event, Mapping};
use super::page::Page;
use super::reader::{FoundInode, Reader};

/// Prints an inode.
pub(super) fn show(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let inode = &file.inode;
    let kind = FileType::from_mode(inode.mode);
    let role = role(reader, file.ino);
    page.fact(
        "inode",
        format!("{}{}", file.ino, role.map_or(String::new(), |role| format!(" ({role})"))),
        file.ino.0,
    );
    page.json_only("role", role);
    page.fact("type", kind, kind.to_string());
    page.fact(
        "mode",
        format!("{} ({:07o})", mode_letters(inode.mode), inode.mode),
        json!({"letters": mode_letters(inode.mode), "octal": format!("{:07o}", inode.mode), "raw": inode.mode}),
    );
    page.fact(
        "owner",
        format!("uid {}, gid {}, project {}", inode.uid, inode.gid, inode.projid),
        json!({"uid": inode.uid, "gid": inode.gid, "project": inode.projid}),
    );
    page.number("links", inode.links);
    page.fact("size", bytes_and_human(inode.size), inode.size);
    blocks(reader, file, page);
    page.fact("flags", flags_text(inode.flags, flags::NAMES), flags_json(inode.flags, flags::NAMES));
    times(reader, file, page);
    page.fact("generation", format!("{:#010x}", inode.generation), inode.generation);
    page.fact("version", format!("{:#x}", inode.version), inode.version);
    page.number("extra_bytes", inode.extra_isize);
    page.fact("checksum", checksum_text(file.checksum), checksum_json(file.checksum));
    place(reader, file, page);
    content(reader, file, page);
    match inode.file_acl {
        0 => page.fact("xattr_block", "(none)", Value::Null),
        block => page.number("xattr_block", block),
    }
    let names = attributes::inode_names(reader, file);
    let text: Vec<String> = names.iter().map(|name| super::format::escape(name)).collect();
    let json: Vec<Value> = names.iter().map(|name| json_bytes(name)).collect();
    page.fact("xattrs_in_inode", if text.is_empty() { "(none)".to_owned() } else { text.join(", ") }, json);
}

/// The purpose of a reserved inode.
fn role(reader: &Reader<'_>, ino: Ino) -> Option<&'static str> {
    let sb = reader.sb();
    let named = |number: u32| number != 0 && number == ino.0;
    Some(match ino {
        Ino::BAD_BLOCKS => "list of bad blocks",
        Ino::ROOT => "root directory",
        Ino::RESIZE => "reserved group descriptors",
        _ if named(sb.journal_inum) => "journal",
        _ if named(sb.usr_quota_inum) => "user quota",
        _ if named(sb.grp_quota_inum) => "group quota",
        _ if named(sb.prj_quota_inum) => "project quota",
        _ if named(sb.orphan_file_inum) => "orphan file",
        _ => return None,
    })
}

fn blocks(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let inode = &file.inode;
    let (unit, bytes) = match inode.has_flag(flags::HUGE_FILE) {
        true => ("file-system blocks", inode.blocks.saturating_mul(reader.block_len())),
        false => ("units of 512 bytes", inode.blocks.saturating_mul(512)),
    };
    page.fact(
        "blocks",
        format!("{} {unit} ({})", inode.blocks, human(bytes)),
        json!({"raw": inode.blocks, "bytes": bytes}),
    );
}

fn times(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let inode = &file.inode;
    let has_room =
        |end: usize| file.raw.len() > BASE_SIZE && BASE_SIZE + usize::from(inode.extra_isize) >= end;
    for (key, time) in [("accessed", inode.atime), ("modified", inode.mtime), ("changed", inode.ctime)] {
        page.fact(key, iso_time(time), time_json(time));
    }
    match has_room(0x98) {
        true => page.fact("created", iso_time(inode.crtime), time_json(inode.crtime)),
        false => page.fact("created", "(the inode has no room for it)", Value::Null),
    }
    match inode.dtime {
        0 => page.fact("deleted", "no", Value::Null),
        // The orphan list uses the same field; no file was deleted in the first days of 1970.
        next if reader.geometry().inode_place(Ino(next)).is_some() => {
            page.fact(
                "deleted",
                format!("no; next on the orphan list: inode {next}"),
                json!({"next_orphan": next}),
            );
        }
        raw => {
            let (text, json) = super_time(raw.into());
            page.fact("deleted", text, json);
        }
    }
}

fn place(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let at = reader.byte_offset(file.block, file.offset);
    page.fact(
        "place",
        format!(
            "group {}, index {}, block {}, byte {} in it (byte {at} of the file system)",
            file.group, file.index, file.block, file.offset
        ),
        json!({
            "group": file.group.0, "index": file.index, "block": file.block.0, "offset_in_block": file.offset,
            "offset_bytes": at, "len_bytes": file.raw.len(),
        }),
    );
}

/// Prints the contents of `i_block`.
fn content(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    let inode = &file.inode;
    let mapping = Mapping::of(inode);
    page.json_only("mapping", mapping.words());
    match mapping {
        Mapping::Extents | Mapping::Indirect => summary(reader, file, mapping, page),
        Mapping::Inline => {
            let in_attribute = inline_value(reader, file).len() as u64;
            let in_block = inode.size.min(60);
            page.fact(
                "inline_data",
                format!(
                    "{} in i_block, {} in system.data",
                    count(in_block, "byte"),
                    count(in_attribute, "byte")
                ),
                json!({"i_block_bytes": in_block, "attribute_bytes": in_attribute}),
            );
        }
        Mapping::FastSymlink | Mapping::Nothing => {}
    }
    if let Some(target) = symlink_target(reader, file) {
        page.fact("target", quote(&target), json_bytes(&target));
    }
    if matches!(FileType::from_mode(inode.mode), FileType::CharDevice | FileType::BlockDevice) {
        let (major, minor) = inode.device();
        page.fact("device", format!("major {major}, minor {minor}"), json!({"major": major, "minor": minor}));
    }
    if inode.has_flag(flags::EA_INODE) {
        // An EA inode stores its reference count in the fields of change time and version.
        let references = (inode.ctime.seconds as u32 as u64) << 32 | (inode.version & 0xFFFF_FFFF);
        let hash = inode.atime.seconds as u32;
        page.fact(
            "ea_value",
            format!("referred to {}, checksum {hash:#010x}", count(references, "time")),
            json!({"references": references, "hash": hash}),
        );
    }
}

/// Prints a summary of the map.
fn summary(reader: &Reader<'_>, file: &FoundInode, mapping: Mapping, page: &mut Page<'_>) {
    let (mut runs, mut fragments, mut mapped, mut unwritten, mut nodes, mut depth) =
        (0u64, 0u64, 0, 0, 0u64, 0);
    let mut next = None;
    mapping::walk(reader, file, &mut |event| {
        match event {
            Event::Node(node) => {
                nodes += u64::from(node.block.is_some());
                depth = depth.max(node.level);
            }
            Event::Run(run) => {
                runs += 1;
                fragments += u64::from(next != Some(run.pblk));
                next = run.pblk.checked_add(run.len);
                mapped += run.len;
                unwritten += if run.unwritten { run.len } else { 0 };
            }
        }
        ControlFlow::Continue(())
    });
    let unit = if mapping == Mapping::Extents { "extent" } else { "run" };
    page.fact(
        "map",
        format!(
            "{}: {} in {}, {} mapped ({}), {unwritten} of them unwritten; tree of depth {depth}, {} of its own",
            mapping.words(),
            count(runs, unit),
            count(fragments, "fragment"),
            count(mapped, "block"),
            human(mapped.saturating_mul(reader.block_len())),
            count(nodes, "block"),
        ),
        json!({
            "kind": mapping.words(), "runs": runs, "fragments": fragments, "mapped_blocks": mapped,
            "unwritten_blocks": unwritten, "depth": depth, "node_blocks": nodes,
        }),
    );
}
