//! Extended attributes: what is sound in an inode or in a block is kept, the rest is removed.

use std::collections::BTreeMap;

use extant_base::le::{put_u16, put_u32, u16_at, u32_at};
use extant_base::{Ino, Pblk};
use extant_check::Finding;
use extant_device::DeviceFault;
use extant_ondisk::inode::flags;
use extant_ondisk::xattr::{self, Attr, AttrValue};

use crate::fs::Fs;
use crate::plan::Plan;

/// Where attributes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Inode(Ino),
    Block(Pblk),
}

/// Repairs the attributes of inodes and in blocks.
pub(crate) struct Attributes<'r, 's> {
    pub(crate) fs: &'r Fs<'s>,
    pub(crate) plan: &'r mut Plan,
}

impl Attributes<'_, '_> {
    /// Repairs findings about attributes.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut homes: BTreeMap<Home, Vec<&Finding>> = BTreeMap::new();
        for finding in findings {
            let place = &finding.place;
            match (finding.rule.code, place.ino, place.block) {
                ("XA003", Some(ino), _) => {
                    self.drop_block(ino);
                    self.plan.fixed(finding, "Store 0.");
                }
                ("XA008", Some(ino), _) => {
                    let (ctime, version) = xattr::value_reference_words(finding.expected.unwrap_or(1));
                    let _ = self.fs.edit_inode(ino, |bytes| {
                        put_u32(bytes, 0x0C, ctime);
                        put_u32(bytes, 0x24, version);
                    });
                    self.plan.fixed(finding, finding.rule.repair);
                }
                ("XA007", Some(ino), None) if place.name.is_none() => self.seal_value(ino, finding),
                (_, Some(ino), None) => homes.entry(Home::Inode(ino)).or_default().push(finding),
                (_, _, Some(block)) => homes.entry(Home::Block(block)).or_default().push(finding),
                _ => {}
            }
        }
        for (home, findings) in homes {
            match home {
                Home::Inode(ino) => self.mend_area(ino, &findings),
                Home::Block(block) => self.mend_block(block, &findings)?,
            }
        }
        Ok(())
    }

    /// Takes the attribute block away from an inode.
    fn drop_block(&self, ino: Ino) {
        let _ = self.fs.edit_inode(ino, |bytes| {
            put_u32(bytes, 0x68, 0);
            put_u16(bytes, 0x76, 0);
        });
    }

    /// Stores the checksum of a value in its inode.
    fn seal_value(&mut self, ino: Ino, finding: &Finding) {
        let Some(inode) = self.fs.inode(ino).filter(|inode| inode.has_flag(flags::EA_INODE)) else { return };
        let mut value = Vec::new();
        for run in self.fs.walk(ino, &inode).runs {
            for i in 0..run.len {
                let Ok(bytes) = self.fs.read_block(Pblk(run.pblk.0 + u64::from(i))) else { return };
                value.extend_from_slice(&bytes);
            }
        }
        let Some(value) = value.get(..inode.size as usize) else { return };
        let crc = extant_base::checksum::crc32c(self.fs.sb.fs_seed(), value);
        let _ = self.fs.edit_inode(ino, |bytes| put_u32(bytes, 8, crc));
        self.plan.fixed(finding, "Store the value's checksum.");
    }

    /// Writes the attributes in an inode anew.
    fn mend_area(&mut self, ino: Ino, findings: &[&Finding]) {
        let Some(bytes) = self.fs.inode_bytes(ino) else { return };
        let extra = if bytes.len() > 128 { usize::from(u16_at(&bytes, 0x80)) } else { return };
        let at = 128 + extra;
        let Some(area) = bytes.get(at..) else { return };
        let Some(base) = area.get(xattr::IBODY_HEADER_LEN..) else { return };
        let dropped = dropped(findings);
        let (attrs, lost) = salvage(base, 0, xattr::IBODY_HEADER_LEN, true, &dropped);
        let mut new = area.to_vec();
        let kept = attrs.len();
        if xattr::encode_ibody(&attrs, &mut new).is_err() {
            new.fill(0);
        }
        let _ = self.fs.edit_inode(ino, |bytes| bytes[at..].copy_from_slice(&new));
        let mut loss = (lost > 0).then(|| format!("{lost} attributes of inode {ino} ({kept} stay)"));
        for finding in findings {
            self.plan.fixed_with(finding, "Keep the sound attributes, remove the others.", loss.take());
        }
    }

    /// Writes an attribute block anew, or seals it.
    fn mend_block(&mut self, block: Pblk, findings: &[&Finding]) -> Result<(), DeviceFault> {
        let mut bytes = self.fs.read_block(block)?;
        let has = |codes: &[&str]| findings.iter().any(|finding| codes.contains(&finding.rule.code));
        if has(&["XA010"]) {
            return Ok(());
        }
        let seed = self.fs.sb.fs_seed();
        let mut remedy = "Store the number counted.";
        let mut loss = None;
        if has(&["XA002", "XA005", "XA007", "XA009"]) {
            let dropped = dropped(findings);
            let is_block = u32_at(&bytes, 0) == xattr::MAGIC;
            let start =
                if is_block || salvage(&bytes, xattr::BLOCK_HEADER_LEN, 0, false, &dropped).0.is_empty() {
                    is_block
                } else {
                    true
                };
            let copy = bytes.clone();
            let (attrs, lost) = match start {
                true => salvage(&copy, xattr::BLOCK_HEADER_LEN, 0, false, &dropped),
                false => (Vec::new(), 0),
            };
            let users = u32_at(&bytes, 4);
            if attrs.is_empty() {
                let users = self.users_of(block);
                for ino in &users {
                    self.drop_block(*ino);
                }
                loss = Some(format!("the attributes in block {block} of {} inodes", users.len()));
                for finding in findings {
                    self.plan.fixed_with(finding, "Remove the block from all inodes.", loss.take());
                }
                return Ok(());
            }
            if xattr::encode_block(&attrs, users, &mut bytes).is_err() {
                return Ok(());
            }
            remedy = "Keep the sound attributes, remove the others, in order.";
            if lost > 0 {
                loss = Some(format!("{lost} attributes in block {block}"));
            }
        } else if has(&["XA004"]) {
            remedy = "Store the right checksum.";
        }
        if let Some(count) = findings.iter().find(|finding| finding.rule.code == "XA006") {
            xattr::set_refcount(&mut bytes, count.expected.unwrap_or(1) as u32);
        }
        if self.fs.has_csum() {
            xattr::seal_block(&mut bytes, seed, block);
        }
        self.fs.write_block(block, &bytes)?;
        for finding in findings {
            self.plan.fixed_with(finding, remedy, loss.take());
        }
        Ok(())
    }

    /// The inodes that name an attribute block.
    fn users_of(&self, block: Pblk) -> Vec<Ino> {
        let used = self.fs.noted().filter(|(_, note)| note.used).map(|(ino, _)| ino);
        used.filter(|ino| self.fs.inode(*ino).is_some_and(|inode| inode.file_acl == block.0)).collect()
    }
}

