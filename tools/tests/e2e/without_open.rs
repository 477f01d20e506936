//! Mounts for reading with `no_open`: everything is read as with opening, and nothing makes them writable.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;

use crate::command::{DEDUPFS, Tool};
use crate::random::noise;
use crate::site::Site;

/// Reads a tree in many ways; prints the same for the same tree.
const READ: &str = r#"
import ctypes, hashlib, mmap, os, sys
os.chdir(sys.argv[1])
def digest(data): return hashlib.sha256(data).hexdigest()[:16]
for top, directories, files in os.walk('.'):
    directories.sort()
    for name in sorted(files):
        path = os.path.join(top, name)
        if os.path.islink(path):
            print(path, os.readlink(path))
            continue
        f = os.open(path, os.O_RDONLY)
        size = os.fstat(f).st_size
        whole = b''.join(iter(lambda: os.read(f, 100_000), b''))
        assert len(whole) == size, path
        print(path, size, os.fstat(f).st_nlink, os.fstat(f).st_ino, digest(whole))
        if size:
            m = mmap.mmap(f, size, prot=mmap.PROT_READ)
            assert digest(m[:]) == digest(whole), path
            assert os.pread(f, 1000, size // 2) == whole[size // 2:size // 2 + 1000], path
            m.close()
            d, aligned = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
            read = os.preadv(d, [aligned], 0)
            assert aligned[:read] == whole[:1 << 20], path
            os.close(d)
            holes = []
            at = 0
            while at < size:
                hole = os.lseek(f, at, os.SEEK_HOLE)
                holes.append((at, hole))
                if hole >= size: break
                try: at = os.lseek(f, hole, os.SEEK_DATA)
                except OSError: break
            print(path, 'data', holes)
        os.fsync(f)
        g = os.dup(f); os.close(f); os.close(g)
# A stream of a directory that goes back to a place in its middle.
c = ctypes.CDLL(None)
c.opendir.restype = c.readdir.restype = ctypes.c_void_p
c.telldir.restype = ctypes.c_long
c.telldir.argtypes = c.readdir.argtypes = c.rewinddir.argtypes = c.closedir.argtypes = [ctypes.c_void_p]
c.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
def names(d, most):
    read = []
    while len(read) < most:
        entry = c.readdir(d)
        if not entry: break
        read.append(ctypes.string_at(entry + 19))
    return read
d = c.opendir(b'many')
first = names(d, 1000)
place = c.telldir(d)
rest = names(d, 10_000)
c.seekdir(d, place)
assert names(d, 10_000) == rest
c.rewinddir(d)
assert names(d, 10_000) == first + rest
c.closedir(d)
print(len(first + rest), digest(b'/'.join(sorted(first + rest))))
assert len(set(first + rest)) == 3002
"#;

fn fill(site: &Site) {
    fs::write(site.mnt.join("large"), noise(1, 20_000_001)).unwrap();
    fs::write(site.mnt.join("empty"), "").unwrap();
    let sparse = File::create(site.mnt.join("sparse")).unwrap();
    sparse.set_len(30 << 20).unwrap();
    sparse.write_all_at(&noise(2, 1 << 20), 10 << 20).unwrap();
    drop(sparse);
    for directory in ["many", "small"] {
        fs::create_dir(site.mnt.join(directory)).unwrap();
    }
    for number in 0..3000 {
        File::create(site.mnt.join(format!("many/name {number}"))).unwrap();
    }
    for number in 0..600_u64 {
        fs::write(site.mnt.join(format!("small/{number}")), noise(number, 3000 + 7 * number as usize)).unwrap();
    }
    fs::hard_link(site.mnt.join("large"), site.mnt.join("small/link of large")).unwrap();
    std::os::unix::fs::symlink("small/5", site.mnt.join("symbolic")).unwrap();
    fs::copy("/bin/true", site.mnt.join("program")).unwrap();
    Tool::new("chmod").arg("755").arg(site.mnt.join("program")).ok();
    Tool::new(DEDUPFS).arg("snapshot").args([site.mnt.join("small"), site.mnt.join("version")]).ok();
}

fn read(site: &Site) -> String {
    Tool::new("python3").args(["-c", READ]).arg(&site.mnt).ok().text()
}

#[test]
fn everything_is_read_as_on_a_mount_that_opens() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fill(&site);
    site.umount();
    site.mount_with("ro");
    let expected = read(&site);
    site.umount();
    site.mount_with("ro,no_open");
    assert_eq!(read(&site), expected);
    assert_eq!(read(&site), expected, "from the kernel's cache");
    // More open files than the daemon keeps handles of, read in turns and at the same time.
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let directory = site.mnt.join(if reader % 2 == 0 { "small" } else { "version" });
            scope.spawn(move || {
                let mut files: Vec<File> =
                    (0..600).map(|number| File::open(directory.join(number.to_string())).unwrap()).collect();
                for _ in 0..2 {
                    for (number, file) in files.iter_mut().enumerate() {
                        let mut content = Vec::new();
                        file.seek(SeekFrom::Start(0)).unwrap();
                        file.read_to_end(&mut content).unwrap();
                        assert!(content == noise(number as u64, 3000 + 7 * number), "{number}");
                    }
                }
            });
        }
    });
    site.umount();
    site.mount_with("ro,exec,no_open");
    Tool::new(site.mnt.join("program")).ok();
    site.umount();
    site.assert_clean();
}

#[test]
fn nothing_makes_such_a_mount_writable() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fs::write(site.mnt.join("file"), noise(3, 100_000)).unwrap();
    site.umount();
    let mount = |options: &str| Tool::new(DEDUPFS).args(["mount", "-o", options]).args([&site.pool, &site.mnt]).run();
    mount("no_open").expect(2, &["no_open", "add `ro`"]);
    mount("ro,no_open").expect(0, &[]);
    mount("remount,rw").expect(1, &["mounted so", "Unmount it, and mount it for writing"]);
    mount("remount,ro,no_open").expect(0, &["does not change no_open"]);
    // Past the helper of mount(8), the kernel believes that it may write; the daemon refuses it.
    Tool::new("mount").args(["-i", "-o", "remount,rw"]).arg(&site.mnt).ok();
    Tool::new("bash").args(["-c", ": >$0"]).arg(site.mnt.join("file")).ok();
    let changes = [
        "echo new >new",
        "echo more >>file",
        "truncate -s 5 file",
        "dd if=/dev/zero of=file bs=4096 count=1 conv=notrunc,fsync",
        "dd if=/dev/zero of=file bs=4096 count=1 conv=notrunc oflag=direct",
        "fallocate -l 4096 file",
        "chmod 777 file",
        "mv file other",
        "rm file",
        "python3 -c \"import mmap,os; f=os.open('file',os.O_RDWR); m=mmap.mmap(f,4096); m[0:3]=b'new'; m.flush()\"",
    ];
    for change in changes {
        let ran = Tool::new("bash").args(["-c", &format!("cd {} && {change}", site.mnt.display())]).run();
        assert!(ran.code != 0 && ran.said().to_lowercase().contains("read-only"), "{change}: {}", ran.said());
    }
    Tool::new("mount").args(["-i", "-o", "remount,ro"]).arg(&site.mnt).ok();
    site.umount();
    site.mount();
    assert!(fs::read(site.mnt.join("file")).unwrap() == noise(3, 100_000), "the file was changed");
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 1);
    site.umount();
    site.assert_clean();
}
