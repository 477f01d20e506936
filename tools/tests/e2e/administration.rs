//! mount(8), umount(8), fsck(8) and mkfs(8) with the helpers that they call, fstab, remounts, and other mounts of the same pool.
//!
//! The helpers are links in /sbin, in a mount namespace of each test, so that nothing of the machine is changed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use dedupfs_tools::options_of_mount;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{DEDUPFS, Ran, Tool, in_namespace};
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::{Site, is_free};

/// Creates the links in /sbin, with everything else that was there.
const PRELUDE: &str = r#"
set -eu
pool=$1 mnt=$2 base=$3 dedupfs=$4
sbin=$(readlink -f /sbin)
mkdir "$base/sbin"
mount --bind "$sbin" "$base/sbin"
mount -t tmpfs tmpfs "$sbin"
ln -s "$base"/sbin/* "$sbin"
# A separate table of mounts for mount(8); and every user may use FUSE.
mkdir -p /run/mount
mount -t tmpfs tmpfs /run/mount
mknod -m 666 "$sbin/fuse.device" c 10 229
mount --bind "$sbin/fuse.device" /dev/fuse
for name in mount.dedupfs mount.fuse.dedupfs umount.fuse.dedupfs mkfs.dedupfs fsck.dedupfs; do
    ln -sf "$dedupfs" "$sbin/$name"
done
expect() { # CODE COMMAND...
    wanted=$1; shift; code=0
    "$@" || code=$?
    [ "$code" = "$wanted" ] || { echo "FAILED with $code instead of $wanted: $*"; exit 99; }
}
is_free() { flock --nonblock "$pool/lock" true || { echo "FAILED: the daemon still has the pool"; exit 99; }; }
"#;

/// Runs a script of sh with the helpers in /sbin.
#[track_caller]
pub fn administrate(site: &Site, script: &str) -> Ran {
    let script = format!("{PRELUDE}{script}");
    let ran = in_namespace(&script).arg("sh").args([&site.pool, &site.mnt, &site.base]).arg(DEDUPFS).run();
    ran.expect(0, &[])
}

#[test]
fn mount_and_umount_of_the_system_call_the_helpers_and_wait() {
    let Some(site) = Site::if_fit() else { return };
    fs::write(site.base.join("source"), noise(1, 8 << 20)).unwrap();
    let ran = administrate(
        &site,
        r#"
mount -v -t dedupfs -o memory=256M,noatime,noexec,nofail,_netdev,x-systemd.requires=x.mount,comment=backups "$pool" "$mnt"
findmnt -n -o FSTYPE,SOURCE,OPTIONS "$mnt"
cp "$base/source" "$mnt/copy"
umount "$mnt"
is_free
expect 32 umount "$mnt"
mount -t fuse.dedupfs "$pool" "$mnt"
cmp "$base/source" "$mnt/copy"
umount "$mnt"
is_free
# Unmounted by the tool and mounted again: its entry stays one line.
for again in 1 2 3; do
    mount -t dedupfs "$pool" "$mnt"
    $dedupfs umount "$mnt"
done
[ "$(wc -l </run/mount/utab)" = 1 ]
"#,
    );
    let said = ran.expect(0, &["fuse.dedupfs", site.pool.to_str().unwrap(), "noatime", "noexec", "mounted"]).said();
    assert!(!said.contains("warning"), "{said}");
    site.assert_clean();
}

#[test]
fn lines_of_fstab_mount() {
    let Some(site) = Site::if_fit() else { return };
    let log = site.base.join("the.log");
    let ran = administrate(
        &site,
        r#"
# The filter `zero` was removed: older lines name it.
echo "$pool $mnt dedupfs noauto,user,memory=256M,filters=zero:open:bloom:locality:sealed,log_file=$base/the.log,x-systemd.automount 0 0" >"$base/fstab"
export LIBMOUNT_FSTAB="$base/fstab"
mount "$mnt"
echo hello >"$mnt/file"
# The options of fstab come along, and are in use already.
mount -o remount,ro "$mnt"
expect 2 sh -c "echo no >'$mnt/file' 2>/dev/null"
umount "$mnt"
is_free
mount --target "$mnt" -o ro
cat "$mnt/file"
expect 2 sh -c "echo no >'$mnt/file' 2>/dev/null"
# The pool was recovered in memory only.
expect 32 mount -o remount,rw "$mnt"
expect 2 sh -c "echo no >'$mnt/file' 2>/dev/null"
umount "$mnt"
is_free
echo "$pool $mnt dedupfs noauto,fast 0 0" >"$base/fstab"
expect 1 mount "$mnt"
mount -s "$mnt"
umount "$mnt"
echo "$base $mnt dedupfs noauto 0 0" >"$base/fstab"
expect 32 mount "$mnt"
"#,
    )
    .expect(0, &["hello", "`fast` is not known", "is not a dedupfs pool", "mount it for writing"]);
    let (said, log) = (ran.said(), fs::read_to_string(log).unwrap());
    assert!(log.contains("mounted"));
    // Of two mounts; the remounts change no filters.
    assert_eq!([&said, &log].map(|text| text.matches("the filter `zero` was removed").count()), [2, 2], "{said}");
    site.assert_clean();
}

#[test]
fn a_remount_makes_everything_durable_and_the_pool_read_only() {
    let Some(site) = Site::if_fit() else { return };
    fs::write(site.base.join("source"), noise(2, 4 << 20)).unwrap();
    let said = administrate(
        &site,
        r#"
mount -t dedupfs -o memory=256M "$pool" "$mnt"
exec 3>"$mnt/open"
expect 32 mount -o remount,ro "$mnt"
echo "still writable" >&3
exec 3>&-
cp "$base/source" "$mnt/copy"
mount -o remount,ro "$mnt"
findmnt -n -o OPTIONS "$mnt"
cp -r "$pool" "$base/before"
expect 2 sh -c "echo no >'$mnt/new' 2>/dev/null"
expect 1 rm -f "$mnt/copy"
cmp "$base/source" "$mnt/copy"
"$dedupfs" sync "$mnt"
"$dedupfs" scrub "$mnt"
mount -o remount,ro "$mnt"
rm "$pool"/dedupfs.log "$base"/before/dedupfs.log
# A socket cannot be compared.
diff -r --exclude=control.sock "$pool" "$base/before"
mount -o remount,rw,noatime "$mnt"
findmnt -n -o OPTIONS "$mnt"
echo more >"$mnt/new"
mount -o remount,ro,dev "$mnt"
# Nothing is lost with the daemon.
kill -9 "$(cut -d' ' -f1 "$pool/lock")"
umount -i -l "$mnt"
"#,
    )
    .expect(0, &["open for writing", "sound"])
    .said();
    let options: Vec<&str> = said.lines().filter(|line| line.contains("user_id=0")).collect();
    assert!(options.len() == 2 && options[0].starts_with("ro,relatime,"), "{said}");
    assert!(options[1].starts_with("rw,noatime,"), "{said}");
    site.assert_clean();
    site.try_mount().expect(0, &[]);
    assert_eq!(fs::read_to_string(site.mnt.join("new")).unwrap(), "more\n");
    assert_eq!(fs::read_to_string(site.mnt.join("open")).unwrap(), "still writable\n");
    assert!(fs::read(site.mnt.join("copy")).unwrap() == noise(2, 4 << 20));
    let recovered = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    assert!(!recovered.contains("recovered after"), "{recovered}");
    site.umount();
}

/// mount(8) leaves out options that are the default of mounts: `-o dev,suid` did not arrive.
#[test]
fn regression_mounts_of_the_system_have_the_default_flags_of_mounts() {
    let Some(site) = Site::if_fit() else { return };
    let said = administrate(
        &site,
        r#"
show() { printf '%s ' "$1"; findmnt -n -o OPTIONS "$mnt"; }
export LIBMOUNT_FSTAB="$base/fstab"
: >"$base/fstab"
mount -t dedupfs -o dev,suid "$pool" "$mnt"
show given
mknod "$mnt/null" c 1 3
echo works >"$mnt/null"
umount "$mnt"
mount -t dedupfs -o nodev,nosuid "$pool" "$mnt"
show forbidden
expect 2 sh -c "echo no >'$mnt/null' 2>/dev/null"
mount -o remount,dev "$mnt"
show remounted
umount "$mnt"
echo "$pool $mnt dedupfs noauto 0 0" >"$base/fstab"
mount "$mnt"
show fstab
umount "$mnt"
echo "$pool $mnt dedupfs noauto,user 0 0" >"$base/fstab"
mount "$mnt"
show user
umount "$mnt"
$dedupfs mount "$pool" "$mnt"
show itself
# umount(8) does not wait for a daemon that no helper started, and it would be checked while it ends.
$dedupfs umount "$mnt"
"#,
    )
    .said();
    for (how, nodev, nosuid) in [
        ("given", false, false),
        ("forbidden", true, true),
        ("remounted", false, true),
        ("fstab", false, false),
        ("user", true, true),
        ("itself", true, true),
    ] {
        let line = said.lines().find(|line| line.starts_with(how)).unwrap_or_else(|| panic!("{how}: {said}"));
        let has = |flag: &str| line.split([' ', ',']).any(|option| option == flag);
        assert_eq!((has("nodev"), has("nosuid")), (nodev, nosuid), "{line}");
    }
    site.assert_clean();
}

#[test]
fn remounts_without_the_system_and_what_a_read_only_pool_refuses() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let remount = |options: &str| Tool::new(DEDUPFS).args(["mount", "-o", options]).args([&site.pool, &site.mnt]).run();
    remount("remount,fast").expect(2, &["fast"]);
    remount("remount,ro").expect(0, &[]);
    remount("remount,ro").expect(0, &[]);
    Tool::new(crate::command::GC).arg(&site.mnt).run().expect(1, &["read-only"]);
    remount("remount,rw").expect(0, &[]);
    fs::write(site.mnt.join("new"), "yes").unwrap();
    site.umount();
    Tool::new(DEDUPFS)
        .args(["mount", "-o", "remount,ro"])
        .args([&site.pool, &site.mnt])
        .run()
        .expect(8, &["no dedupfs"]);
    site.assert_clean();
}

/// The kernel's mount was read-only until the daemon had refused, and a put could not remove its temporary files.
#[test]
fn regression_a_remount_that_is_refused_leaves_the_mount_writable_all_the_while() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    fs::write(&source, noise(1, 256 << 20)).unwrap();
    let note = fs::read_to_string(site.pool.join("lock")).unwrap();
    let daemon = Pid::from_raw(note.split(' ').next().unwrap().parse().unwrap()).unwrap();
    let mut put =
        Command::new(DEDUPFS).args(["put", "--live"]).args([&source, &site.mnt.join("copy")]).spawn().unwrap();
    // The daemon hides the tree that it is copying.
    let hides = |entry: fs::DirEntry| fs::read_dir(entry.path()).is_ok_and(|mut inside| inside.any(|one| one.is_err()));
    while !fs::read_dir(&site.mnt).unwrap().flatten().any(hides) {
        assert!(put.try_wait().unwrap().is_none(), "the put has ended already");
    }
    // It answers once it continues.
    kill_process(daemon, Signal::STOP).unwrap();
    let remount = std::thread::scope(|scope| {
        let remounting =
            scope.spawn(|| Tool::new(DEDUPFS).args(["mount", "-o", "remount,ro"]).args([&site.pool, &site.mnt]).run());
        std::thread::sleep(Duration::from_secs(1));
        let options = options_of_mount(&site.mnt).unwrap().expect("mounted");
        kill_process(daemon, Signal::CONT).unwrap();
        assert!(options.starts_with("rw,"), "the mount is read-only before the daemon was asked: {options}");
        remounting.join().unwrap()
    });
    remount.expect(8, &["being copied"]);
    assert!(put.wait().unwrap().success());
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 1, "something is left of the put");
    // No put is running any more.
    Tool::new(DEDUPFS).args(["mount", "-o", "remount,ro"]).args([&site.pool, &site.mnt]).ok();
    site.umount();
    site.assert_clean();
}

/// `dedupfs umount` of a bind mount ended the filesystem and left the bind mount's name behind.
#[test]
fn regression_only_the_mount_that_is_named_is_taken_away() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
mount -t dedupfs "$pool" "$mnt"
mkdir "$mnt/inner" "$base/other"
for way in "umount" "$dedupfs umount"; do
    mount --bind "$mnt/inner" "$base/other"
    $way "$base/other"
    echo alive >"$mnt/inner/file"
done
# In another namespace it goes on as well.
unshare --mount --propagation private sh -c 'umount "$0"' "$mnt"
cat "$mnt/inner/file"
mount --move "$mnt" "$base/other"
$dedupfs umount "$base/other"
is_free
"#,
    )
    .expect(0, &["alive", "unmounted, but also mounted on", "is closed when the last of them is unmounted"]);
    site.assert_clean();
}

/// A container or service started while the pool was mounted has the mount too.
#[test]
fn a_mount_that_another_namespace_keeps_is_told_of() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
$dedupfs mount "$pool" "$mnt"
unshare --mount --propagation private sleep 600 &
other=$!
while [ "$(readlink /proc/$other/ns/mnt)" = "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.01; done
$dedupfs umount "$mnt"
expect 4 $dedupfs mount "$pool" "$mnt"
kill "$other"
wait "$other" || true
$dedupfs mount "$pool" "$mnt"
$dedupfs umount "$mnt"
is_free
"#,
    )
    .expect(0, &["another mount namespace (a container's, a service's) still has it", "that can be seen from here"]);
    site.assert_clean();
}

#[test]
fn fsck_and_mkfs_of_the_system_call_the_helpers() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
mkfs -t dedupfs --chunk-size 16K "$base/new"
for how in "-a" "-p" "-n" "-y" "-f -p" "-C0"; do
    fsck -T -t dedupfs "$base/new" -- $how </dev/null
done
cp "$base/new/dedupfs.meta" "$base/superblock"
printf garbage | dd of="$base/new/dedupfs.meta" bs=1 seek=100 conv=notrunc status=none
expect 4 fsck.dedupfs -p "$base/new"
expect 4 fsck.dedupfs -n "$base/new"
expect 1 fsck.dedupfs -y "$base/new"
cmp "$base/new/dedupfs.meta" "$base/superblock"
fsck.dedupfs -n "$base/new"
expect 8 fsck.dedupfs -a "$base/absent"
expect 16 fsck.dedupfs -z "$base/new"
mount -t dedupfs "$base/new" "$mnt"
fsck.dedupfs -a "$base/new"
fsck.dedupfs -a "$mnt"
umount "$mnt"
"#,
    )
    .expect(0, &["chunks of 16 KiB", "superblock", "left alone", "clean"]);
}

#[test]
fn a_busy_mount_can_be_made_read_only_or_be_detached() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
mount -t dedupfs "$pool" "$mnt"
echo content >"$mnt/file"
exec 3<"$mnt/file"
expect 32 umount "$mnt"
umount -r "$mnt"
findmnt -n -o OPTIONS "$mnt"
mount -o remount,rw "$mnt"
umount -l "$mnt"
cat <&3
exec 3<&-
"#,
    )
    .expect(0, &["ro,relatime", "content"]);
    // The commands did not wait for the daemon.
    while !is_free(&site.pool) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    site.assert_clean();
}

/// Nothing can be written, so there is no control socket for reaching the daemon.
#[test]
fn regression_a_pool_on_a_read_only_disk_is_remounted_and_unmounted_by_the_tool() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
mount -t dedupfs "$pool" "$mnt"
echo content >"$mnt/file"
umount "$mnt"
for lock in keep remove; do
    [ $lock = keep ] || rm "$pool/lock"
    mount --bind "$pool" "$pool"
    mount -o remount,bind,ro "$pool"
    expect 32 mount -t dedupfs "$pool" "$mnt"
    mount -t dedupfs -o ro "$pool" "$mnt"
    cat "$mnt/file"
    # The daemon has nothing to be told either.
    $dedupfs mount -o remount,ro,noexec "$pool" "$mnt"
    findmnt -n -o OPTIONS "$mnt" | grep noexec
    expect 1 $dedupfs mount -o remount,rw "$pool" "$mnt"
    cat "$mnt/file"
    $dedupfs umount "$mnt"
    flock --nonblock "$pool" true
    umount "$pool"
done
"#,
    )
    .expect(0, &["content", "`dedupfs mount -o ro` mounts the pool"]);
    site.assert_clean();
}

#[test]
fn several_pools_are_mounted_at_once() {
    if !is_fit() {
        return;
    }
    let sites: Vec<Site> = (0..3).map(|_| Site::mounted()).collect();
    let write = |site: &Site, seed: u64| fs::write(site.mnt.join("file"), noise(seed, 2 << 20)).unwrap();
    std::thread::scope(|scope| {
        for (seed, site) in sites.iter().enumerate() {
            scope.spawn(move || write(site, seed as u64));
        }
    });
    sites[1].umount();
    for (seed, site) in sites.iter().enumerate().filter(|(seed, _)| *seed != 1) {
        assert!(fs::read(site.mnt.join("file")).unwrap() == noise(seed as u64, 2 << 20));
        assert_eq!(site.stats().files, 1);
        site.umount();
    }
    sites.iter().for_each(Site::assert_clean);
}

/// The mount goes through fusermount3. umount(8) lets users unmount their own mounts, and calls the helper as that
/// user.
#[test]
fn an_ordinary_user_formats_mounts_and_unmounts() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
chmod 755 "$base"
cp "$dedupfs" "$base/program"
chmod 755 "$base/program"
ln -sf "$base/program" "$sbin/umount.fuse.dedupfs"
pool=$base/theirs
mkdir -m 700 "$pool"
chown 65534:65534 "$pool" "$mnt"
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
nobody "$base/program" mkfs "$pool"
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
nobody cp "$base/program" "$mnt/copy"
nobody umount "$mnt"
is_free
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
nobody cmp "$base/program" "$mnt/copy"
# Root has no business there.
expect 1 cat "$mnt/copy"
expect 7 nobody "$base/program" mount -o remount,ro "$pool" "$mnt"
nobody touch "$mnt/new"
nobody "$base/program" umount "$mnt"
is_free
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
umount "$mnt"
is_free
"#,
    )
    .expect(0, &["only root may"]);
}

/// Also with directories to which their owner may not write.
#[test]
fn an_ordinary_user_freezes_thaws_and_forgets() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
chmod 755 "$base"
cp "$dedupfs" "$base/program"
chmod 755 "$base/program"
pool=$base/theirs
mkdir -m 700 "$pool"
chown 65534:65534 "$pool" "$mnt"
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
nobody "$base/program" mkfs "$pool"
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
nobody mkdir -p "$mnt/web1/live/closed"
nobody cp "$base/program" "$mnt/web1/live/closed/file"
nobody chmod 555 "$mnt/web1/live/closed"
nobody "$base/program" freeze "$mnt/web1/live"
nobody cmp "$base/program" "$mnt/web1/live/closed/file"
expect 1 nobody touch "$mnt/web1/live/closed"
[ "$(nobody ls -A "$mnt/web1")" = live ]
nobody "$base/program" thaw "$mnt/web1/live" "$mnt/web1/again"
nobody "$base/program" snapshot "$mnt/web1/again" "$mnt/web1/version"
nobody "$base/program" forget "$mnt/web1/live" "$mnt/web1/version"
nobody cmp "$base/program" "$mnt/web1/again/closed/file"
[ "$(nobody ls -A "$mnt/web1")" = again ]
nobody "$base/program" umount "$mnt"
is_free
"#,
    )
    .expect(0, &["removed"]);
}

#[test]
fn others_are_let_in_by_permissions_only_if_they_are_let_in_at_all() {
    let Some(site) = Site::if_fit() else { return };
    administrate(
        &site,
        r#"
chmod 755 "$base" "$mnt"
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
mount -t dedupfs "$pool" "$mnt"
chmod 755 "$mnt"
echo "for all" >"$mnt/public"
install -m 600 /dev/null "$mnt/private"
expect 1 nobody cat "$mnt/public"
umount "$mnt"
mount -t dedupfs -o allow_other,memory=256M "$pool" "$mnt"
nobody cat "$mnt/public"
expect 1 nobody cat "$mnt/private"
expect 1 nobody touch "$mnt/new"
umount "$mnt"
"#,
    )
    .expect(0, &["for all"]);
    site.assert_clean();
}
