//! `inspect … super`: every meaningful field of the superblock, and the multiple-mount-protection block.

use extant_base::Pblk;
use extant_jbd2_format as jbd2;
use extant_ondisk::hash::HashVersion;
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_ondisk::superblock::{self as layout, until_nul};
use extant_ondisk::{Features, Superblock};
use serde_json::{Value, json};

use super::format::{
    bytes_and_human, checksum_json, checksum_text, count, escape, flags_json, flags_text, hex, human,
    json_bytes, percent, super_time, text_field, uuid_fact,
};
use super::page::Page;
use super::probe::{Origin, Probe};

const STATES: &[(u32, &str)] =
    &[(1, "clean"), (2, "errors"), (4, "orphans being recovered"), (0x20, "fast commit replay")];
const FLAGS: &[(u32, &str)] = &[
    (layout::FLAG_SIGNED_HASH, "signed_directory_hash"),
    (layout::FLAG_UNSIGNED_HASH, "unsigned_directory_hash"),
    (layout::FLAG_TEST_FILESYS, "test_filesystem"),
];
const MOUNT_OPTIONS: &[(u32, &str)] = &[
    (0x1, "debug"),
    (0x2, "bsdgroups"),
    (0x4, "user_xattr"),
    (0x8, "acl"),
    (0x10, "uid16"),
    (0x100, "nobarrier"),
    (0x200, "block_validity"),
    (0x400, "discard"),
    (0x800, "nodelalloc"),
];
/// The bits of the default mount options that encode one of three journal modes.
const JOURNAL_MODE_MASK: u32 = 0x60;

/// Prints the superblock.
pub(super) fn show(probe: &Probe<'_>, page: &mut Page<'_>) {
    let sb = &probe.sb;
    source(probe, page);
    identity(sb, page);
    sizes(probe, page);
    layout_numbers(probe, page);
    times(sb, page);
    special_inodes(sb, page);
    hashes(sb, page);
    raid_and_mmp(probe, page);
    errors(probe, page);
    page.fact("checksum", checksum_text(probe.checksum()), checksum_json(probe.checksum()));
    if sb.features.metadata_csum() {
        let derived = if sb.features.has_incompat(Features::CSUM_SEED) { "stored" } else { "from the uuid" };
        page.fact("checksum_seed", format!("{:#010x} ({derived})", sb.fs_seed()), sb.fs_seed());
    }
}

fn source(probe: &Probe<'_>, page: &mut Page<'_>) {
    let json = match probe.origin {
        Origin::Primary => json!({"backup": false, "offset_bytes": layout::OFFSET, "group": 0}),
        Origin::Backup { group, offset } => json!({"backup": true, "offset_bytes": offset, "group": group}),
    };
    page.fact("superblock", probe.origin, json);
    let size = probe.device.size_bytes();
    page.fact("device_size", bytes_and_human(size), size);
}

fn identity(sb: &Superblock, page: &mut Page<'_>) {
    page.fact("label", text_field(sb.label()), json_bytes(sb.label()));
    let (text, json) = uuid_fact(&sb.uuid);
    page.fact("uuid", text, json);
    let mounted = until_nul(&sb.last_mounted);
    page.fact("last_mounted_on", text_field(mounted), json_bytes(mounted));
    let f = sb.features;
    let names = f.names();
    let raw = format!("({:#x}/{:#x}/{:#x})", f.compat, f.incompat, f.ro_compat);
    let json = json!({"names": names, "compat": f.compat, "incompat": f.incompat, "ro_compat": f.ro_compat});
    page.fact("features", format!("{} {raw}", names.join(" ")), json);
    page.fact("flags", flags_text(sb.flags, FLAGS), flags_json(sb.flags, FLAGS));

    let recover = f.has_incompat(Features::RECOVER);
    let mut state = flags_text(sb.state.into(), STATES);
    if sb.state & layout::STATE_CLEAN == 0 {
        state = format!("not clean, {state}");
    }
    if recover {
        state.push_str(", the journal must be replayed");
    }
    let mut json = flags_json(sb.state.into(), STATES);
    json["needs_recovery"] = recover.into();
    page.fact("state", state, json);
    let on_error = match sb.errors {
        1 => "continue",
        2 => "remount read-only",
        3 => "panic",
        _ => "unknown",
    };
    page.fact(
        "on_errors",
        format!("{on_error} ({})", sb.errors),
        json!({"name": on_error, "raw": sb.errors}),
    );
    let (text, json) = mount_options(sb.default_mount_opts);
    page.fact("default_mount_options", text, json);
    let options = until_nul(&sb.mount_opts);
    if !options.is_empty() {
        page.fact("mount_options", text_field(options), json_bytes(options));
    }
    let os = match sb.creator_os {
        0 => "Linux",
        1 => "Hurd",
        2 => "Masix",
        3 => "FreeBSD",
        4 => "Lites",
        _ => "unknown",
    };
    page.fact("creator_os", format!("{os} ({})", sb.creator_os), json!({"name": os, "raw": sb.creator_os}));
    let dynamic = if sb.rev_level == 0 { "original" } else { "dynamic" };
    let revision = format!("{}.{} ({dynamic})", sb.rev_level, sb.minor_rev_level);
    page.fact("revision", revision, json!({"level": sb.rev_level, "minor": sb.minor_rev_level}));
}

