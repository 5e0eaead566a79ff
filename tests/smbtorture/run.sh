#!/usr/bin/env bash
# Installs Samba's test suite where it is missing and runs it against the release binary.
set -euo pipefail
cd "$(dirname "$0")"
missing=()
command -v smbtorture >/dev/null || missing+=(samba-testsuite)
command -v iptables >/dev/null || missing+=(iptables)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    elif ! command -v smbtorture >/dev/null; then
        echo "this needs the Debian package samba-testsuite: sudo apt-get install samba-testsuite" >&2
        exit 1
    fi
fi
if [ "$(id -u)" = 0 ] && command -v iptables >/dev/null && command -v ip >/dev/null; then
    # Some tests cut connections by packet filters, and one asks for port 445: in a network of its own both may be had.
    exec unshare --net bash -c 'ip link set lo up; exec /usr/bin/python3 run.py --own-network "$@"' - "$@"
fi
echo "tests that cut connections will fail: they want root, iptables and iproute2" >&2
exec /usr/bin/python3 run.py "$@"
