//! Root's work on an ordinary user's pool leaves it the user's.

use crate::administration::administrate;
use crate::site::Site;

const USER: &str = r#"
chmod 755 "$base"
cp "$dedupfs" "$base/program"
cp "${dedupfs%/*}/dedupfs-gc" "$base/gc"
chmod 755 "$base/program" "$base/gc"
theirs=$base/theirs
mkdir -m 700 "$theirs"
chown 65534:65533 "$theirs" "$mnt"
nobody() { setpriv --reuid=65534 --regid=65533 --clear-groups "$@"; }
pool=$theirs/pool
is_theirs() {
    others=$(find "$theirs" ! -uid 65534 -o ! -gid 65533)
    [ -z "$others" ] || { echo "FAILED after $1: not the user's: $others"; exit 99; }
}
nobody "$base/program" mkfs "$pool" --data "$theirs/data"
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
nobody cp "$base/program" "$mnt/copy"
nobody cp "$base/gc" "$mnt/gone"
nobody "$base/program" umount "$mnt"
nobody_can_use_it() {
    is_theirs "$1"
    nobody "$base/program" mount --memory 256M "$pool" "$mnt"
    nobody cmp "$base/program" "$mnt/copy"
    nobody touch "$mnt/$1"
    nobody "$base/program" umount "$mnt"
    is_free
    nobody "$base/program" fsck "$pool"
}
"#;

#[test]
fn regression_a_pool_stays_its_owners_whatever_root_does_to_it() {
    let Some(site) = Site::if_fit() else { return };
    let script = r#"
"$base/program" scrub "$pool"
nobody_can_use_it scrub
"$base/gc" --dry-run "$pool"
nobody_can_use_it plan
"$base/program" mount --memory 256M "$pool" "$mnt"
is_theirs mounting
head -c 20000000 /dev/urandom >"$mnt/of root"
rm "$mnt/gone"
"$base/program" sync "$mnt"
is_theirs writing
"$base/program" scrub "$mnt"
"$base/program" umount "$mnt"
is_free
nobody_can_use_it mount
"$base/gc" --threshold 100 "$pool"
nobody_can_use_it gc
"$base/program" fsck --rebuild-index "$pool"
nobody_can_use_it rebuild
rm -r "$pool/index"
"$base/program" fsck --repair --yes "$pool" || [ $? = 1 ]
nobody_can_use_it repair
# Nor after a crash of root's daemon, which leaves its socket.
"$base/program" mount --memory 256M "$pool" "$mnt"
echo more >"$mnt/more"
"$base/program" sync "$mnt"
kill -9 $(cut -d " " -f 1 "$pool/lock")
flock "$pool/lock" true
umount -l "$mnt" || true
nobody_can_use_it crash
"#;
    administrate(&site, &format!("{USER}{script}"));
}

/// Files that other programs gave to root: the message shows how to repair that.
#[test]
fn a_file_of_another_in_a_pool_is_told_with_what_gives_it_back() {
    let Some(site) = Site::if_fit() else { return };
    let script = r#"
chown 0:0 "$pool/namespace.redb"
expect 1 nobody "$base/program" mount --memory 256M "$pool" "$mnt"
chown -R 65534:65533 "$pool"
nobody_can_use_it again
chown -R 0:0 "$pool"
chmod 755 "$pool"
expect 1 nobody "$base/program" mount --memory 256M "$pool" "$mnt"
"#;
    administrate(&site, &format!("{USER}{script}")).expect(
        0,
        &[
            "namespace.redb belongs to root and the pool to user 65534: root can give it back by `chown -R 65534:65533 /",
            "belongs to root; only its owner and root may open the pool",
        ],
    );
}

#[test]
fn what_an_ordinary_user_copies_is_theirs() {
    let Some(site) = Site::if_fit() else { return };
    let script = r#"
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
source=$base/source
# A file keeps its group if its owner is a member.
member() { setpriv --reuid=65534 --regid=65533 --groups=1234 "$@"; }
echo shared >"$base/shared"
chown 65534:1234 "$base/shared"
chmod 2660 "$base/shared"
member "$base/program" put "$base/shared" "$mnt/shared"
[ "$(nobody stat -c '%a %g' "$mnt/shared")" = '2660 1234' ] || { echo "FAILED: $(nobody stat "$mnt/shared")"; exit 99; }
chown 65534:1235 "$base/shared"
chmod 2660 "$base/shared"
member "$base/program" put "$base/shared" "$mnt/other"
[ "$(nobody stat -c '%a %g' "$mnt/other")" = '660 65533' ] || { echo "FAILED: $(nobody stat "$mnt/other")"; exit 99; }
mkdir "$source" "$source/locked"
echo content >"$source/of root"
echo content >"$source/setuid"
echo content >"$source/locked/file"
mknod "$source/device" c 1 3
ln "$source/of root" "$source/link"
chmod 4755 "$source/setuid"
chmod 555 "$source/locked" "$source"
# Only the superuser can make a device.
code=0
said=$(nobody "$base/program" put "$source" "$mnt/put" 2>&1) || code=$?
[ $code = 9 ] || { echo "FAILED: put ended with $code: $said"; exit 99; }
case $said in *'becomes a live tree'*device*superuser*) ;; *) echo "FAILED: $said"; exit 99 ;; esac
others=$(nobody find "$mnt/put" ! -uid 65534 -o ! -gid 65533 -o -perm /6000)
[ -z "$others" ] || { echo "FAILED: not the user's: $others"; exit 99; }
[ "$(nobody stat -c %a "$mnt/put")" = 555 ]
[ "$(nobody stat -c %h "$mnt/put/link")" = 2 ]
nobody diff -r --exclude device "$source" "$mnt/put"
mkdir "$base/out"
chown 65534:65533 "$base/out"
nobody "$base/program" get "$mnt/put" "$base/out/got"
nobody diff -r --exclude device "$source" "$base/out/got"
[ "$(stat -c %a "$base/out/got")" = 555 ]
# Files of root come from root, through root's mount.
nobody "$base/program" umount "$mnt"
is_free
"$base/program" mount --memory 256M "$pool" "$mnt"
cp -a "$source/setuid" "$mnt/setuid"
"$base/program" umount "$mnt"
is_free
nobody "$base/program" mount --memory 256M "$pool" "$mnt"
nobody "$base/program" get "$mnt/setuid" "$base/out/setuid"
[ "$(stat -c '%a %u' "$base/out/setuid")" = "755 65534" ] || { echo "FAILED: $(stat "$base/out/setuid")"; exit 99; }
nobody chmod -R u+w "$mnt/put"
nobody rm -r "$mnt/put"
nobody "$base/program" umount "$mnt"
is_free
"#;
    administrate(&site, &[USER, script].concat());
}
