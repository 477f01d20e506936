//! Real mounts: the kernel's view of the reference model. They need /dev/fuse and root, and fail without.

#[path = "mounted/mod.rs"]
mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dedupfs_fuse::{MountError, MountOptions, mount};
use dedupfs_service::{Caller, FileContent, FileService, MemoryOptions, MemoryService, NewNode, NodeContent, ROOT_INO};

use mounted::{Mounted, attempt, run};

fn patterned(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn reads_and_writes(mounted: &Mounted) {
    let content = patterned(3_000_001);
    let file = mounted.path("file");
    fs::write(&file, &content).unwrap();
    assert!(fs::read(&file).unwrap() == content);
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.len(), metadata.blksize()), (3_000_001, 1 << 20));
    let open = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    open.write_all_at(b"overwritten", 1_000_000).unwrap();
    open.sync_all().unwrap();
    let mut back = [0; 11];
    File::open(&file).unwrap().read_exact_at(&mut back, 1_000_000).unwrap();
    assert_eq!(&back, b"overwritten", "another handle sees the write, cached pages or not");
    open.set_len(5).unwrap();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"+tail").unwrap();
    assert_eq!(fs::read(&file).unwrap(), [&content[..5], b"+tail"].concat());
    File::open(mounted.session.mountpoint()).unwrap().sync_all().unwrap();
}

#[test]
fn content_with_direct_io() {
    reads_and_writes(&Mounted::new());
}

#[test]
fn content_through_the_page_cache() {
    let options = MountOptions { direct_io_writes: false, ..MountOptions::default() };
    reads_and_writes(&Mounted::with(MemoryOptions::default(), options));
}

#[test]
fn content_with_slow_calls_and_several_threads() {
    let memory = MemoryOptions { quick: false, ..MemoryOptions::default() };
    let mounted = Mounted::with(memory, MountOptions { session_threads: 3, ..MountOptions::default() });
    reads_and_writes(&mounted);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = mounted.path(format!("parallel {number}"));
            scope.spawn(move || {
                for round in 0..20_usize {
                    let content = patterned(1000 * round + number);
                    fs::write(&path, &content).unwrap();
                    assert!(fs::read(&path).unwrap() == content);
                }
            });
        }
    });
    mounted.unmount();
}

#[test]
fn mapped_writes_on_an_appending_handle_go_where_they_belong() {
    for direct_io_writes in [false, true] {
        let options = MountOptions { direct_io_writes, ..MountOptions::default() };
        let mounted = Mounted::with(MemoryOptions::default(), options);
        let script = "import mmap,os\n\
            f=os.open('file',os.O_RDWR|os.O_CREAT|os.O_APPEND)\n\
            os.write(f,b'x'*10000)\n\
            m=mmap.mmap(f,10000)\n\
            m[5000:5005]=b'mmap!'\n\
            m.flush();m.close();os.close(f)";
        run(mounted.session.mountpoint(), &format!("python3 -c \"{script}\""));
        let content = fs::read(mounted.path("file")).unwrap();
        assert_eq!((content.len(), &content[4999..5006]), (10_000, &b"xmmap!x"[..]), "direct: {direct_io_writes}");
    }
}

