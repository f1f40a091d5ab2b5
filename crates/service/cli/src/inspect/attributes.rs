//! `inspect … xattr`: an inode's extended attributes from all places, with readable values.

use extant_base::{Ino, Pblk};
use extant_ondisk::acl::{Acl, AclTag};
use extant_ondisk::inode::flags;
use extant_ondisk::xattr::{self, AttrValue, StoredAttr};
use serde_json::{Value, json};

use super::format::{count, escape, hex, json_bytes, quote};
use super::mapping;
use super::page::Page;
use super::reader::{FoundInode, Reader};

/// Maximum bytes of a value in the text output.
const TEXT_MAX: usize = 256;
/// Maximum bytes of a value in the JSON output: the limit of Linux's system calls.
const JSON_MAX: usize = xattr::VALUE_LEN_MAX;

/// A name as system calls return it; encryption and verity attributes have no such name, and get a
/// descriptive one.
fn full_name(index: u8, suffix: &[u8]) -> Vec<u8> {
    xattr::full_name(index, suffix).unwrap_or_else(|| {
        let text = match index {
            xattr::INDEX_ENCRYPTION => "(encryption)",
            xattr::INDEX_VERITY => "(verity)",
            _ => return [format!("(index {index})").as_bytes(), suffix].concat(),
        };
        [text.as_bytes(), suffix].concat()
    })
}

fn in_inode<'a>(reader: &Reader<'_>, file: &'a FoundInode) -> Vec<StoredAttr<'a>> {
    xattr::decode_ibody(file.xattr_area()).unwrap_or_else(|fault| {
        reader.damage(format_args!("inode {}: {fault}", file.ino));
        Vec::new()
    })
}

/// The names of the attributes in the inode.
pub(super) fn inode_names(reader: &Reader<'_>, file: &FoundInode) -> Vec<Vec<u8>> {
    in_inode(reader, file).iter().map(|stored| full_name(stored.attr.index, stored.attr.name)).collect()
}

/// Prints all attributes of an inode.
pub(super) fn show(reader: &Reader<'_>, file: &FoundInode, page: &mut Page<'_>) {
    page.number("inode", file.ino.0);
    page.fact("room_in_inode", count(file.xattr_area().len() as u64, "byte"), file.xattr_area().len() as u64);
    page.list("in_inode", None);
    for stored in in_inode(reader, file) {
        print_attr(reader, file, &stored, page);
    }
    page.close();
    let place = Pblk(file.inode.file_acl);
    if place.0 == 0 {
        page.fact("xattr_block", "(none)", Value::Null);
        return;
    }
    match reader.block(place) {
        Ok(block) => print_block(reader, file, place, &block, page),
        Err(fault) => {
            reader.damage(format_args!("inode {}: attribute block: {fault}", file.ino));
            page.fact("xattr_block", format!("{place}: {fault}"), json!({"block": place.0}));
        }
    }
}

fn print_block(reader: &Reader<'_>, file: &FoundInode, place: Pblk, block: &[u8], page: &mut Page<'_>) {
    let damage =
        |what: String| reader.damage(format_args!("inode {}: attribute block {place}: {what}", file.ino));
    let checksum = reader.has_csum().then(|| xattr::verify_block(block, reader.sb().fs_seed(), place));
    if let Some(Err(fault)) = &checksum {
        damage(fault.to_string());
    }
    page.open("xattr_block");
    page.number("block", place.0);
    let words = match &checksum {
        None => "none (the file system has no such checksums)".to_owned(),
        Some(Ok(())) => "ok".to_owned(),
        Some(Err(fault)) => format!("WRONG (stored {:#x})", fault.found),
    };
    page.fact("checksum", words, json!({"ok": checksum.as_ref().map(Result::is_ok)}));
    match xattr::decode_block(block) {
        Ok((header, attrs)) => {
            page.fact("shared_by", count(header.refcount.into(), "inode"), header.refcount);
            if header.refcount == 0 || header.refcount > xattr::REFCOUNT_MAX {
                damage(format!("is shared by {} inodes", header.refcount));
            }
            page.fact("hash", format!("{:#010x}", header.hash), header.hash);
            page.list("in_block", None);
            for stored in &attrs {
                print_attr(reader, file, stored, page);
            }
            page.close();
        }
        Err(fault) => {
            damage(fault.to_string());
            page.fact("entries", format!("cannot be read: {fault}"), Value::Null);
        }
    }
    page.close();
}

