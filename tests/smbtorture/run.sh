#!/usr/bin/env bash
# Installs Samba's test suite where it is missing and runs it against the release binary.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v smbtorture >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends samba-testsuite >/dev/null
    else
        echo "this needs the Debian package samba-testsuite: sudo apt-get install samba-testsuite" >&2
        exit 1
    fi
fi
exec /usr/bin/python3 run.py "$@"