#[test]
fn rsync_round_trip_keeps_everything() {
    let source = tempfile::tempdir().unwrap();
    let make = r#"
        mkdir -p tree/empty tree/deep/er && cd tree
        head -c 300000 /dev/urandom > random; : > nothing; printf hello > "deep/er/hello"
        ln random deep/hard; ln random deep/er/hard2
        ln -s random relative; ln -s /no/such/thing dangling; ln -s $'odd\ntarget' $'odd \xff link'
        mknod char c 1 3; mknod block b 259 300; mkfifo fifo
        python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
        printf 1 > $'new\nline'; printf 2 > $'\xff\xfe'; printf 3 > ' lead and trail '; printf 4 > -rf
        printf 5 > "$(printf 'x%.0s' {1..255})"
        truncate -s 1M sparse; printf x | dd of=sparse bs=1 seek=700000 conv=notrunc status=none
        setfattr -n user.note -v "some value" random; setfattr -n trusted.x -v 0x00ff00 deep
        setfattr -h -n trusted.link -v y dangling; setfattr -n user.empty nothing
        setfacl -m u:1234:rwx,g:4321:r-x random; setfacl -d -m u:77:rwx,o::- deep; setfacl -m m::r nothing
        chown 1000:1001 random; chown -h 5:6 dangling; chmod 6755 nothing; chmod 1777 empty; chmod 000 fifo
        touch -h -d '2001-02-03 04:05:06.123456789 UTC' dangling
        touch -d '1960-01-02 03:04:05.987654321 UTC' random
        touch -d '2040-05-06 07:08:09.000000001 UTC' deep/er empty
    "#;
    run(source.path(), make);
    let mounted = Mounted::new();
    let mountpoint = mounted.session.mountpoint().display().to_string();
    run(source.path(), &format!("rsync -@-1 -aHAX --numeric-ids tree/ {mountpoint}/copy"));
    run(source.path(), &format!("rsync -@-1 -aHAX --numeric-ids {mountpoint}/copy/ back"));
    for restored in [format!("{mountpoint}/copy"), "back".to_owned()] {
        let changes =
            run(source.path(), &format!("rsync -@-1 -aHAXic --numeric-ids --delete --dry-run tree/ {restored}"));
        assert_eq!(changes, "", "{restored} differs");
        let describe = |place: &str| {
            let list = r"find . -printf '%P|%y|%m|%U:%G|%n|%l|%T@\n' | sed 's/^\(.*|d|.*|\)[0-9]*|/\1/' | sort";
            let xattrs = "getfattr -d -m - -h -e hex -R . | sort; find . -print0 | sort -z | xargs -0 getfacl -n -P";
            let sizes = "find . -type f -printf '%P %s\n' | sort; find . -type f -print0 | sort -z | xargs -0 md5sum";
            let devices = "stat -c '%n %t:%T' char block";
            run(source.path(), &format!("cd {place}; {list}; {xattrs}; {sizes}; {devices}"))
        };
        let (expected, found) = (describe("tree"), describe(&restored));
        assert!(expected.contains("user.note") && expected.contains("user:1234:rwx") && expected.contains("103:12c"));
        assert_eq!(expected, found, "{restored} differs");
    }
    mounted.unmount();
}

#[test]
fn regression_times_before_1970_keep_their_nanoseconds() {
    let mounted = Mounted::new();
    run(mounted.session.mountpoint(), "touch -d '1969-12-31 23:59:58.8 UTC' file");
    let metadata = fs::metadata(mounted.path("file")).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 800_000_000));
    assert_eq!(mounted.service.lookup(ROOT_INO, b"file").unwrap().mtime.nanos, 800_000_000);
}

#[test]
fn access_lists_work_in_the_kernel() {
    let mounted = Mounted::new();
    let mountpoint = mounted.session.mountpoint();
    run(mountpoint, "chmod 711 .; mkdir d; setfacl -d -m u:1000:rwx d; umask 077; touch d/f; mkdir d/sub");
    fs::write(mounted.path("d/f"), "secret").unwrap();
    assert_eq!(run(mountpoint, "stat -c %a d/f d/sub"), "664\n775\n", "the default list replaces the umask");
    assert!(run(mountpoint, "getfacl -n d/sub").contains("default:user:1000:rwx"));
    run(mountpoint, "chmod 640 d/f");
    assert!(run(mountpoint, "getfacl -n d/f").contains("mask::r--"), "chmod changes the mask");
    run(mountpoint, "setfacl -b d/f; setfacl -k d; chmod 600 d/f; setfacl -m u:1000:r d/f");
    assert_eq!(run(mountpoint, "stat -c %a d/f"), "640\n");
    let read_as =
        |uid: u32| attempt(mountpoint, &format!("setpriv --reuid={uid} --regid={uid} --clear-groups cat d/f"));
    assert_eq!(read_as(1000).stdout, b"secret", "the kernel grants what the list grants");
    assert!(!read_as(1001).status.success(), "and nothing else");
}

#[test]
fn regression_unprivileged_writes_drop_setuid_in_the_kernels_view_too() {
    for direct_io_writes in [false, true] {
        let options = MountOptions { allow_other: true, direct_io_writes, ..MountOptions::default() };
        let mounted = Mounted::with(MemoryOptions::default(), options);
        let mountpoint = mounted.session.mountpoint();
        run(mountpoint, "chmod 755 .; printf x > f; chown 0:1000 f; chmod 6775 f");
        let as_user = |command: &str| {
            run(mountpoint, &format!("setpriv --reuid=1000 --regid=1000 --clear-groups bash -c '{command}'"))
        };
        as_user("printf y >> f");
        let kept = mounted.service.lookup(ROOT_INO, b"f").unwrap().mode;
        assert_eq!(kept, 0o775, "direct: {direct_io_writes}");
        assert_eq!(run(mountpoint, "stat -c %a f; cat f"), "775\nxy", "direct: {direct_io_writes}");
        run(mountpoint, "chmod 6775 f; stat f");
        as_user(": > f");
        assert_eq!(run(mountpoint, "stat -c '%a %s' f"), "775 0\n", "direct: {direct_io_writes}");
    }
}

