#!/usr/bin/env bash
# run.sh smb|nfs|admin|check [OPTION...]: installs what the comparison needs, builds the independent clients and the floor, measures.
#
# The peers of smb and nfs are those of Debian 13: this system's if it is as new, else those of a root directory of their own
# (root.sh). PEERS=host takes this system's in any case.
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
clients=$(realpath -m ../../target/peers)
mkdir -p "$clients"
compares=$([ "$what" = smb ] || [ "$what" = nfs ] && echo yes || echo no)
# Debian 12 and older.
is_old=$(grep -qE '^([0-9]|1[0-2])(\.|$)' /etc/debian_version 2>/dev/null && echo yes || echo no)
own_root=$([ $compares = yes ] && [ $is_old = yes ] && [ "${PEERS:-debian13}" != host ] && echo yes || echo no)
need ip iproute2
if [ $own_root = yes ]; then
    need debootstrap debootstrap
elif [ "$what" = smb ] || [ "$what" = check ]; then
    need smbd samba
fi
if [ $own_root = no ] && { [ "$what" = nfs ] || [ "$what" = check ]; }; then
    need ganesha.nfsd nfs-ganesha nfs-ganesha-vfs
    need rpcbind rpcbind
fi
if [ "$what" != nfs ] && [ "$what" != admin ]; then
    need go golang-go
fi
if [ "$what" = smb ] && [ $is_old = no ]; then
    [ -e /usr/include/smb2/libsmb2.h ] || missing+=(libsmb2-dev)
fi
if [ "$what" != smb ]; then
    [ -e /usr/include/nfsc/libnfs.h ] || missing+=(libnfs-dev)
fi
if [ $compares = yes ]; then
    need cc gcc libc6-dev
    [ -e /usr/include/openssl/evp.h ] || missing+=(libssl-dev)
fi
if [ ${#missing[@]} -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ $compares = yes ]; then
    floor=$(/usr/bin/python3 -c 'import servers; print(servers.build_floor())')
    set -- --floor "$floor" "$@"
fi
root=
if [ $own_root = yes ]; then
    root=$(bash root.sh)
    set -- --root "$root" "$@"
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
    # Debian 12 has no libsmb2. In a root directory of its own the loader is built, and runs, with what is there.
    if [ -n "$root" ] && [ -e "$root/usr/include/smb2/libsmb2.h" ]; then
        install -m 644 smb2-loader.c "$root/usr/local/src"
        chroot "$root" cc -O2 -Wall -Wextra -Werror -o /usr/local/bin/smb2-loader /usr/local/src/smb2-loader.c -lsmb2
        set -- --libsmb2-loader /usr/local/bin/smb2-loader "$@"
    elif [ -z "$root" ] && [ -e /usr/include/smb2/libsmb2.h ]; then
        cc -O2 -Wall -Wextra -Werror -o "$clients/smb2-loader" smb2-loader.c -lsmb2
        set -- --libsmb2-loader "$clients/smb2-loader" "$@"
    fi
elif [ "$what" = nfs ]; then
    cc -O2 -Wall -Wextra -Werror -o "$clients/nfs41-loader" nfs41-loader.c
    set -- --loader "$clients/nfs-loader" --session-loader "$clients/nfs41-loader" "$@"
    # Debian 12's libnfs does not get WRITEs of NFSv4 encoded.
    if [ -n "$root" ] && [ -e "$root/usr/include/nfsc/libnfs.h" ]; then
        install -m 644 nfs-loader.c "$root/usr/local/src"
        chroot "$root" cc -O2 -Wall -Wextra -Werror -o /usr/local/bin/nfs-loader /usr/local/src/nfs-loader.c -lnfs
        set -- --libnfs5-loader /usr/local/bin/nfs-loader "$@"
    elif [ -z "$root" ] && [ $is_old = no ]; then
        set -- --libnfs5-loader "$clients/nfs-loader" "$@"
    fi
elif [ "$what" = admin ]; then
    set -- --loader "$clients/nfs-loader" "$@"
else
    set -- --loader "$clients/loader" --nfs-loader "$clients/nfs-loader" "$@"
fi
# A network of its own, whose congestion control is reno: bbr, the usual default of cloud machines, paces loopback.
exec unshare --net bash -c 'ip link set lo up; sysctl -q -w net.ipv4.tcp_congestion_control=reno; exec /usr/bin/python3 "$@"' \
    - "$what.py" "$@"
