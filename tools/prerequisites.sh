# Sourced by demo.sh, test.sh and .ci/run: installs the packages that a fresh Debian machine with Rust lacks.
# shellcheck shell=bash

say() { printf '\n== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo; as root run: $*"
    fi
}

# need COMMAND=PACKAGE ...: installs the packages of the commands that are missing.
need() {
    local pair missing=()
    for pair in "$@"; do
        # Not every user's path has sbin.
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
    done
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || fail "please install: ${missing[*]} (no apt-get here to do it)"
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" || {
        # The package lists are old or absent.
        as_root apt-get update -q
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
    }
}

need_rust() {
    # A login shell knows it, a script may not.
    command -v cargo >/dev/null || PATH=$PATH:$HOME/.cargo/bin
    command -v cargo >/dev/null || fail "no cargo: install Rust first, see https://rustup.rs"
    # The zstd library is compiled from C.
    need cc=gcc
    [ -e /usr/include/stdio.h ] || need no-such-command=libc6-dev
}

need_fuse() {
    need fusermount3=fuse3
    [ -e /dev/fuse ] || as_root modprobe fuse || true
    [ -e /dev/fuse ] || fail "no /dev/fuse: load the module fuse, or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
}

# moto, a store of objects for tests, in a Python environment of its own. Exports DEDUPFS_MOTO, its program.
need_moto() {
    local home=${XDG_CACHE_HOME:-$HOME/.cache}/dedupfs-tests
    need python3=python3 flock=util-linux
    python3 -c 'import ensurepip' 2>/dev/null || need no-such-command=python3-venv
    mkdir -p "$home"
    # Two checks that run beside each other install it once.
    (
        flock 9
        [ -e "$home/moto-5.2.5/whole" ] && exit
        say "installing moto 5.2.5 in $home"
        rm -rf "$home/moto-5.2.5"
        python3 -m venv "$home/moto-5.2.5" &&
            "$home/moto-5.2.5/bin/pip" install -q 'moto[s3]==5.2.5' flask flask-cors &&
            touch "$home/moto-5.2.5/whole"
    ) 9>"$home/lock" || return 1
    export DEDUPFS_MOTO=$home/moto-5.2.5/bin/moto_server
}

# A nightly toolchain and cargo-fuzz, which needs it.
need_fuzz() {
    rustc +nightly --version >/dev/null 2>&1 || {
        command -v rustup >/dev/null || fail "fuzzing needs a nightly toolchain and there is no rustup: see https://rustup.rs"
        say "installing a nightly toolchain"
        rustup toolchain install nightly --profile minimal
    }
    # The library that drives a target is C++.
    need c++=g++
    cargo fuzz --version >/dev/null 2>&1 || {
        say "installing cargo-fuzz"
        cargo install --locked --debug cargo-fuzz
    }
}