/// The right to bind any port.
const CAPABILITY: &str = "0x0100000200040000000000000000000000000000";
/// Copies within the file `f` as another user.
const COPY: &str = "import os; os.setgroups([]); os.setgid(1000); os.setuid(1000)
f=os.open('f',os.O_RDWR); assert os.copy_file_range(f,f,9,0,5000) == 9";

#[test]
fn a_new_owner_or_length_and_every_change_of_content_drop_setuid() {
    for direct_io_writes in [false, true] {
        let options = MountOptions { allow_other: true, direct_io_writes, ..MountOptions::default() };
        let mounted = Mounted::with(MemoryOptions::default(), options);
        let mountpoint = mounted.session.mountpoint();
        run(mountpoint, "chmod 755 .; head -c 9000 /dev/urandom > f; chown 1000:1000 f; mkdir d; chmod 6775 d");
        let user = "setpriv --reuid=1000 --regid=1000 --clear-groups";
        for (command, left) in [
            ("chown 0:1000 f; chown 1000 f".to_owned(), "775"),
            (format!("{user} chgrp 1000 f"), "775"),
            ("python3 -c \"import os; os.chown('f',-1,-1)\"".to_owned(), "775"),
            (format!("{user} truncate -s 5000 f"), "775"),
            (format!("{user} fallocate -l 9000 f"), "775"),
            (format!("{user} fallocate -p -o 0 -l 4096 f"), "775"),
            (format!("{user} dd if=f of=f bs=1 count=1 conv=notrunc status=none"), "775"),
            (format!("python3 -c \"{COPY}\""), "775"),
            ("truncate -s 9000 f".to_owned(), "6775"),
            ("dd if=f of=f bs=1 count=1 conv=notrunc status=none".to_owned(), "6775"),
            ("fallocate -p -o 0 -l 4096 f".to_owned(), "6775"),
        ] {
            run(mountpoint, "chmod 6775 f");
            run(mountpoint, &command);
            assert_eq!(run(mountpoint, "stat -c %a f"), format!("{left}\n"), "{command}, direct: {direct_io_writes}");
            let kept = mounted.service.lookup(ROOT_INO, b"f").unwrap().mode;
            assert_eq!(format!("{kept:o}"), left, "{command}, direct: {direct_io_writes}");
            // With capabilities root's changes may take the bits, too.
            run(mountpoint, &format!("chmod 6775 f; setfattr -n security.capability -v {CAPABILITY} f; {command}"));
            let listed = run(mountpoint, "getfattr -m security f");
            assert!(!listed.contains("capability"), "{command}, direct: {direct_io_writes}");
            let kept = run(mountpoint, "stat -c %a f");
            assert!(kept == "775\n" || kept == format!("{left}\n"), "{kept} after {command}");
        }
        run(mountpoint, "chown 7:8 d");
        assert_eq!(run(mountpoint, "stat -c %a d"), "6775\n");
    }
}

#[test]
fn trusted_attributes_are_hidden_from_users() {
    let mounted = Mounted::new();
    let mountpoint = mounted.session.mountpoint();
    run(mountpoint, "chmod 755 .; touch f; setfattr -n trusted.a -v 1 f; setfattr -n user.b -v 2 f");
    assert!(run(mountpoint, "getfattr -m - f").contains("trusted.a"));
    let seen = run(mountpoint, "setpriv --reuid=1000 --regid=1000 --clear-groups getfattr -m - f");
    assert!(seen.contains("user.b") && !seen.contains("trusted"), "{seen}");
}

