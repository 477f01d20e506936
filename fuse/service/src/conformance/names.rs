//! Creating, finding, listing and removing names.

use super::{Check, Client, READ_WRITE, bad, good};
use crate::{DirectoryEntry, Errno, FileKind, Listing, NewNode, NodeContent, ROOT_INO, RenameFlags};

pub(super) const CHECKS: &[Check] = &[
    ("the root is an empty directory", root_is_empty),
    ("a name exists once", name_exists_once),
    ("names that cannot be", impossible_names),
    ("listing goes on while names come and go", listing_while_changing),
    ("who reads up to the end meets each entry once, whatever is renamed", listing_while_renaming),
    ("listing with attributes counts as lookup", listing_with_attributes),
    ("unlink and rmdir refuse the other's kind", wrong_removal),
    ("link counts", link_counts),
    ("more than 65,000 links and subdirectories", many_links),
    ("an unlinked open file lives until it is closed", unlinked_open_file),
    ("nothing can be created in a removed directory", removed_directory),
];

fn root_is_empty(client: &Client) {
    let root = client.stat(ROOT_INO);
    assert_eq!((root.ino, root.kind, root.nlink), (ROOT_INO, FileKind::Directory, 2));
    assert_eq!(client.list(ROOT_INO, 10), []);
    assert_eq!(client.service.parent(ROOT_INO), Ok(ROOT_INO));
    bad(client.find(ROOT_INO, "absent"), Errno::ENOENT);
    let statistics = good(client.service.statistics());
    assert_eq!(statistics.name_bytes_max, 255);
    assert!(statistics.block_bytes.is_power_of_two() && statistics.blocks_free <= statistics.blocks);
}

fn name_exists_once(client: &Client) {
    let ino = client.file(ROOT_INO, "name");
    for content in [NodeContent::Regular, NodeContent::Directory, NodeContent::Symlink(b"x")] {
        bad(client.make_in(ROOT_INO, "name", content), Errno::EEXIST);
    }
    let node = NewNode { parent: ROOT_INO, name: b"name", mode: 0o644, umask: 0 };
    bad(client.service.create(super::ROOT, node, READ_WRITE), Errno::EEXIST);
    bad(client.service.link(ino, ROOT_INO, b"name"), Errno::EEXIST);
    bad(client.make_in(ino, "below", NodeContent::Regular), Errno::ENOTDIR);
    bad(client.find(ino, "below"), Errno::ENOTDIR);
    bad(client.make_in(u64::MAX - 5, "below", NodeContent::Regular), Errno::ENOENT);
}

fn impossible_names(client: &Client) {
    let long = "x".repeat(256);
    bad(client.make_in(ROOT_INO, &long, NodeContent::Regular), Errno::ENAMETOOLONG);
    bad(client.find(ROOT_INO, &long), Errno::ENAMETOOLONG);
    for (name, error) in [("", Errno::ENOENT), ("a/b", Errno::EINVAL), ("a\0b", Errno::EINVAL)] {
        bad(client.make_in(ROOT_INO, name, NodeContent::Regular), error);
    }
    assert_eq!(client.list(ROOT_INO, 10), []);
}

fn listing_while_changing(client: &Client) {
    for number in 0..100 {
        client.file(ROOT_INO, &format!("old {number}"));
    }
    let first = good(client.service.read_directory(ROOT_INO, 0, 40, Listing::Names));
    for entry in &first {
        good(client.service.unlink(ROOT_INO, &entry.name));
    }
    for number in 0..30 {
        client.file(ROOT_INO, &format!("new {number}"));
    }
    let mut rest = Vec::new();
    let mut after = first[39].cookie;
    loop {
        let batch = good(client.service.read_directory(ROOT_INO, after, 7, Listing::Names));
        let Some(last) = batch.last() else { break };
        after = last.cookie;
        rest.extend(batch.into_iter().map(|entry| entry.name));
    }
    let old = rest.iter().filter(|name| name.starts_with(b"old")).count();
    assert_eq!(old, 60, "each name that stayed is listed once");
    let mut unique = rest.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), rest.len(), "no name is listed twice");
}