fn mount_options(word: u32) -> (String, Value) {
    let mode = match word & JOURNAL_MODE_MASK {
        0x20 => Some("journal_data"),
        0x40 => Some("journal_data_ordered"),
        0x60 => Some("journal_data_writeback"),
        _ => None,
    };
    let mut names = super::format::bit_names(word & !JOURNAL_MODE_MASK, MOUNT_OPTIONS);
    names.extend(mode.map(str::to_owned));
    let text = if word == 0 { "(none)".to_owned() } else { format!("{} ({word:#x})", names.join(" ")) };
    (text, json!({"names": names, "raw": word}))
}

fn sizes(probe: &Probe<'_>, page: &mut Page<'_>) {
    let sb = &probe.sb;
    let bs = sb.block_size().map_or(0, |size| size.bytes());
    let blocks = |number: u64| format!("{number} ({})", human(number.saturating_mul(bs)));
    let share = |number: u64, of: u64| format!("{number} ({})", percent(number, of));
    page.number("inodes", sb.inodes_count);
    page.fact(
        "free_inodes",
        share(sb.free_inodes_count.into(), sb.inodes_count.into()),
        sb.free_inodes_count,
    );
    page.fact("blocks", blocks(sb.blocks_count), sb.blocks_count);
    page.fact("free_blocks", share(sb.free_blocks_count, sb.blocks_count), sb.free_blocks_count);
    let reserved = sb.reserved_blocks_count;
    page.fact(
        "reserved_blocks",
        format!("{} for uid {}, gid {}", share(reserved, sb.blocks_count), sb.def_resuid, sb.def_resgid),
        json!({"blocks": reserved, "uid": sb.def_resuid, "gid": sb.def_resgid}),
    );
    page.fact(
        "overhead",
        if sb.overhead_clusters == 0 {
            "not known".to_owned()
        } else {
            count(sb.overhead_clusters.into(), "cluster")
        },
        sb.overhead_clusters,
    );
    let size = |log: u32| 1024u64.checked_shl(log).filter(|_| log < 32);
    let size_text =
        |size: Option<u64>, log: u32| size.map_or(format!("impossible (log {log})"), bytes_and_human);
    let (block, cluster) = (size(sb.log_block_size), size(sb.log_cluster_size));
    page.fact("block_size", size_text(block, sb.log_block_size), block);
    page.fact("cluster_size", size_text(cluster, sb.log_cluster_size), cluster);
    page.fact("inode_size", format!("{} bytes", sb.inode_bytes()), sb.inode_bytes() as u64);
    page.fact("extra_inode_bytes_min", sb.min_extra_isize, sb.min_extra_isize);
    page.fact("extra_inode_bytes_want", sb.want_extra_isize, sb.want_extra_isize);
}

fn layout_numbers(probe: &Probe<'_>, page: &mut Page<'_>) {
    let sb = &probe.sb;
    match &probe.geometry {
        Ok(geometry) => {
            page.number("groups", geometry.groups);
            page.number("inode_blocks_per_group", geometry.itable_blocks());
            page.number("group_descriptor_blocks", geometry.desc_blocks);
        }
        Err(_) if probe.is_journal_device() => {}
        Err(fault) => page.fact("groups", format!("impossible: {fault}"), Value::Null),
    }
    page.number("first_data_block", sb.first_data_block);
    page.number("blocks_per_group", sb.blocks_per_group);
    page.number("clusters_per_group", sb.clusters_per_group);
    page.number("inodes_per_group", sb.inodes_per_group);
    page.fact(
        "group_descriptor_size",
        format!("{} bytes", sb.group_desc_size()),
        sb.group_desc_size() as u64,
    );
    page.number("reserved_gdt_blocks", sb.reserved_gdt_blocks);
    if sb.features.has_incompat(Features::FLEX_BG) {
        let groups = 1u64.checked_shl(sb.log_groups_per_flex.into()).unwrap_or(0);
        page.number("groups_per_flex", groups);
    }
    if sb.features.has_incompat(Features::META_BG) {
        page.number("first_meta_bg", sb.first_meta_bg);
    }
    if sb.features.has_compat(Features::SPARSE_SUPER2) {
        let text = format!("groups {} and {}", sb.backup_bgs[0], sb.backup_bgs[1]);
        page.fact("superblock_backups", text, sb.backup_bgs.to_vec());
    }
}

