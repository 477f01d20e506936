//! The extended attributes of an entry of a disk, as a frozen tree has them.

use dedupfs_service::{acl, check_xattr_name};
use dedupfs_store::tree::Attribute;

use super::super::disk::{self, Place, XattrSpace};
use super::super::tally::{Outcome, Trouble, reading};

/// Largest set of extended attributes.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 20;

/// Reads extended attributes, access lists among them, in order. `mode` is that of the copy. Optional ones are left out on request. Those
/// that cannot be read, or that the pool does not take, are told to `missing`.
///
/// # Errors
/// Those that concern all further entries.
pub(super) fn copied(
    from: Place<'_>,
    (mode, without_optional): (u16, bool),
    space: &mut XattrSpace,
    missing: &mut dyn FnMut(String),
) -> Outcome<Vec<Attribute>> {
    let (mut set, mut bytes): (Vec<Attribute>, usize) = (Vec::new(), 0);
    let take = |name: &std::ffi::CStr, value: &[u8]| {
        let name = name.to_bytes();
        let is_optional = disk::is_optional(name);
        if is_optional && without_optional {
            return Ok(());
        }
        let mut refused = |why: &str| {
            let name = String::from_utf8_lossy(name).into_owned();
            missing(format!("the pool does not take the extended attribute: {why} ({name})"));
        };
        bytes += name.len() + value.len();
        match check_xattr_name(name) {
            Err(_) if is_optional => {}
            Err(errno) => refused(&errno.to_string()),
            Ok(()) if bytes > ATTRIBUTES_BYTES_MAX => refused("too many bytes of attributes"),
            Ok(()) if name == acl::ACCESS_XATTR => match acl::set_access(value, mode, true) {
                Ok(change) => set.extend(change.stored.map(|stored| (name.to_vec(), stored))),
                Err(_) => refused("an access list of a wrong form"),
            },
            Ok(()) if name == acl::DEFAULT_XATTR => match acl::Acl::parse(value) {
                Ok(list) => set.push((name.to_vec(), list.to_bytes())),
                Err(_) => refused("an access list of a wrong form"),
            },
            Ok(()) => set.push((name.to_vec(), value.to_vec())),
        }
        Ok(())
    };
    match from.for_each_xattr(space, |errno| reading("cannot read extended attributes")(errno), take) {
        Err(Trouble::One(what) | Trouble::Unreadable(what)) => missing(what),
        outcome => outcome?,
    }
    set.sort_unstable();
    set.dedup_by(|one, other| one.0 == other.0);
    Ok(set)
}
