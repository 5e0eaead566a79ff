#!/usr/bin/env bash
# Installs the Debian package in a bare Debian 12 root and uses its service as an administrator and two users would, with this host's
# smbclient and libnfs, and with Linux's own clients if there is a guest (tests/kernel/guest/build.sh); then upgrades, removes and purges it.
# See install.py. `run.sh container` makes an image's file system of it instead, as packaging/Containerfile says, and runs that: container.py.
# `run.sh tasks` carries out the commands of docs/tasks: tasks.py.
#
# Wants root and debootstrap; a minute once the root is made, which takes another, and a minute for the guest. run.sh [container | tasks]
# [PACKAGE]: default is the package of `make deb`. MIRROR=http://... names another Debian mirror, WEFT_INSTALL a folder for the root (default
# target/lab/install).
set -euo pipefail
cd "$(dirname "$0")/../.."
test=install
case ${1:-} in container | tasks)
    test=$1
    shift
    ;;
esac
missing=()
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}
need debootstrap debootstrap
need smbclient smbclient
need nfs-ls libnfs-utils
need bwrap bubblewrap
need setpriv util-linux
need ip iproute2
if [ "$(id -u)" != 0 ] || [ ${#missing[@]} -gt 0 ]; then
    echo "test-$test needs root, and these Debian packages: sudo apt-get install ${missing[*]:-(all are installed)}" >&2
    exit 1
fi
shopt -s nullglob
packages=("${1:+$(realpath "$1")}")
[ -n "${1:-}" ] || packages=("$PWD"/target/deb/weft_*.deb)
if [ ${#packages[@]} != 1 ]; then
    echo "there is no package in target/deb, or more than one: make deb" >&2
    exit 1
fi
root=${WEFT_INSTALL:-$PWD/target/lab/install}
base=$root.base
root=$root.$test
mirror=${MIRROR:-http://deb.debian.org/debian}
if [ ! -e "$base/.whole" ]; then
    rm -rf "$base"
    mkdir -p "$(dirname "$base")"
    debootstrap --variant=minbase bookworm "$base" "$mirror" >"$base.log" 2>&1 || { tail -5 "$base.log" >&2; exit 1; }
    touch "$base/.whole"
fi
# What pages install or take for granted, and what reads the package's completions and manual pages: the namespaces below have no network.
case $test in
    tasks) more="curl openssl ca-certificates libgssapi-krb5-2 rdma-core ibverbs-providers librdmacm1" ;;
    install) more="bash-completion fish man-db zsh" ;;
    *) more= ;;
esac
if [ -n "$more" ] && [ ! -e "$base/.downloaded-$test" ]; then
    cp /etc/resolv.conf "$base/etc/resolv.conf"
    # With what they recommend: the pages install them as an administrator does.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive chroot "$base" sh -ec '
        apt-get update -qq
        apt-get install -y -qq --install-recommends --download-only "$@"' - $more >"$base.log" 2>&1 || { tail -5 "$base.log" >&2; exit 1; }
    touch "$base/.downloaded-$test"
fi
remove() { rm -rf "$root" "$root".*; }
remove
cp -a --reflink=auto "$base" "$root"
rm -f "$root"/.whole "$root"/.downloaded-*
# It is thrown away: no need to wait for the disk.
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
cp "${packages[0]}" "$root/root/"
trap remove EXIT
# Namespaces of its own for mounts, processes and the network: everything goes away with them, however it ends.
unshare --mount --pid --net --uts --fork --kill-child bash -euo pipefail -c '
    ip link set lo up
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    mount -t proc proc /proc
    exec /usr/bin/python3 -B "tests/install/$3.py" "$1" "$2"' - "$root" "$PWD" "$test" &
child=$!
# Bash would not end a foreground process. Ending unshare ends everything in its namespaces.
trap 'kill "$child"; wait "$child"; exit 130' INT TERM
wait "$child"
