#!/usr/bin/env bash
# root.sh: makes a root directory of Debian 13 with its smbd, NFS-Ganesha, fio, libsmb2 and libnfs, once, in the user's cache
# folder, and prints its path. PEERS_ROOT=DIRECTORY names another place. Wants root and debootstrap; two minutes, 700 MB.
set -euo pipefail
cd "$(dirname "$0")"
root=${PEERS_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/weft/peers/trixie}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
if [ ! -e "$root/.ready" ]; then
    echo "making a root directory of Debian 13 in $root" >&2
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase trixie "$root" "$mirror" >"$root.log" 2>&1 || { tail -5 "$root.log" >&2; exit 1; }
    # No package starts its service.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod +x "$root/usr/sbin/policy-rc.d"
    # Python's part of Samba may fail to be configured in a bare root; its servers do not use it.
    inside apt-get install -y -qq --no-install-recommends samba nfs-ganesha nfs-ganesha-vfs rpcbind fio gcc libc6-dev >>"$root.log" 2>&1 ||
        true
    inside apt-get install -y -qq --no-install-recommends libsmb2-dev libnfs-dev >>"$root.log" 2>&1 || true
    for program in smbd smbpasswd ganesha.nfsd rpcbind fio; do
        inside sh -c "command -v $program" >/dev/null || { tail -5 "$root.log" >&2; exit 1; }
    done
    # Ganesha looks there for the file system of its folder.
    ln -sf /proc/self/mounts "$root/etc/mtab"
    touch "$root/.ready"
fi
echo "$root"
