#!/usr/bin/env bash
# What the tests of Ceph need beside those of tests/interop. As root it is installed; otherwise what is missing is named. Debian's packages
# start no daemon, because no cluster is configured.
set -euo pipefail
missing=()
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing+=("$2")
}
need ceph-mon ceph-mon
need ceph-osd ceph-osd
need rbd ceph-common
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "make test-ceph needs these Debian packages: ${missing[*]}" >&2
    echo "install them: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
