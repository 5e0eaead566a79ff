#!/usr/bin/env bash
# Runs Samba's test suite against the release binary: that of SMBTORTURE_ROOT, a root directory; else, for root where debootstrap
# is, Debian 13's (4.22), in target/lab/trixie, which is made first (a few minutes, once); else this system's own, which is
# installed where it is missing. SMBTORTURE_ROOT=/ names this system's own.
set -euo pipefail
cd "$(dirname "$0")"
tree=$(cd ../.. && pwd)
am_root=$([ "$(id -u)" = 0 ] && echo yes || echo no)
export PATH="$PATH:/usr/sbin:/sbin"
if [ -z "${SMBTORTURE_ROOT:-}" ]; then
    SMBTORTURE_ROOT=/
    if [ $am_root = yes ] && command -v debootstrap >/dev/null; then
        SMBTORTURE_ROOT=$tree/target/lab/trixie
        bash root.sh "$SMBTORTURE_ROOT"
    fi
fi
if [ "$SMBTORTURE_ROOT" = / ]; then
    missing=()
    command -v smbtorture >/dev/null || missing+=(samba-testsuite)
    command -v iptables >/dev/null || missing+=(iptables)
    if [ ${#missing[@]} -gt 0 ]; then
        if [ $am_root = yes ] && command -v apt-get >/dev/null 2>&1; then
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -qq
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
        elif ! command -v smbtorture >/dev/null; then
            echo "this needs the Debian package samba-testsuite: sudo apt-get install samba-testsuite" >&2
            exit 1
        fi
    fi
else
    SMBTORTURE_ROOT=$(realpath "$SMBTORTURE_ROOT")
    export SMBTORTURE="chroot $SMBTORTURE_ROOT smbtorture"
fi
export SMBTORTURE_ROOT
if [ $am_root = yes ] && command -v ip >/dev/null; then
    # Some tests cut connections by packet filters, and one asks for port 445: in a network of its own both may be had. A root
    # directory of its own wants some of this system's files, and gets them for as long as this runs.
    exec unshare --net --mount bash -c '
        ip link set lo up
        if [ "$SMBTORTURE_ROOT" != / ]; then
            mount -t proc proc "$SMBTORTURE_ROOT/proc"
            mount --rbind /dev "$SMBTORTURE_ROOT/dev"
            mount -t tmpfs tmpfs "$SMBTORTURE_ROOT/tmp"
        fi
        exec /usr/bin/python3 run.py --own-network "$@"' - "$@"
fi
echo "tests that cut connections will fail: they want root, iptables and iproute2" >&2
exec /usr/bin/python3 run.py "$@"