/// Makes ordinary files of inodes for values to which nothing refers.
pub(crate) fn mend_unused_values(fs: &Fs<'_>, plan: &mut Plan, findings: &[&Finding]) {
    for finding in findings {
        let Some(ino) = finding.place.ino else { continue };
        fs.set_flags(ino, 0, flags::EA_INODE);
        plan.fixed(finding, "Clear the flag.");
    }
}

/// The offsets of entries that findings ask to be removed.
fn dropped(findings: &[&Finding]) -> Vec<u32> {
    let removed = findings.iter().filter(|finding| ["XA005", "XA007"].contains(&finding.rule.code));
    removed.filter_map(|finding| finding.place.offset).collect()
}

/// The sound entries of an area, and the number of the others. `base` is what offsets of values count from,
/// `first` the offset of the first entry in it; findings add `header` to offsets.
fn salvage<'a>(
    base: &'a [u8],
    first: usize,
    header: usize,
    in_inode: bool,
    dropped: &[u32],
) -> (Vec<Attr<'a>>, usize) {
    let (mut attrs, mut lost): (Vec<Attr<'a>>, usize) = (Vec::new(), 0);
    let mut at = first;
    while let Some(raw) = base.get(at..at + 16) {
        if u32_at(raw, 0) == 0 {
            break;
        }
        let (name_len, index) = (usize::from(raw[0]), raw[1]);
        let (offset, ino) = (usize::from(u16_at(raw, 2)), u32_at(raw, 4));
        let (size, hash) = (u32_at(raw, 8), u32_at(raw, 12));
        let Some(name) = base.get(at + 16..at + 16 + name_len) else {
            lost += 1;
            break;
        };
        let next = at + xattr::entry_len(name_len);
        let is_dropped = dropped.contains(&((at + header) as u32));
        let attr = if ino != 0 {
            // The entry's hash is the name's, rotated, and the value's checksum.
            let zero = Attr { index, name, value: AttrValue::Inode { ino: Ino(ino), size, hash: 0 } };
            let crc = xattr::entry_hash(&zero, false) ^ hash;
            (size <= xattr::STORED_VALUE_LEN_MAX)
                .then_some(Attr { value: AttrValue::Inode { ino: Ino(ino), size, hash: crc }, ..zero })
        } else {
            let end = offset.saturating_add(size as usize);
            let value = base.get(offset..end).filter(|_| size as usize <= xattr::VALUE_LEN_MAX);
            value.map(|value| Attr { index, name, value: AttrValue::Bytes(value) })
        };
        let is_sound = |attr: &Attr<'_>| {
            let fits = match attr.value {
                AttrValue::Inode { .. } => true,
                AttrValue::Bytes(value) => {
                    let padded = base.get(offset..offset + value.len().next_multiple_of(4));
                    let padded = padded.map(|padded| Attr { value: AttrValue::Bytes(padded), ..*attr });
                    (in_inode && hash == 0)
                        || [false, true].into_iter().any(|signed| {
                            xattr::entry_hash(attr, signed) == hash
                                || padded.is_some_and(|padded| xattr::entry_hash(&padded, signed) == hash)
                        })
                }
            };
            fits && index != 0
                && !name.contains(&0)
                && !attrs.iter().any(|known| (known.index, known.name) == (index, name))
        };
        match attr.filter(|attr| !is_dropped && is_sound(attr)) {
            Some(attr) => attrs.push(attr),
            None => lost += 1,
        }
        at = next;
    }
    (attrs, lost)
}
