#!/usr/bin/env bash
# Copies of pools in real servers of objects, over a bad network: replicate, read, recover, with versitygw behind toxiproxy. Then stores that break the
# promise of conditional creation, which store-check must refuse: Garage, s3s-fs.
#
#   tools/stores-soak.sh [ROUNDS]     [default: 20] rounds over the bad network; 0 leaves the refused stores out, too
#
# Installs the servers below ~/.cache/dedupfs-tests; needs Go 1.25 or later for the first two. As root, with FUSE.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/prerequisites.sh
. tools/prerequisites.sh

need_rust
need_fuse
need curl=curl openssl=openssl
rounds=${1:-20}
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || fail "no Go: install Go 1.25 or later"

if [ -z "${DEDUPFS_BIN-}" ]; then
    cargo build --release --locked --package dedupfs-tools --bins
    DEDUPFS_BIN=$(cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
fi
dedupfs=$DEDUPFS_BIN/dedupfs

home=${XDG_CACHE_HOME:-$HOME/.cache}/dedupfs-tests/servers
mkdir -p "$home/bin"
go_program() { [ -x "$home/bin/$1" ] || { say "installing $2" && GOBIN=$home/bin go install "$2" && [ "$1" = "$3" ] || mv "$home/bin/$3" "$home/bin/$1"; }; }
go_program versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 versitygw
go_program toxiproxy github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0 server

work=$(mktemp -d "${TMPDIR:-/var/tmp}/dedupfs-stores.XXXXXX")
servers=()
end() {
    for mnt in "$work"/mnt "$work"/view "$work"/recovered.mnt; do
        ! mountpoint -q "$mnt" 2>/dev/null || "$dedupfs" umount "$mnt" || umount -l "$mnt"
    done
    [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
unset AWS_CA_BUNDLE
export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret DEDUPFS_PASSPHRASE=soak

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# server PORT COMMAND ...: starts a server in the background, and waits until it listens.
server() {
    local port=$1 try
    shift
    "$@" >>"$work/servers.log" 2>&1 &
    servers+=($!)
    for try in $(seq 600); do
        ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/servers.log" >&2
    fail "$1 does not listen"
}

mkdir -p "$work"/{store/copies,mnt,view,recovered.mnt}
gateway=$(free_port)
server "$gateway" "$home/bin/versitygw" --access key --secret secret --port "127.0.0.1:$gateway" --quiet posix "$work/store"
control=$(free_port)
server "$control" "$home/bin/toxiproxy" -host 127.0.0.1 -port "$control"
network=$(free_port)
proxy() { curl -sS -f -o /dev/null -X "$1" "http://127.0.0.1:$control/$2" ${3+-d "$3"}; }
proxy POST proxies "{\"name\": \"store\", \"listen\": \"127.0.0.1:$network\", \"upstream\": \"127.0.0.1:$gateway\"}"
address="s3://copies/pool?endpoint=http://127.0.0.1:$network"

say "versitygw keeps the promises"
"$dedupfs" store-check "$address"

say "$rounds rounds over a bad network"
"$dedupfs" mkfs "$work/pool" >/dev/null
"$dedupfs" mount "$work/pool" "$work/mnt"
"$dedupfs" replicate --init "$work/mnt" "$address" --key "$work/key" 2>/dev/null >/dev/null
toxics=(
    '{"name": "t", "type": "latency", "attributes": {"latency": 40, "jitter": 40}}'
    '{"name": "t", "type": "reset_peer", "toxicity": 0.3, "attributes": {"timeout": 30}}'
    '{"name": "t", "type": "limit_data", "toxicity": 0.5, "attributes": {"bytes": 700000}}'
    '{"name": "t", "type": "limit_data", "stream": "upstream", "toxicity": 0.5, "attributes": {"bytes": 700000}}'
    '{"name": "t", "type": "slicer", "attributes": {"average_size": 900, "size_variation": 400, "delay": 10}}'
    '{"name": "t", "type": "bandwidth", "attributes": {"rate": 3000}}'
    '{"name": "t", "type": "timeout", "toxicity": 0.2, "attributes": {"timeout": 200}}'
)
failed=0
for round in $(seq "$rounds"); do
    mkdir "$work/source"
    for file in 1 2 3; do head -c $((RANDOM * 150)) /dev/urandom >"$work/source/$file"; done
    "$dedupfs" put "$work/source" "$work/mnt/v$round" >/dev/null
    rm -r "$work/source"
    proxy POST proxies/store/toxics "${toxics[$((round % ${#toxics[@]}))]}"
    timeout 120 "$dedupfs" replicate "$work/mnt" "$address" --key "$work/key" >/dev/null 2>>"$work/told" || failed=$((failed + 1))
    timeout 120 "$dedupfs" get "s3://copies/pool/v1?endpoint=http://127.0.0.1:$network" "$work/out" --key "$work/key" --cache "$work/cache" \
        >/dev/null 2>>"$work/told" && diff -r "$work/mnt/v1" "$work/out" || failed=$((failed + 1))
    rm -rf "$work/out"
    proxy DELETE proxies/store/toxics/t
done
echo "$failed of $((2 * rounds)) commands failed; the network is whole again"
"$dedupfs" replicate "$work/mnt" "$address" --key "$work/key"
"$dedupfs" replica verify "$address" --key "$work/key"
"$dedupfs" mount -o "ro,cache=$work/cache" "$address" "$work/view" --key "$work/key"
diff -r "$work/mnt" "$work/view"
"$dedupfs" umount "$work/view"
"$dedupfs" recover "$work/recovered" --from "$address" --key "$work/key"
"$dedupfs" mount "$work/recovered" "$work/recovered.mnt"
diff -r "$work/mnt" "$work/recovered.mnt"
[ "$rounds" != 0 ] || exit 0

# refused NAME ADDRESS: the store must be refused, because of its promises.
refused() {
    local told status=0
    told=$("$dedupfs" store-check "$2" 2>&1) || status=$?
    echo "$told"
    [ $status = 1 ] && [[ $told == *BROKEN* ]] || fail "$1 was not refused ($status)"
    echo "refused: $1"
}

say "s3s-fs 0.14.1 is refused"
[ -x "$home/bin/s3s-fs" ] || cargo install --locked --quiet --root "$home" --features binary s3s-fs@0.14.1
port=$(free_port)
mkdir -p "$work/s3s/copies"
server "$port" "$home/bin/s3s-fs" --host 127.0.0.1 --port "$port" --access-key key --secret-key secret "$work/s3s"
refused s3s-fs "s3://copies/pool?endpoint=http://127.0.0.1:$port"

say "Garage is refused"
garage=$home/bin/garage
[ -x "$garage" ] || cargo install --locked --quiet --root "$home" garage@2.5.0
port=$(free_port) rpc=$(free_port)
cat >"$work/garage.toml" <<CONFIG
metadata_dir = "$work/garage/meta"
data_dir = "$work/garage/data"
db_engine = "sqlite"
replication_factor = 1
rpc_bind_addr = "127.0.0.1:$rpc"
rpc_public_addr = "127.0.0.1:$rpc"
rpc_secret = "$(openssl rand -hex 32)"
[s3_api]
s3_region = "garage"
api_bind_addr = "127.0.0.1:$port"
root_domain = ".s3.garage"
CONFIG
of_garage() { "$garage" -c "$work/garage.toml" "$@"; }
server "$port" "$garage" -c "$work/garage.toml" server
of_garage layout assign -z one -c 1G "$(of_garage node id -q | cut -d@ -f1)" >/dev/null
of_garage layout apply --version 1 >/dev/null
of_garage bucket create copies >/dev/null
keys=$(of_garage key create soak)
AWS_ACCESS_KEY_ID=$(sed -n 's/^Key ID: *//p' <<<"$keys") AWS_SECRET_ACCESS_KEY=$(sed -n 's/^Secret key: *//p' <<<"$keys")
of_garage bucket allow --read --write --owner copies --key soak >/dev/null
refused Garage "s3://copies/pool?endpoint=http://127.0.0.1:$port&region=garage"
