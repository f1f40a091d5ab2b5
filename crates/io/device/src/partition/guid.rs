//! GUIDs in GPT's binary form and in text form, and the names of common types.
//!
//! Source: UEFI specification 2.10, appendix A; type GUIDs: "Discoverable Partitions Specification" and
//! vendors' publications.

use std::fmt;

/// A GUID as on disk: its first three fields are little-endian.
///
/// ```
/// use extant_device::partition::Guid;
/// let linux = Guid::from_text("0FC63DAF-8483-4772-8E79-3D69D8477DE4").unwrap();
/// assert_eq!(linux.0[..4], [0xaf, 0x3d, 0xc6, 0x0f]);
/// assert_eq!(linux.type_name(), Some("Linux filesystem"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

/// The indices of the bytes on disk, in the order of the text.
const TEXT_ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];

impl Guid {
    /// Type of an unused entry.
    pub const NONE: Guid = Guid([0; 16]);

    /// Parses 32 hexadecimal digits with any dashes; `None` for anything else.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut digits = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16));
        let mut bytes = [0; 16];
        for place in TEXT_ORDER {
            let (high, low) = (digits.next()??, digits.next()??);
            bytes[place] = (high << 4 | low) as u8;
        }
        digits.next().is_none().then_some(Self(bytes))
    }

    /// The name of this partition type, as in `sfdisk`.
    #[must_use]
    pub fn type_name(self) -> Option<&'static str> {
        let text = self.to_string();
        TYPE_NAMES.iter().find(|(guid, _)| *guid == text).map(|(_, name)| *name)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, place) in TEXT_ORDER.into_iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{:02X}", self.0[place])?;
        }
        Ok(())
    }
}

pub(super) const TYPE_NAMES: [(&str, &str); 17] = [
    ("0FC63DAF-8483-4772-8E79-3D69D8477DE4", "Linux filesystem"),
    ("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "Linux root (x86-64)"),
    ("44479540-F297-41B2-9AF7-D131D5F0458A", "Linux root (x86)"),
    ("B921B045-1DF0-41C3-AF44-4C6F280D3FAE", "Linux root (ARM-64)"),
    ("69DAD710-2CE4-4E3C-B16C-21A1D49ABED3", "Linux root (ARM)"),
    ("933AC7E1-2EB4-4F13-B844-0E14E2AEF915", "Linux home"),
    ("3B8F8425-20E0-4F3B-907F-1A25A76F98E8", "Linux server data"),
    ("4D21B016-B534-45C2-A9FB-5C16E091FD2D", "Linux variable data"),
    ("8484680C-9521-48C6-9C11-B0720656F69E", "Linux /usr (x86-64)"),
    ("BC13C2FF-59E6-4262-A352-B275FD6F7172", "Linux extended boot"),
    ("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F", "Linux swap"),
    ("E6D6D379-F507-44C2-A23C-238F2A3DF928", "Linux LVM"),
    ("A19D880F-05FC-4D3B-A006-743F0F84911E", "Linux RAID"),
    ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "EFI System"),
    ("21686148-6449-6E6F-744E-656564454649", "BIOS boot"),
    ("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "Microsoft basic data"),
    ("E3C9E316-0B5C-4DB8-817D-F92DF00215AE", "Microsoft reserved"),
];
