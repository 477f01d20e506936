//! POSIX access control lists, as the kernel passes them in `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! With FUSE_POSIX_ACL the kernel checks permissions by the lists, but the service must keep list and mode in step:
//!
//! 1. Setting an access list sets the nine permission bits ([`set_access`]). A list equivalent to a mode is not stored.
//! 2. chmod changes the stored list ([`chmod`]).
//! 3. A directory's default list is applied to each entry created in it, instead of the umask ([`inherit`]).
//!
//! Encoding (little-endian): version u32 = 2, then per entry: tag u16, permissions u16, id u32.

use crate::{Errno, FileKind};

/// Name of the extended attribute with the access list.
pub const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// Name of the extended attribute with a directory's default list.
pub const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const ID_UNDEFINED: u32 = u32::MAX;
const SETGID: u16 = 0o2000;

/// Whether an extended attribute of this name is an access list.
#[must_use]
pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS_XATTR || name == DEFAULT_XATTR
}

/// Reason why a list was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AclError {
    /// Not a list of this version: wrong length or version number.
    #[error("not an ACL of version {VERSION}: {length_bytes} bytes")]
    Encoding {
        /// Length of the value.
        length_bytes: usize,
    },
    /// Entries missing, repeated, or in the wrong order.
    #[error("ACL entries missing, repeated, or out of order")]
    Entries,
}

impl From<AclError> for Errno {
    fn from(error: AclError) -> Self {
        match error {
            AclError::Encoding { .. } | AclError::Entries => Errno::EINVAL,
        }
    }
}

/// The subject of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    /// Upper limit for all except owner and others.
    Mask,
    Others,
}

impl Tag {
    /// The tag and id of an entry in a value. The tags' order is the order in a list.
    fn encode(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, ID_UNDEFINED),
            Self::User(id) => (0x02, id),
            Self::OwningGroup => (0x04, ID_UNDEFINED),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, ID_UNDEFINED),
            Self::Others => (0x20, ID_UNDEFINED),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) tag: Tag,
    /// Read 4, write 2, execute 1.
    pub(crate) permissions: u8,
}

/// A valid list: owner, owning group and others exactly once, and a mask if users or groups are named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Makes a list of these entries, if they are valid.
    pub(crate) fn new(entries: Vec<Entry>) -> Result<Self, AclError> {
        // The tags are powers of two.
        let rank = |entry: &Entry| entry.tag.encode().0.trailing_zeros() as usize;
        let mut seen = [0_usize; 6];
        entries.iter().for_each(|entry| seen[rank(entry)] += 1);
        if !entries.is_sorted_by_key(rank) || entries.iter().any(|entry| entry.permissions > 7) {
            return Err(AclError::Entries);
        }
        let [owner, users, owning_group, groups, mask, others] = seen;
        let named = users + groups > 0;
        if owner != 1 || owning_group != 1 || others != 1 || mask > 1 || (named && mask == 0) {
            return Err(AclError::Entries);
        }
        Ok(Self { entries })
    }

    /// Decodes an extended attribute's value.
    pub fn parse(value: &[u8]) -> Result<Self, AclError> {
        let encoding = AclError::Encoding { length_bytes: value.len() };
        let (header, body) = value.split_at_checked(HEADER_BYTES).ok_or(encoding)?;
        let (entries, rest) = body.as_chunks::<ENTRY_BYTES>();
        if header != VERSION.to_le_bytes() || !rest.is_empty() {
            return Err(encoding);
        }
        let decode = |&[tag0, tag1, permissions0, permissions1, id @ ..]: &[u8; ENTRY_BYTES]| {
            let id = u32::from_le_bytes(id);
            let tag = match u16::from_le_bytes([tag0, tag1]) {
                0x01 => Tag::Owner,
                0x02 => Tag::User(id),
                0x04 => Tag::OwningGroup,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Others,
                _ => return Err(AclError::Entries),
            };
            let permissions = u16::from_le_bytes([permissions0, permissions1]);
            let permissions = u8::try_from(permissions).map_err(|_| AclError::Entries)?;
            Ok(Entry { tag, permissions })
        };
        Self::new(entries.iter().map(decode).collect::<Result<_, _>>()?)
    }

    /// Encodes an extended attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.tag.encode();
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(entry.permissions).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Returns the value to store; `None` if nine permission bits can express the list.
    fn stored(&self) -> Option<Vec<u8>> {
        (self.entries.len() > 3).then(|| self.to_bytes())
    }

    /// The nine permission bits that stat shows: owner, mask (or owning group), others.
    pub fn mode(&self) -> u16 {
        let group_class = self.group_class();
        let bits = |entry: &Entry| shift(entry.tag, group_class).map_or(0, |by| u16::from(entry.permissions) << by);
        self.entries.iter().map(bits).sum()
    }

    fn group_class(&self) -> Tag {
        if self.entries.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// Applies `change(old permissions, mode's permissions)` to the entries that the mode's bits show.
    fn merge_mode(&mut self, mode: u16, change: impl Fn(u8, u8) -> u8) {
        let group_class = self.group_class();
        for entry in &mut self.entries {
            if let Some(by) = shift(entry.tag, group_class) {
                entry.permissions = change(entry.permissions, (mode >> by & 7) as u8);
            }
        }
    }
}

