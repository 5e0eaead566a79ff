#!/usr/bin/env bash
# Runs the tests of this folder, or those named: run.sh [test_ping.Ping.test_rping_asks ...]
# They get a network namespace of their own: the kernel's clients insist on certain ports, and nobody else's are touched.
#
#     JOBS         so many files of tests at a time (default 1: a guest is busy with one processor); each says what it has to
#                  say when it has ended
set -euo pipefail
cd "$(dirname "$0")"
private=(--net)
# Without root, a user namespace lends the right to make the other one.
[ "$(id -u)" = 0 ] || private+=(--map-root-user)
# What servers remember without being told where is of this run.
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
run() { # ARGUMENT OF UNITTEST...
    # Sockets of shared memory are named by ports, and the ports are those of every run.
    local own=$state/$BASHPID
    mkdir -p -m 700 "$own/run"
    XDG_STATE_HOME=$own XDG_RUNTIME_DIR=$own/run unshare "${private[@]}" bash -c \
        'PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec /usr/bin/python3 -B -m unittest "$@"' run "$@"
}
if [ $# -gt 0 ]; then
    run -v "$@"
elif [ "${JOBS:-1}" = 1 ]; then
    run discover -v -s . -t .
else
    failed=0
    for file in test_*.py; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n || failed=1; done
        { run -v "${file%.py}" > "$state/$file.log" 2>&1 && bad=0 || bad=1; cat "$state/$file.log"; exit $bad; } &
    done
    while [ -n "$(jobs -p)" ]; do wait -n || failed=1; done
    exit $failed
fi