/// Reads up to the directory's present end, and calls `each` with every entry before it reads on.
fn read_to_the_end(client: &Client, directory: u64, each: &dyn Fn(usize, &DirectoryEntry)) -> Vec<DirectoryEntry> {
    let end = client.service.directory_end(directory);
    let mut read: Vec<DirectoryEntry> = Vec::new();
    loop {
        let after = read.last().map_or(0, |entry| entry.cookie);
        let batch = good(client.service.read_directory(directory, after, 7, Listing::Names));
        let count = read.len();
        read.extend(batch.into_iter().filter(|entry| entry.cookie < end));
        if read.len() == count {
            return read;
        }
        assert!(read.len() <= 1000, "reading goes on without end");
        (count..read.len()).for_each(|number| each(number, &read[number]));
    }
}

fn listing_while_renaming(client: &Client) {
    const COUNT: usize = 100;
    let (directory, other) = (client.directory(ROOT_INO, "directory"), client.directory(ROOT_INO, "other"));
    let mut inodes: Vec<u64> = (0..COUNT).map(|number| client.file(directory, &format!("old {number}"))).collect();
    inodes.sort_unstable();
    let rename = |from: u64, name: &[u8], to: u64, to_name: &[u8]| {
        good(client.service.rename(from, name, to, to_name, RenameFlags::default()));
    };
    let inodes_of = |read: &[DirectoryEntry]| {
        let mut found: Vec<u64> = read.iter().map(|entry| entry.ino).collect();
        found.sort_unstable();
        found
    };
    // To a new name, and back, as some programs do. Then also entries that were not read yet.
    let renamed = read_to_the_end(client, directory, &|number, entry| {
        rename(directory, &entry.name, directory, b"moment");
        rename(directory, b"moment", directory, &entry.name);
        rename(directory, &entry.name, directory, format!("new {number}").as_bytes());
    });
    assert_eq!(inodes_of(&renamed), inodes, "an entry that stays is met once, under whichever name");
    let ahead = read_to_the_end(client, directory, &|number, _| {
        let last = COUNT - 1 - number;
        let name = format!("new {last}");
        rename(directory, name.as_bytes(), directory, format!("newer {last}").as_bytes());
    });
    assert_eq!(inodes_of(&ahead), inodes, "those that are renamed before they are read, too");
    // An entry that leaves and comes back is new.
    let moved = read_to_the_end(client, directory, &|_, entry| {
        rename(directory, &entry.name, other, &entry.name);
        rename(other, &entry.name, directory, &entry.name);
    });
    assert_eq!(inodes_of(&moved), inodes);
    // One new name for each entry that is read.
    let before = client.service.directory_end(directory);
    let read = read_to_the_end(client, directory, &|number, _| {
        client.file(directory, &format!("added {number}"));
    });
    assert_eq!(inodes_of(&read), inodes);
    assert!(client.list(directory, 50).iter().filter(|entry| entry.cookie >= before).count() == COUNT);
    assert_eq!(read_to_the_end(client, directory, &|_, _| ()).len(), 2 * COUNT, "who begins anew finds the new ones");
}

fn listing_with_attributes(client: &Client) {
    let ino = client.file_with("file", b"content");
    client.service.forget(ino, 1);
    let listed = good(client.service.read_directory(ROOT_INO, 0, 10, Listing::Attributes));
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].attributes, Some(client.stat(ino)));
    good(client.unlink(ROOT_INO, "file"));
    assert_eq!(client.stat(ino).nlink, 0, "the listing's reference keeps the inode");
    client.service.forget(ino, 1);
    bad(client.service.attributes(ino), Errno::ENOENT);
}

