#!/usr/bin/env bash
# Installs what the comparison needs (smbd, a Go compiler for the independent client), builds the client, measures.
set -euo pipefail
cd "$(dirname "$0")"
if [ "$(id -u)" != 0 ]; then
    echo "make bench-peers runs Debian's smbd and needs root" >&2
    exit 1
fi
if ! command -v smbd >/dev/null || ! command -v go >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    command -v smbd >/dev/null || apt-get install -y -qq --no-install-recommends samba >/dev/null
    command -v go >/dev/null || apt-get install -y -qq --no-install-recommends golang-go >/dev/null
fi
mkdir -p ../../target/peers
(cd loader && go build -o ../../../target/peers/loader .)
# bbr, the usual default of cloud machines, paces loopback: reno for both servers and the client.
before=$(sysctl -n net.ipv4.tcp_congestion_control)
sysctl -q -w net.ipv4.tcp_congestion_control=reno
trap 'sysctl -q -w net.ipv4.tcp_congestion_control="$before"' EXIT
/usr/bin/python3 run.py --loader ../../target/peers/loader "$@"