fn print_attr(reader: &Reader<'_>, file: &FoundInode, stored: &StoredAttr<'_>, page: &mut Page<'_>) {
    let name = full_name(stored.attr.index, stored.attr.name);
    let damage = |what: String| {
        reader.damage(format_args!("inode {}: attribute {}: {what}", file.ino, escape(&name)));
    };
    if !stored.hash_matches() {
        damage(format!("hash {:#010x} is wrong", stored.hash));
    }
    let owned;
    let (value, ea_inode, whole_len) = match stored.attr.value {
        AttrValue::Bytes(bytes) => (bytes, None, bytes.len() as u64),
        AttrValue::Inode { ino, size, .. } => match read_ea_inode(reader, stored, ino, size) {
            Ok(bytes) => {
                owned = bytes;
                (owned.as_slice(), Some(ino), u64::from(size))
            }
            Err(why) => {
                damage(format!("value in inode {ino}: {why}"));
                (&[][..], Some(ino), u64::from(size))
            }
        },
    };
    let (text, decoded) = value_words(stored.attr.index, &name, value);
    let place = ea_inode.map_or(String::new(), |ino| format!(" in inode {ino}"));
    page.item(
        format_args!("{} ({}{place}) = {text}", escape(&name), count(whole_len, "byte")),
        json!({
            "name": json_bytes(&name), "index": stored.attr.index, "len_bytes": whole_len,
            "value": json_bytes(&value[..value.len().min(JSON_MAX)]), "decoded": decoded,
            "ea_inode": ea_inode.map(|ino| ino.0), "entry_offset": stored.offset, "hash": stored.hash,
        }),
    );
}

/// Reads a value that is stored in its own inode, and checks it against the entry's hash.
fn read_ea_inode(
    reader: &Reader<'_>,
    stored: &StoredAttr<'_>,
    ino: Ino,
    size: u32,
) -> Result<Vec<u8>, String> {
    let file = reader.inode(ino).map_err(|fault| fault.to_string())?;
    if !file.inode.has_flag(flags::EA_INODE) {
        return Err("is no inode for attribute values".to_owned());
    }
    let value = mapping::content(reader, &file, size.into());
    if value.len() as u64 != u64::from(size) {
        return Err(format!("has {} bytes, not {size}", value.len()));
    }
    if !stored.hash_matches_crc(extant_base::checksum::crc32c(reader.sb().fs_seed(), &value)) {
        reader.damage(format_args!("inode {ino}: the value's checksum is wrong"));
    }
    Ok(value)
}

/// A value as text, and its decoded form for JSON (null if the raw bytes are sufficient).
fn value_words(index: u8, name: &[u8], value: &[u8]) -> (String, Value) {
    let is_acl = matches!(index, xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT);
    if is_acl && let Ok(acl) = Acl::from_disk(value) {
        let words = acl_words(&acl);
        return (words.join(", "), json!(words));
    }
    let is_text = std::str::from_utf8(value).is_ok() && !value.is_empty();
    // A final NUL is part of many values (SELinux labels), so it does not cause hex output.
    let body = value.strip_suffix(b"\0").unwrap_or(value);
    if name != b"security.capability" && is_text && !body.iter().any(|byte| byte.is_ascii_control()) {
        // Cut between characters: part of a character would be printed as octal.
        let cut = (0..=body.len().min(TEXT_MAX)).rev().find(|at| std::str::from_utf8(&body[..*at]).is_ok());
        let shown = &body[..cut.unwrap_or(0)];
        let nul = if body.len() < value.len() && shown.len() == body.len() { "\\000" } else { "" };
        let quoted = quote(shown);
        let quoted = format!("{}{nul}\"", &quoted[..quoted.len() - 1]);
        return (format!("{quoted}{}", if shown.len() < body.len() { " ..." } else { "" }), Value::Null);
    }
    if value.is_empty() {
        return ("\"\"".to_owned(), Value::Null);
    }
    let shown = &value[..value.len().min(TEXT_MAX)];
    let more = if shown.len() < value.len() { " ..." } else { "" };
    (format!("0x{}{more}", hex(shown)), json!({"hex": hex(&value[..value.len().min(JSON_MAX)])}))
}

/// ACL entries such as `user:1000:rw-`, in getfacl's format.
fn acl_words(acl: &Acl) -> Vec<String> {
    let rwx = |perm: u16| {
        let letter = |bit: u16, letter: char| if perm & bit != 0 { letter } else { '-' };
        format!("{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x'))
    };
    acl.entries
        .iter()
        .map(|entry| {
            let who = match entry.tag {
                AclTag::UserObj => "user::".to_owned(),
                AclTag::User(id) => format!("user:{id}:"),
                AclTag::GroupObj => "group::".to_owned(),
                AclTag::Group(id) => format!("group:{id}:"),
                AclTag::Mask => "mask::".to_owned(),
                AclTag::Other => "other::".to_owned(),
            };
            format!("{who}{}", rwx(entry.perm))
        })
        .collect()
}
