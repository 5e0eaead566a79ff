#!/usr/bin/env bash
# run.sh smb|nfs|admin|check [OPTION...]: installs what the comparison needs, builds the independent clients, measures.
set -euo pipefail
cd "$(dirname "$0")"
what=$1
shift
if [ "$(id -u)" != 0 ]; then
    echo "make bench-$what runs Debian's servers in a network of its own and needs root" >&2
    exit 1
fi
missing=()
need() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null || missing+=("${@:2}")
}
need ip iproute2
clients=$(realpath -m ../../target/peers)
mkdir -p "$clients"
if [ "$what" != nfs ] && [ "$what" != admin ]; then
    need smbd samba
    need go golang-go
fi
if [ "$what" != smb ] && [ "$what" != admin ]; then
    need ganesha.nfsd nfs-ganesha nfs-ganesha-vfs
    need rpcbind rpcbind
fi
if [ "$what" != smb ]; then
    [ -e /usr/include/nfsc/libnfs.h ] || missing+=(libnfs-dev)
fi
if [ ${#missing[@]} -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ "$what" != nfs ] && [ "$what" != admin ]; then
    (cd loader && go build -o "$clients/loader" .)
fi
if [ "$what" != smb ]; then
    cc -O2 -Wall -Wextra -Werror -o "$clients/nfs-loader" nfs-loader.c -lnfs
fi
if [ "$what" = smb ]; then
    (cd signed && CARGO_TARGET_DIR="$clients/signed" cargo build -q --release --locked)
    set -- --loader "$clients/loader" --signed-loader "$clients/signed/release/signed-loader" "$@"
elif [ "$what" = nfs ] || [ "$what" = admin ]; then
    set -- --loader "$clients/nfs-loader" "$@"
else
    set -- --loader "$clients/loader" --nfs-loader "$clients/nfs-loader" "$@"
fi
# A network of its own, whose congestion control is reno: bbr, the usual default of cloud machines, paces loopback.
exec unshare --net bash -c 'ip link set lo up; sysctl -q -w net.ipv4.tcp_congestion_control=reno; exec /usr/bin/python3 "$@"' \
    - "$what.py" "$@"
