#!/usr/bin/env bash
# The white papers' pictures on this machine, against a server of our own: papers.json.gz (all figures), papers.html (the page),
# papers-claims.md (their claims one by one), beside this file. Options go to `weft bench all`: measure.sh --quick
set -euo pipefail
cd "$(dirname "$0")/../.."
weft=target/release/weft
out=docs/results
busy=$(awk '{print $1}' /proc/loadavg)
echo "load of this machine before: $busy (a quiet one has less than 0.3)"
"$weft" bench all local "$@" --out "$out/papers.json"
"$weft" bench show "$out/papers.json" --out "$out/papers.html" --out "$out/papers-claims.md"
size=$(stat -c %s "$out/papers.html")
[ "$size" -lt $((2 << 20)) ] || { echo "$out/papers.html has $size bytes: more than 2 MiB" >&2; exit 1; }
# Eight megabytes, most of them histograms.
gzip -9 -n -f "$out/papers.json"