fn wrong_removal(client: &Client) {
    client.file(ROOT_INO, "file");
    let directory = client.directory(ROOT_INO, "directory");
    client.file(directory, "inside");
    bad(client.unlink(ROOT_INO, "directory"), Errno::EISDIR);
    bad(client.service.remove_directory(ROOT_INO, b"file"), Errno::ENOTDIR);
    bad(client.service.remove_directory(ROOT_INO, b"directory"), Errno::ENOTEMPTY);
    bad(client.service.remove_directory(ROOT_INO, b"absent"), Errno::ENOENT);
    bad(client.unlink(ROOT_INO, "absent"), Errno::ENOENT);
    good(client.unlink(directory, "inside"));
    good(client.service.remove_directory(ROOT_INO, b"directory"));
    bad(client.find(ROOT_INO, "directory"), Errno::ENOENT);
    assert_eq!(client.sorted_names(ROOT_INO), ["file"]);
}

fn link_counts(client: &Client) {
    let directory = client.directory(ROOT_INO, "directory");
    let inner = client.directory(directory, "inner");
    assert_eq!((client.stat(ROOT_INO).nlink, client.stat(directory).nlink, client.stat(inner).nlink), (3, 3, 2));
    assert_eq!(client.service.parent(inner), Ok(directory));
    good(client.service.remove_directory(directory, b"inner"));
    assert_eq!(client.stat(directory).nlink, 2);

    let file = client.file_with("file", b"shared");
    assert_eq!(good(client.service.link(file, directory, b"again")).nlink, 2);
    assert_eq!(good(client.find(directory, "again")).ino, file);
    good(client.unlink(ROOT_INO, "file"));
    assert_eq!(client.stat(file).nlink, 1);
    assert_eq!(client.read_all(file), b"shared");
    bad(client.service.link(directory, ROOT_INO, b"hard"), Errno::EPERM);
    good(client.unlink(directory, "again"));
    bad(client.service.link(file, ROOT_INO, b"resurrected"), Errno::ENOENT);
}

fn many_links(client: &Client) {
    const MANY: u32 = 65_100;
    let (links, directories) = (client.directory(ROOT_INO, "links"), client.directory(ROOT_INO, "directories"));
    let file = client.file(ROOT_INO, "file");
    for number in 0..MANY {
        let name = format!("{number}");
        good(client.service.link(file, links, name.as_bytes()));
        client.service.forget(file, 1);
        client.directory(directories, &name);
    }
    assert_eq!((client.stat(file).nlink, client.stat(directories).nlink), (MANY + 1, MANY + 2));
    assert_eq!((client.list(links, 1000).len(), client.list(directories, 1000).len()), (65_100, 65_100));
    for number in 0..MANY {
        good(client.unlink(links, &format!("{number}")));
    }
    assert_eq!(client.stat(file).nlink, 1);
}

fn unlinked_open_file(client: &Client) {
    let ino = client.file_with("file", b"before");
    client.opened(ino, READ_WRITE, |handle| {
        good(client.unlink(ROOT_INO, "file"));
        client.service.forget(ino, 1);
        client.write_all(ino, handle, 6, b" and after");
        assert_eq!(client.read_open(ino, handle, 0, 100), b"before and after");
        assert_eq!(client.stat(ino).nlink, 0);
        let again = client.file(ROOT_INO, "file");
        assert_ne!(again, ino, "an inode in use is not reused");
    });
    bad(client.service.attributes(ino), Errno::ENOENT);
}

fn removed_directory(client: &Client) {
    let directory = client.directory(ROOT_INO, "directory");
    good(client.service.remove_directory(ROOT_INO, b"directory"));
    bad(client.make_in(directory, "file", NodeContent::Regular), Errno::ENOENT);
    let file = client.file(ROOT_INO, "file");
    bad(client.service.link(file, directory, b"file"), Errno::ENOENT);
    assert_eq!(client.list(directory, 10), []);
}
