#!/usr/bin/env bash
# The two commands of the README's first screen, `make demo` and `make test`, on a machine that has nothing but what the README asks
# for: a bare Debian 12 root with build-essential and git, and this machine's Rust toolchain. What is committed is tested.
#
# The root is a plain folder, no mount point, and its localhost is ::1 first, as on most desktops. Wants root and debootstrap; takes
# half an hour on two cores. MIRROR=http://... names another Debian mirror, WEFT_FRESH a folder for the root (default target/lab/fresh).
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "test-fresh needs root and debootstrap: sudo apt-get install debootstrap" >&2
    exit 1
fi
fresh=${WEFT_FRESH:-$PWD/target/lab/fresh}
base=$fresh.base
mirror=${MIRROR:-http://deb.debian.org/debian}
if [ ! -e "$base/.whole" ]; then
    rm -rf "$base"
    mkdir -p "$(dirname "$base")"
    debootstrap --variant=minbase --include=build-essential,git,ca-certificates bookworm "$base" "$mirror" >"$base.log" 2>&1 ||
        { tail -5 "$base.log" >&2; exit 1; }
    # Packages that bring a daemon must not start it: nothing here would end it.
    printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
    chmod +x "$base/usr/sbin/policy-rc.d"
    printf '::1 localhost\n127.0.0.1 localhost\n' >"$base/etc/hosts"
    touch "$base/.whole"
fi
rm -rf "$fresh"
cp -a "$base" "$fresh"
# The way to the registries is this machine's: its resolver, and the authorities that it trusts.
cp /etc/resolv.conf "$fresh/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$fresh/etc/ssl/certs/ca-certificates.crt"
git clone -q --no-hardlinks . "$fresh/root/weft"
mkdir -p "$fresh/opt/rust"
export WEFT_FRESH=$fresh SYSROOT=${RUST_SYSROOT:-$(rustc --print sysroot)}
# A namespace of its own for mounts and processes: everything goes away with it, however it ends.
exec unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
    mount --bind -o ro "$SYSROOT" "$WEFT_FRESH/opt/rust"
    mount -t proc proc "$WEFT_FRESH/proc"
    mount --rbind /sys "$WEFT_FRESH/sys"
    mount --rbind /dev "$WEFT_FRESH/dev"
    mount -t tmpfs shm "$WEFT_FRESH/dev/shm"
    for command in "make demo" "make test"; do
        echo "== $command"
        start=$(date +%s)
        chroot "$WEFT_FRESH" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
            PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            bash -c "cd /root/weft && $command" </dev/null
        echo "== $command: passed in $(($(date +%s) - start)) s"
    done'
