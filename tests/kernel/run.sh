#!/usr/bin/env bash
# Runs the tests of this folder, or those named: run.sh [test_ping.Ping.test_rping_asks ...]
# They get a network namespace of their own: the kernel's clients insist on certain ports, and nobody else's are touched.
set -euo pipefail
cd "$(dirname "$0")"
if [ $# -eq 0 ]; then set -- discover -v -s . -t .; else set -- -v "$@"; fi
private=(--net)
# Without root, a user namespace lends the right to make the other one.
[ "$(id -u)" = 0 ] || private+=(--map-root-user)
exec unshare "${private[@]}" bash -c 'PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec /usr/bin/python3 -B -m unittest "$@"' run "$@"