fn times(sb: &Superblock, page: &mut Page<'_>) {
    for (key, seconds) in [
        ("created", sb.mkfs_time),
        ("last_mount", sb.mtime),
        ("last_write", sb.wtime),
        ("last_check", sb.lastcheck),
    ] {
        let (text, json) = super_time(seconds);
        page.fact(key, text, json);
    }
    let interval = match sb.checkinterval {
        0 => "never by time".to_owned(),
        seconds => format!("every {seconds} seconds"),
    };
    page.fact("check_interval", interval, sb.checkinterval);
    let max = match sb.max_mnt_count as i16 {
        max if max <= 0 => "no limit".to_owned(),
        max => format!("check after {max}"),
    };
    page.fact(
        "mounts_since_check",
        format!("{} ({max})", sb.mnt_count),
        json!({"mounts": sb.mnt_count, "max": sb.max_mnt_count as i16}),
    );
    let written = sb.kbytes_written;
    page.fact("lifetime_writes", format!("{written} KiB ({})", human(written.saturating_mul(1024))), written);
}

fn special_inodes(sb: &Superblock, page: &mut Page<'_>) {
    page.number("first_inode", sb.first_ino);
    let optional = |page: &mut Page<'_>, key: &str, ino: u32| {
        if ino != 0 {
            page.number(key, ino);
        }
    };
    optional(page, "journal_inode", sb.journal_inum);
    optional(page, "journal_device", sb.journal_dev);
    if sb.journal_uuid != [0; 16] {
        let (text, json) = uuid_fact(&sb.journal_uuid);
        page.fact("journal_uuid", text, json);
    }
    if sb.features.has_compat(Features::HAS_JOURNAL) {
        let kept = sb.jnl_backup_type == 1;
        page.fact("journal_inode_backup", if kept { "kept" } else { "none" }, kept);
    }
    page.fact(
        "orphan_list_head",
        if sb.last_orphan == 0 { "(none)".to_owned() } else { format!("inode {}", sb.last_orphan) },
        sb.last_orphan,
    );
    optional(page, "orphan_file_inode", sb.orphan_file_inum);
    optional(page, "user_quota_inode", sb.usr_quota_inum);
    optional(page, "group_quota_inode", sb.grp_quota_inum);
    optional(page, "project_quota_inode", sb.prj_quota_inum);
    optional(page, "lost_and_found_inode", sb.lpf_ino);
}

/// The name of a directory hash.
pub(super) fn hash_name(code: u8) -> &'static str {
    match HashVersion::from_code(code, false).map(HashVersion::code) {
        Some(0) => "legacy",
        Some(1) => "half_md4",
        Some(2) => "tea",
        Some(_) => "siphash",
        None => "unknown",
    }
}

fn hashes(sb: &Superblock, page: &mut Page<'_>) {
    let name = hash_name(sb.def_hash_version);
    page.fact(
        "default_directory_hash",
        format!("{name} ({})", sb.def_hash_version),
        json!({"name": name, "raw": sb.def_hash_version}),
    );
    let (text, json) = uuid_fact(&sb.hash_seed);
    page.fact("directory_hash_seed", text, json);
    if sb.features.has_incompat(Features::CASEFOLD) {
        let encoding = if sb.encoding == 1 { "utf8-12.1" } else { "unknown" };
        page.fact(
            "name_encoding",
            format!("{encoding} ({}), flags {:#x}", sb.encoding, sb.encoding_flags),
            json!({"name": encoding, "raw": sb.encoding, "flags": sb.encoding_flags}),
        );
    }
    if sb.features.has_incompat(Features::ENCRYPT) {
        let algorithms: Vec<u8> = sb.encrypt_algos.into_iter().filter(|code| *code != 0).collect();
        page.fact(
            "encryption",
            format!("level {}, algorithms {algorithms:?}, salt {}", sb.encryption_level, hex(&sb.encrypt_pw_salt)),
            json!({"level": sb.encryption_level, "algorithms": algorithms, "salt_hex": hex(&sb.encrypt_pw_salt)}),
        );
    }
}