#[test]
fn large_directories_are_listed_whole_and_forgotten() {
    let mounted = Mounted::new();
    let directory = mounted.path("many");
    fs::create_dir(&directory).unwrap();
    let parent = fs::metadata(&directory).unwrap().ino();
    for number in 0..2_000 {
        // Behind the kernel's back, so that it has to ask for names and attributes.
        let name = format!("{number:0100}");
        let node = NewNode { parent, name: name.as_bytes(), mode: 0o644, umask: 0 };
        let made = mounted.service.make(Caller::default(), node, NodeContent::Regular).unwrap();
        mounted.service.forget(made.ino, 1);
    }
    let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected: Vec<_> =
        (0..2_000).map(|number| format!("{number:0100}").into()).collect::<Vec<std::ffi::OsString>>();
    assert_eq!(names, expected);
    assert_eq!(run(&directory, "ls -lai | wc -l"), "2003\n");
    assert_eq!(run(&directory, "stat -c %i .. ; ls -ai | awk '$2==\"..\"{print $1}'"), "1\n1\n");
    fs::remove_dir_all(&directory).unwrap();
    mounted.unmount();
    let kept = mounted.service.inode_count();
    assert!(kept < 2_002, "removed inodes are freed as the kernel forgets them: {kept} left");
}

#[test]
fn regression_an_inode_that_cannot_be_read_hides_no_other_name() {
    let numbers = |names: &[String]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<u64>>();
    let made = |service: &MemoryService| {
        let make = |number: u64| {
            let node = NewNode { parent: 1, name: &number.to_string().into_bytes(), mode: 0o644, umask: 0 };
            let made = service.make(Caller::default(), node, NodeContent::Regular).unwrap();
            service.forget(made.ino, 1);
            made.ino
        };
        (0..300).map(make).collect::<Vec<_>>()
    };
    let damaged = made(&MemoryService::new())[150];
    let memory = MemoryOptions { damaged: Some(damaged), ..MemoryOptions::default() };
    let mounted = Mounted::with(memory, MountOptions::default());
    assert_eq!(made(&mounted.service)[150], damaged);
    let list =
        || fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found = numbers(&list().collect::<Vec<_>>());
    found.sort_unstable();
    assert_eq!(found, (0..300).collect::<Vec<_>>());
    for number in [149_u64, 150, 151] {
        let error = fs::metadata(mounted.path(number.to_string())).err().and_then(|error| error.raw_os_error());
        assert_eq!(error, (number == 150).then_some(libc::EIO), "{number}");
    }
    fs::remove_file(mounted.path("151")).unwrap();
    assert_eq!(list().count(), 299);
}

#[test]
fn open_files_survive_unlink_and_rename_over() {
    let mounted = Mounted::new();
    fs::write(mounted.path("a"), "old a").unwrap();
    fs::write(mounted.path("b"), "new").unwrap();
    let mut open = File::open(mounted.path("a")).unwrap();
    fs::rename(mounted.path("b"), mounted.path("a")).unwrap();
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!((content.as_str(), fs::read_to_string(mounted.path("a")).unwrap().as_str()), ("old a", "new"));
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let script = "import os,ctypes; l=ctypes.CDLL(None,use_errno=True); \
        f=lambda a,b,g: l.renameat2(-100,a,-100,b,g) and ctypes.get_errno(); \
        open('x','w').write('x'); open('y','w').write('y'); \
        print(f(b'x',b'y',1), f(b'x',b'y',2), open('x').read(), f(b'x',b'z',4), os.stat('x').st_rdev)";
    assert_eq!(run(mounted.session.mountpoint(), &format!("python3 -c \"{script}\"")), "17 0 y 0 0\n");
}

#[test]
fn holes_and_allocation() {
    let mounted = Mounted::new();
    let mountpoint = mounted.session.mountpoint();
    let mut file = File::create(mounted.path("f")).unwrap();
    file.seek(SeekFrom::Start(100_000)).unwrap();
    file.write_all(b"data").unwrap();
    run(mountpoint, "fallocate -p -o 99999 -l 2 f; fallocate -l 200000 f");
    let content = fs::read(mounted.path("f")).unwrap();
    assert_eq!((content.len(), &content[99_999..100_004]), (200_000, &b"\0\0ata"[..]));
    run(mountpoint, "cp --sparse=always f g; cmp f g; cp --reflink=auto f h; cmp f h");
}

