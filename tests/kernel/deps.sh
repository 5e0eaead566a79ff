#!/usr/bin/env bash
# What the tests against the Linux kernel need on the host. As root it is installed; otherwise what is missing is named.
# The guest itself is built and run without root: see guest/build.sh.
set -euo pipefail
missing=()
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ] || missing+=("$2")
}
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need cpio cpio
need depmod kmod
need mkfs.ext4 e2fsprogs
need xz xz-utils
need gcc gcc
need gcc-12 gcc-12
need objcopy binutils
need make make
need ip iproute2
need unshare util-linux
need git git
need fio fio
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" libelf1 libssl3 >/dev/null
else
    echo "make test-kernel needs these Debian packages: ${missing[*]}" >&2
    echo "install them: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
