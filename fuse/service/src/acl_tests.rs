use super::*;

fn acl(entries: &[(Tag, u8)]) -> Acl {
    Acl::new(entries.iter().map(|&(tag, permissions)| Entry { tag, permissions }).collect()).unwrap()
}

fn extended() -> Acl {
    acl(&[
        (Tag::Owner, 7),
        (Tag::User(1000), 6),
        (Tag::OwningGroup, 5),
        (Tag::Group(50), 4),
        (Tag::Mask, 6),
        (Tag::Others, 1),
    ])
}

#[test]
fn bytes_are_the_kernels() {
    let bytes = acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Others, 0)]).to_bytes();
    let expected = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0];
    assert_eq!(bytes[..24], expected);
    assert_eq!(bytes[24..], [255, 255, 255, 255]);
}

#[test]
fn round_trip() {
    assert_eq!(Acl::parse(&extended().to_bytes()), Ok(extended()));
}

#[test]
fn malformed_values_are_errors() {
    let good = extended().to_bytes();
    for cut in 0..good.len() {
        assert!(Acl::parse(&good[..cut]).is_err(), "cut at {cut}");
    }
    let mut wrong_version = good.clone();
    wrong_version[0] = 3;
    assert_eq!(Acl::parse(&wrong_version), Err(AclError::Encoding { length_bytes: good.len() }));
    let mut wrong_tag = good.clone();
    wrong_tag[4] = 3;
    assert_eq!(Acl::parse(&wrong_tag), Err(AclError::Entries));
    let mut wrong_permissions = good.clone();
    wrong_permissions[6] = 8;
    assert_eq!(Acl::parse(&wrong_permissions), Err(AclError::Entries));
    let mut wrong_order = good[..4].to_vec();
    for entry in good[4..].chunks(8).rev() {
        wrong_order.extend_from_slice(entry);
    }
    assert_eq!(Acl::parse(&wrong_order), Err(AclError::Entries));
}

#[test]
fn named_entries_need_a_mask() {
    let entries = [(Tag::Owner, 7), (Tag::User(1), 7), (Tag::OwningGroup, 7), (Tag::Others, 7)];
    let entries = entries.map(|(tag, permissions)| Entry { tag, permissions });
    assert_eq!(Acl::new(entries.to_vec()), Err(AclError::Entries));
}

#[test]
fn mode_shows_the_mask_as_group() {
    assert_eq!(extended().mode(), 0o761);
    assert_eq!(acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Others, 0)]).mode(), 0o640);
}

#[test]
fn setting_a_minimal_list_stores_nothing() {
    let value = acl(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Others, 4)]).to_bytes();
    assert_eq!(set_access(&value, 0o4755, true), Ok(AccessChange { mode: 0o4644, stored: None }));
}

#[test]
fn setting_a_list_as_a_stranger_clears_setgid() {
    let value = extended().to_bytes();
    assert_eq!(set_access(&value, 0o2700, true).unwrap().mode, 0o2761);
    assert_eq!(set_access(&value, 0o2700, false).unwrap(), AccessChange { mode: 0o761, stored: Some(value) });
}

#[test]
fn chmod_changes_the_mask_not_the_group() {
    let changed = Acl::parse(&chmod(&extended().to_bytes(), 0o4570).unwrap()).unwrap();
    let permissions: Vec<u8> = changed.entries.iter().map(|entry| entry.permissions).collect();
    assert_eq!(permissions, [5, 6, 5, 4, 7, 0]);
    assert_eq!(changed.mode(), 0o570);
}

#[test]
fn inheriting_replaces_the_umask() {
    let value = extended().to_bytes();
    let file = inherit(Some(&value), 0o666, 0o077, FileKind::Regular).unwrap();
    assert_eq!(file.mode, 0o660);
    assert_eq!(Acl::parse(&file.access.unwrap()).unwrap().mode(), 0o660);
    assert_eq!(file.default, None);
    let directory = inherit(Some(&value), 0o1777, 0o077, FileKind::Directory).unwrap();
    assert_eq!(directory.mode, 0o1761);
    assert_eq!(directory.default, Some(value.clone()));
    let link = inherit(Some(&value), 0o777, 0o077, FileKind::Symlink).unwrap();
    assert_eq!(link, Inherited { mode: 0o777, access: None, default: None });
}

#[test]
fn inheriting_nothing_applies_the_umask() {
    let plain = inherit(None, 0o4777, 0o027, FileKind::Regular).unwrap();
    assert_eq!(plain, Inherited { mode: 0o4750, access: None, default: None });
    let minimal = acl(&[(Tag::Owner, 7), (Tag::OwningGroup, 5), (Tag::Others, 5)]).to_bytes();
    let from_minimal = inherit(Some(&minimal), 0o666, 0o777, FileKind::Regular).unwrap();
    assert_eq!(from_minimal, Inherited { mode: 0o644, access: None, default: None });
}