#[test]
fn statfs_and_the_mount_table() {
    let options = MountOptions {
        source: "pool,with comma".to_owned(),
        no_atime: true,
        extra: vec!["noexec".to_owned()],
        ..MountOptions::default()
    };
    let mounted = Mounted::with(MemoryOptions::default(), options);
    let mountpoint = mounted.session.mountpoint();
    let line = run(mountpoint, "findmnt -n -o FSTYPE,SOURCE,OPTIONS --target .");
    for part in ["fuse.dedupfs", "pool,with comma", "noatime", "noexec", "nodev", "nosuid", "default_permissions"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert_eq!(run(mountpoint, "stat -f -c '%S %l %b' ."), "4096 255 268435456\n");
    let device = fs::metadata(mountpoint).unwrap().dev();
    let readahead = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    assert_eq!(fs::read_to_string(readahead).unwrap().trim(), "2048");
}

#[test]
fn files_are_read_without_being_opened() {
    let directory = tempfile::tempdir().unwrap();
    let service = Arc::new(MemoryService::new());
    let made = |name: &str, content: &[u8]| {
        let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
        let how = dedupfs_service::OpenOptions { write: true, ..Default::default() };
        let (made, opened) = service.create(Caller::default(), node, how).unwrap();
        service.write(Caller::default(), made.ino, opened.handle, 0, content, Default::default()).unwrap();
        service.release(made.ino, opened.handle);
        made.ino
    };
    // More than the adapter keeps handles of.
    let contents: Vec<Vec<u8>> = (0..600).map(|number| patterned(4096 + number)).collect();
    let inos: Vec<u64> = (0..600).map(|number| made(&number.to_string(), &contents[number])).collect();
    let large = patterned(5_000_001);
    made("large", &large);
    for no_open in [false, true] {
        let options = MountOptions { read_only: true, no_open, ..MountOptions::default() };
        let shared: Arc<dyn FileService> = Arc::clone(&service) as _;
        let session = mount(shared, directory.path(), &options).unwrap();
        let path = |name: &str| session.mountpoint().join(name);
        // Handles are numbered: the service tells how many were opened.
        let next_handle = || {
            let opened = service.open(Caller::default(), inos[0], Default::default()).unwrap();
            service.release(inos[0], opened.handle);
            opened.handle
        };
        let before = next_handle();
        let mut files: Vec<File> = (0..600).map(|number| File::open(path(&number.to_string())).unwrap()).collect();
        assert_eq!(next_handle() - before, if no_open { 1 } else { 601 });
        for _ in 0..2 {
            for (file, content) in files.iter_mut().zip(&contents) {
                let mut read = Vec::new();
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_end(&mut read).unwrap();
                assert!(&read == content);
            }
        }
        files[0].sync_all().unwrap();
        assert!(fs::read(path("large")).unwrap() == large);
        std::thread::scope(|scope| {
            for start in [0, 1, 2, 3] {
                let (file, large) = (File::open(path("large")).unwrap(), &large);
                scope.spawn(move || {
                    for at in (start * 1000..large.len() - 5000).step_by(333_333) {
                        let mut read = [0; 5000];
                        file.read_exact_at(&mut read, at as u64).unwrap();
                        assert_eq!(read[..], large[at..at + 5000]);
                    }
                });
            }
        });
        for _ in 0..2 {
            assert_eq!(fs::read_dir(session.mountpoint()).unwrap().count(), 601);
        }
        let refused = fs::write(path("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        drop(files);
        session.unmount(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mounted = Mounted::with(MemoryOptions::default(), MountOptions { read_only: true, ..MountOptions::default() });
    let error = File::create(mounted.path("f")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn regression_the_end_of_the_connection_shows_before_the_session_has_finished() {
    let mounted = Mounted::new();
    let open = File::create(mounted.path("f")).unwrap();
    mounted.session.detach();
    assert!(mounted.session.is_connected(), "a file is open");
    // What is being done for the session keeps it from finishing.
    let shutting_down = mounted.service.hold_shutdown();
    drop(open);
    for _ in 0..500 {
        if !mounted.session.is_connected() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!mounted.session.is_connected());
    assert!(mounted.session.wait_for(Duration::from_millis(100)).is_none(), "the service is shut down behind that");
    drop(shutting_down);
    mounted.session.wait_for(Duration::from_secs(10)).expect("ends").expect("ends well");
    assert!(!mounted.session.is_connected());
}

#[test]
fn unmount_says_busy_and_then_works() {
    let mounted = Mounted::new();
    let open = File::create(mounted.path("f")).unwrap();
    let error = mounted.session.unmount(Duration::from_millis(120)).unwrap_err();
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    assert!(error.to_string().contains("fuser -vm"), "{error}");
    assert!(!mounted.session.is_finished());
    assert!(mounted.path("f").exists(), "it goes on");
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(open);
    });
    mounted.session.unmount(Duration::from_secs(10)).unwrap();
    closing.join().unwrap();
    assert!(mounted.session.is_finished());
    mounted.session.unmount(Duration::ZERO).expect("unmounting twice is fine");
}

#[test]
fn an_unmount_by_others_ends_the_session() {
    for session_threads in [1, 4] {
        let mounted =
            Mounted::with(MemoryOptions::default(), MountOptions { session_threads, ..MountOptions::default() });
        assert!(mounted.session.wait_for(Duration::from_millis(50)).is_none(), "still mounted");
        run(Path::new("/"), &format!("umount {}", mounted.session.mountpoint().display()));
        let ended = mounted.session.wait_for(Duration::from_secs(10));
        assert!(matches!(ended, Some(Ok(()))), "{ended:?}");
        assert!(fs::read_dir(mounted.session.mountpoint()).unwrap().next().is_none());
    }
}

#[test]
fn a_detached_mount_ends_with_its_last_file() {
    let mounted = Mounted::new();
    let mut open =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(mounted.path("f")).unwrap();
    mounted.session.detach();
    assert!(!mounted.path("f").exists(), "gone from the tree");
    open.write_all(b"still works").unwrap();
    assert!(mounted.session.wait_for(Duration::from_millis(50)).is_none());
    drop(open);
    assert!(matches!(mounted.session.wait_for(Duration::from_secs(10)), Some(Ok(()))));
    let ino = mounted.service.lookup(ROOT_INO, b"f").unwrap().ino;
    assert_eq!(mounted.service.attributes(ino).unwrap().size_bytes, 11);
}

#[test]
fn mounting_where_something_is_mounted_is_refused() {
    let mounted = Mounted::new();
    let again = mount(Arc::new(MemoryService::new()), mounted.session.mountpoint(), &MountOptions::default());
    assert!(matches!(again.err(), Some(MountError::AlreadyMounted { .. })));
    fs::create_dir(mounted.path("below")).unwrap();
    let below = mount(Arc::new(MemoryService::new()), &mounted.path("below"), &MountOptions::default()).unwrap();
    fs::write(below.mountpoint().join("f"), "x").unwrap();
    below.unmount(Duration::from_secs(5)).unwrap();
}

#[test]
fn permissions_are_the_kernels_business() {
    let mounted = Mounted::new();
    let mountpoint = mounted.session.mountpoint();
    run(mountpoint, "chmod 755 .; printf x > private; chmod 600 private; mkdir -m 1777 shared");
    let as_user = |command: &str| {
        attempt(mountpoint, &format!("setpriv --reuid=1000 --regid=1000 --clear-groups bash -ec '{command}'"))
    };
    assert!(!as_user("cat private").status.success());
    assert!(!as_user("touch new").status.success());
    assert!(as_user("umask 027; touch shared/mine; mkdir shared/dir").status.success());
    assert_eq!(run(mountpoint, "stat -c '%a %u %g' shared/mine shared/dir"), "640 1000 1000\n750 1000 1000\n");
    fs::set_permissions(mounted.path("shared/mine"), fs::Permissions::from_mode(0o400)).unwrap();
    assert!(!as_user("chown 0 shared/mine").status.success());
}

/// A file whose content cannot be read without a panic.
#[derive(Default)]
struct Cursed;

impl FileContent for Cursed {
    fn len_bytes(&self) -> u64 {
        10
    }
    fn set_len(&mut self, _len_bytes: u64) {}
    fn write_at(&mut self, _offset: u64, _data: &[u8]) {}
    fn read_at(&self, _offset: u64, _len_bytes: u32, _into: &mut Vec<u8>) {
        panic!("this test's service panics on purpose");
    }
    fn zero(&mut self, _offset: u64, _len_bytes: u64) {}
}

#[test]
fn a_panic_of_the_service_is_an_error_of_one_request() {
    for quick in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let service = MemoryService::<Cursed>::with_options(MemoryOptions { quick, ..MemoryOptions::default() });
        let session = mount(Arc::new(service), directory.path(), &MountOptions::default()).unwrap();
        let file = directory.path().join("f");
        File::create(&file).unwrap();
        for _ in 0..3 {
            assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        assert_eq!(fs::metadata(&file).unwrap().len(), 10, "everything else goes on");
        session.unmount(Duration::from_secs(5)).unwrap();
    }
}
