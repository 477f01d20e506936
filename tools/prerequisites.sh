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
