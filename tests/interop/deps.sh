#!/usr/bin/env bash
# Independent clients for the interop tests. Root installs them; otherwise the script names the missing packages.
set -euo pipefail
missing=()
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}
# Networks of the tests' own.
need ip iproute2
need smbclient smbclient
need tshark tshark
need tcpdump tcpdump
need nfs-ls libnfs-utils
need rclone rclone
# Only started by tests, on loopback and with a configuration of their own.
[ -x /usr/sbin/smbd ] || missing+=(samba)
need cc gcc
[ -e /usr/include/openssl/evp.h ] || missing+=(libssl-dev)
need qemu-io qemu-utils
need nbdinfo libnbd-bin
need nbdkit nbdkit
need fio fio
need fusermount3 fuse3
need debugfs e2fsprogs
need setfacl acl
[ -x /usr/sbin/rpcinfo ] || missing+=(rpcbind)
[ -x /usr/sbin/showmount ] || missing+=(nfs-common)
need openssl openssl
# A realm of the tests' own, on a port of loopback.
[ -x /usr/sbin/krb5kdc ] || missing+=(krb5-kdc)
[ -x /usr/sbin/kadmin.local ] || missing+=(krb5-admin-server)
need kinit krb5-user
# A server of NFS with tickets that is not ours.
need ganesha.nfsd nfs-ganesha
[ -e "/usr/lib/$(uname -m)-linux-gnu/ganesha/libfsalvfs.so" ] || missing+=(nfs-ganesha-vfs)
# Clients that look for servers on a network: Debian's python3-zeroconf and Avahi for mDNS, wsdd for WS-Discovery.
/usr/bin/python3 -c 'import zeroconf' 2>/dev/null || missing+=(python3-zeroconf)
[ -x /usr/sbin/avahi-daemon ] || missing+=(avahi-daemon)
need avahi-browse avahi-utils
need dbus-daemon dbus
need wsdd wsdd
# Reports are looked at in a browser; results are held against their JSON Schema.
need chromium chromium
need chromedriver chromium-driver
/usr/bin/python3 -c 'import jsonschema' 2>/dev/null || missing+=(python3-jsonschema)
# Without any font a browser shows no text, and nothing has its width.
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
# Counts instructions (tests/instructions).
need valgrind valgrind
# The runner: several tests at a time.
/usr/bin/python3 -c 'import pytest' 2>/dev/null || missing+=(python3-pytest)
/usr/bin/python3 -c 'import xdist' 2>/dev/null || missing+=(python3-pytest-xdist)
/usr/bin/python3 -c 'import pytest_subtests' 2>/dev/null || missing+=(python3-pytest-subtests)
# The bindings of rdma-core are checked against its headers.
[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
[ -e /usr/include/rdma/rdma_cma.h ] || missing+=(librdmacm-dev)
# Debian's python3, not one from elsewhere: impacket is a Debian package.
/usr/bin/python3 -c 'import impacket' 2>/dev/null || missing+=(python3-impacket)
/usr/bin/python3 -c 'import Cryptodome' 2>/dev/null || missing+=(python3-pycryptodome)
python="$(dirname "$0")/../../target/python"
if [ ! -d "$python/smbprotocol" ]; then
    /usr/bin/python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
fi
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "make test needs these Debian packages: ${missing[*]}" >&2
        echo "install them: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
fi
# smbprotocol is no Debian package: it goes into a folder of the build. Without it its tests are skipped, and say so.
if [ ! -d "$python/smbprotocol" ]; then
    # Without what they need: cryptography is Debian's, and a second cffi would be in impacket's way.
    /usr/bin/python3 -m pip install -q --disable-pip-version-check --root-user-action ignore --no-deps \
        --target "$python" smbprotocol==1.17.0 pyspnego==0.12.4 ||
        echo "smbprotocol could not be installed (pip of python3-pip): its tests are skipped" >&2
fi
