//! ACLs set, inherited and changed by chmod, in the kernel and here: same errors, modes and values.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use extant_testkit::LoopMount;
use extant_xattr::acl::{self, Acl, AclEntry, AclFault, AclTag};
use rustix::fs::{XattrFlags, lgetxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A small generator: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A list that is mostly valid.
fn some_acl(numbers: &mut Numbers) -> Vec<u8> {
    let mut tags = vec![AclTag::UserObj];
    tags.extend((0..numbers.below(3)).map(|id| AclTag::User(id as u32 + 7)));
    tags.push(AclTag::GroupObj);
    tags.extend((0..numbers.below(3)).map(|id| AclTag::Group(id as u32 + 9)));
    if tags.len() > 2 || numbers.below(3) == 0 {
        tags.push(AclTag::Mask);
    }
    tags.push(AclTag::Other);
    if numbers.below(6) == 0 {
        tags.remove(numbers.below(tags.len() as u64) as usize);
    }
    if numbers.below(10) == 0 {
        let (a, b) = (numbers.below(tags.len() as u64), numbers.below(tags.len() as u64));
        tags.swap(a as usize, b as usize);
    }
    let perm_end = if numbers.below(12) == 0 { 9 } else { 8 };
    let entries = tags.into_iter().map(|tag| AclEntry { tag, perm: numbers.below(perm_end) as u16 });
    let mut value = Acl { entries: entries.collect() }.to_xattr();
    match numbers.below(30) {
        0 => value[0] = 1,
        1 => value.truncate(value.len() - 3),
        2 => value.truncate(4),
        _ => {}
    }
    value
}

fn kernel_value(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    match lgetxattr(path, name, &mut value[..]) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{error}"),
    }
}

fn mode_of(path: &Path) -> u16 {
    path.symlink_metadata().unwrap().permissions().mode() as u16
}

/// The stored value in the format of the system calls.
fn as_kernel(stored: Option<Vec<u8>>) -> Option<Vec<u8>> {
    stored.map(|stored| Acl::from_disk(&stored).unwrap().to_xattr())
}

fn errno(fault: &AclFault) -> Errno {
    match fault {
        AclFault::Version => Errno::OPNOTSUPP,
        AclFault::Invalid(_) => Errno::INVAL,
        AclFault::NoDirectory => Errno::ACCESS,
    }
}

#[test]
fn acls_do_what_the_kernels_do() {
    if extant_testkit::not_root() {
        return;
    }
    let scratch = extant_testkit::scratch();
    let image = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), "32M"]);
    let mount = LoopMount::new(&image, "rw").unwrap();
    let (dir, file) = (mount.path().join("dir"), mount.path().join("file"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(&file, "x").unwrap();
    let mut numbers = Numbers(5);
    let mut set_count = 0;
    for i in 0..600 {
        // An access ACL, and the mode that results.
        let value = some_acl(&mut numbers);
        let before = mode_of(&file);
        let by_kernel = lsetxattr(&file, ACCESS, &value, XattrFlags::empty());
        match acl::parse(&value) {
            Err(fault) => assert_eq!(by_kernel, Err(errno(&fault)), "{value:?}"),
            Ok(list) => {
                assert_eq!(by_kernel, Ok(()), "{value:?}");
                let change = acl::set_access(list.as_ref(), before);
                assert_eq!(mode_of(&file), change.mode, "{list:?}");
                assert_eq!(kernel_value(&file, ACCESS), as_kernel(change.stored.clone()), "{list:?}");
                set_count += 1;
                // A chmod afterwards.
                let mode = numbers.below(0o1000) as u16;
                std::fs::set_permissions(&file, PermissionsExt::from_mode(mode.into())).unwrap();
                if let Some(stored) = change.stored {
                    let mut list = Acl::from_disk(&stored).unwrap();
                    acl::chmod(&mut list, mode);
                    assert_eq!(kernel_value(&file, ACCESS), Some(list.to_xattr()));
                }
            }
        }
        // A default ACL, and new inodes in the directory.
        let value = some_acl(&mut numbers);
        let on_file = lsetxattr(&file, DEFAULT, &value, XattrFlags::empty());
        let by_kernel = lsetxattr(&dir, DEFAULT, &value, XattrFlags::empty());
        let list = match acl::parse(&value) {
            Err(fault) => {
                assert_eq!(by_kernel, Err(errno(&fault)), "{value:?}");
                continue;
            }
            Ok(list) => list,
        };
        let expected = acl::set_default(list.as_ref(), false).map(drop).map_err(|fault| errno(&fault));
        assert_eq!(on_file, expected, "{list:?}");
        assert_eq!(kernel_value(&dir, DEFAULT), as_kernel(acl::set_default(list.as_ref(), true).unwrap()));
        let Some(list) = list else { continue };
        let mode = numbers.below(0o1000) as u16;
        let new = dir.join(format!("file{i}"));
        std::fs::OpenOptions::new().create_new(true).write(true).mode(mode.into()).open(&new).unwrap();
        let inherited = acl::inherit(&list, 0o100_000 | mode, false).unwrap();
        assert_eq!(mode_of(&new), inherited.mode, "{mode:o} {list:?}");
        assert_eq!(kernel_value(&new, ACCESS), as_kernel(inherited.access));
        let new = dir.join(format!("dir{i}"));
        std::fs::create_dir(&new).unwrap();
        let inherited = acl::inherit(&list, 0o040_777, true).unwrap();
        assert_eq!(mode_of(&new), inherited.mode);
        assert_eq!(kernel_value(&new, ACCESS), as_kernel(inherited.access));
        assert_eq!(kernel_value(&new, DEFAULT), as_kernel(inherited.default));
    }
    assert!(set_count > 300, "{set_count} were set");
    let _ = lremovexattr(&file, ACCESS);
    assert_eq!(lremovexattr(&file, ACCESS), Ok(()), "an ACL that is not there is removed without complaint");
}
