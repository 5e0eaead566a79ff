#!/usr/bin/env bash
# Builds the package of what is committed twice: from a clone and from an archive without git, in folders of different names, with another
# cargo home, umask, locale and time zone. Both packages must be equal, byte by byte; diffoscope, if it is installed, shows where
# they are not.
#
# WEFT_REPRODUCE=DIR keeps the folders there. With PACKAGE=FILE, one build is compared with that package of the same commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${WEFT_REPRODUCE:-$(mktemp -d)}
[ -n "${WEFT_REPRODUCE:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
work=$(realpath "$work")
home=${CARGO_HOME:-$HOME/.cargo}
rm -rf "$work/a" "$work/another" "$work/cargo"
if [ -z "${PACKAGE:-}" ]; then
    git clone -q --no-hardlinks . "$work/a"
    (cd "$work/a" && bash packaging/deb.sh)
    PACKAGE=$(echo "$work"/a/target/deb/weft_*.deb)
fi
mkdir -p "$work/another/place" "$work/cargo"
git archive HEAD | tar -x -C "$work/another/place"
# What has been downloaded need not be downloaded again.
for part in registry git; do [ ! -e "$home/$part" ] || ln -s "$home/$part" "$work/cargo/$part"; done
(
    umask 077
    cd "$work/another/place"
    CARGO_HOME=$work/cargo TZ=Asia/Kathmandu LANG=de_DE.UTF-8 bash packaging/deb.sh
)
other=$(echo "$work/another/place"/target/deb/weft_*.deb)
sha256sum "$PACKAGE" "$other"
if [ "$(basename "$PACKAGE")" = "$(basename "$other")" ] && cmp "$PACKAGE" "$other"; then
    echo "both packages are equal"
    exit 0
fi
! command -v diffoscope >/dev/null || diffoscope --max-report-size 20000 "$PACKAGE" "$other" || true
echo "the packages differ" >&2
exit 1