fn shift(tag: Tag, group_class: Tag) -> Option<u16> {
    match tag {
        Tag::Owner => Some(6),
        Tag::Others => Some(0),
        tag if tag == group_class => Some(3),
        _ => None,
    }
}

/// The effect of setting an access list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessChange {
    /// The file's new mode (0o7777).
    pub mode: u16,
    /// The value to store. `None`: the mode expresses the list, so remove a stored one.
    pub stored: Option<Vec<u8>>,
}

/// Sets an access list on a file of this mode. Linux clears the setgid bit unless the caller is in the file's group or privileged;
/// `may_keep_setgid` says whether that is so.
pub fn set_access(value: &[u8], mode: u16, may_keep_setgid: bool) -> Result<AccessChange, AclError> {
    let acl = Acl::parse(value)?;
    let kept = if may_keep_setgid { mode & !0o777 } else { mode & !0o777 & !SETGID };
    Ok(AccessChange { mode: kept | acl.mode(), stored: acl.stored() })
}

/// Returns the access list after chmod to `mode`.
pub fn chmod(value: &[u8], mode: u16) -> Result<Vec<u8>, AclError> {
    let mut acl = Acl::parse(value)?;
    acl.merge_mode(mode, |_, from_mode| from_mode);
    Ok(acl.to_bytes())
}

/// The mode and lists that a new file inherits from its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// Its mode (0o7777).
    pub mode: u16,
    /// Its access list, if the mode cannot express it.
    pub access: Option<Vec<u8>>,
    /// Its default list (directories).
    pub default: Option<Vec<u8>>,
}

/// Returns mode and lists of a new `kind` in a directory with the default list `default_acl`, when the caller asks for `mode`.
pub fn inherit(default_acl: Option<&[u8]>, mode: u16, umask: u16, kind: FileKind) -> Result<Inherited, AclError> {
    let Some(value) = default_acl.filter(|_| kind != FileKind::Symlink) else {
        let mode = if kind == FileKind::Symlink { mode } else { mode & !(umask & 0o777) };
        return Ok(Inherited { mode, access: None, default: None });
    };
    let mut acl = Acl::parse(value)?;
    acl.merge_mode(mode, |permissions, from_mode| permissions & from_mode);
    Ok(Inherited {
        mode: mode & !0o777 | acl.mode(),
        access: acl.stored(),
        default: (kind == FileKind::Directory).then(|| value.to_vec()),
    })
}

#[cfg(test)]
#[path = "acl_tests.rs"]
mod tests;