fn raid_and_mmp(probe: &Probe<'_>, page: &mut Page<'_>) {
    let sb = &probe.sb;
    if sb.raid_stride != 0 || sb.raid_stripe_width != 0 {
        page.fact(
            "raid",
            format!("stride {} blocks, stripe width {} blocks", sb.raid_stride, sb.raid_stripe_width),
            json!({"stride_blocks": sb.raid_stride, "stripe_width_blocks": sb.raid_stripe_width}),
        );
    }
    if !sb.features.has_incompat(Features::MMP) {
        return;
    }
    page.open("multiple_mount_protection");
    page.number("block", sb.mmp_block);
    page.fact("interval", format!("{} seconds", sb.mmp_interval), sb.mmp_interval);
    match read_mmp(probe) {
        Ok(mmp) => {
            let state = match mmp.state() {
                MmpState::Clean => "not in use".to_owned(),
                MmpState::Checking => "a checker is at work".to_owned(),
                MmpState::Mounted(sequence) => format!("mounted (sequence {sequence:#x})"),
                MmpState::Unknown(sequence) => format!("unknown (sequence {sequence:#x})"),
            };
            page.fact(
                "state",
                state,
                json!({"sequence": mmp.sequence, "clean": mmp.state() == MmpState::Clean}),
            );
            let (text, json) = super_time(mmp.time);
            page.fact("updated", text, json);
            let (node, device) = (until_nul(&mmp.node_name), until_nul(&mmp.device_name));
            page.fact("node", text_field(node), json_bytes(node));
            page.fact("device", text_field(device), json_bytes(device));
            if sb.features.metadata_csum() {
                let seed = sb.fs_seed();
                let checksum =
                    super::format::Checksum { stored: mmp.checksum, computed: mmp.computed_checksum(seed) };
                if !checksum.is_right() {
                    probe
                        .damage
                        .note(format_args!("multiple mount protection block: checksum {}", checksum.text()));
                }
                page.fact("checksum", checksum.text(), checksum.json());
            }
        }
        Err(reason) => {
            probe.damage.note(format_args!("multiple mount protection block: {reason}"));
            page.fact("state", format!("cannot be read: {reason}"), Value::Null);
        }
    }
    page.close();
}

fn read_mmp(probe: &Probe<'_>) -> Result<Mmp, String> {
    let block_size = probe.sb.block_size().map_err(|fault| fault.to_string())?;
    let inside = Some(Pblk(probe.sb.mmp_block)).filter(|block| block.0 < probe.sb.blocks_count);
    let offset =
        inside.and_then(|block| block_size.offset_of(block)).ok_or("lies outside the file system")?;
    let mut bytes = [0; Mmp::LEN];
    probe.device.read_at(offset, &mut bytes).map_err(|fault| fault.to_string())?;
    Mmp::decode(&bytes).map_err(|fault| fault.to_string())
}

fn errors(probe: &Probe<'_>, page: &mut Page<'_>) {
    let sb = &probe.sb;
    page.number("errors_seen", sb.error_count);
    let histories = [
        (
            "first_error",
            (sb.first_error_time, sb.first_error_errcode, sb.first_error_ino, sb.first_error_block),
            (&sb.first_error_func, sb.first_error_line),
        ),
        (
            "last_error",
            (sb.last_error_time, sb.last_error_errcode, sb.last_error_ino, sb.last_error_block),
            (&sb.last_error_func, sb.last_error_line),
        ),
    ];
    for (key, (time, code, ino, block), (function, line)) in histories {
        if time == 0 {
            continue;
        }
        let function = until_nul(function);
        let (time_text, time_json) = super_time(time);
        page.fact(
            key,
            format!("{time_text} in {}:{line}, inode {ino}, block {block}, code {code}", escape(function)),
            json!({
                "time": time_json, "function": json_bytes(function), "line": line, "inode": ino, "block": block,
                "code": code,
            }),
        );
    }
}

/// The features in a journal's own superblock.
pub(super) fn journal_features(features: &jbd2::Features) -> (String, Value) {
    let names = features.names();
    let raw = format!("({:#x}/{:#x}/{:#x})", features.compat, features.incompat, features.ro_compat);
    let json = json!({
        "names": names, "compat": features.compat, "incompat": features.incompat, "ro_compat": features.ro_compat,
    });
    let text = if names.is_empty() { "(none)".to_owned() } else { format!("{} {raw}", names.join(" ")) };
    (text, json)
}
