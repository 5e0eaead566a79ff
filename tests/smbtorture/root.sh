#!/usr/bin/env bash
# Makes a root directory of Debian 13 with Samba's test suite 4.22 in it: root.sh DIRECTORY. Wants root and debootstrap.
set -euo pipefail
root=$1
[ -e "$root/.ready" ] && exit 0
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
rm -rf "$root"
mkdir -p "$root"
debootstrap --variant=minbase trixie "$root" "$mirror" >"$root.log" 2>&1 || { tail -5 "$root.log" >&2; exit 1; }
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get install -y -qq --no-install-recommends iptables >>"$root.log" 2>&1
# Python's part of the package may fail to be configured in a bare root; the tests themselves do not use it.
inside apt-get install -y -qq --no-install-recommends samba-testsuite >>"$root.log" 2>&1 || true
inside smbtorture --version >/dev/null || { tail -5 "$root.log" >&2; exit 1; }
touch "$root/.ready"
