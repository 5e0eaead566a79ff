#!/usr/bin/env bash
# Makes the Debian package of what is checked out: target/deb/weft_VERSION_ARCHITECTURE.deb, and one with debugging information.
# It runs where it is built: the C library of this host is the oldest one that it needs.
#
# Two packages of one commit are equal, byte by byte, if the same versions of the tools make them: paths, users, locale and processors of the
# host do not matter, and all times in them are that of the commit, or SOURCE_DATE_EPOCH (`make test-reproducible`). An archive that `git
# archive` has made will do. WEFT_BINARY=FILE packages another binary than the release build, for trials of the package.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 TZ=UTC
umask 022

missing=()
command -v dh >/dev/null || missing+=(debhelper)
command -v dpkg-buildpackage >/dev/null || missing+=(dpkg-dev)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "make deb needs these Debian packages; install them: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

cargo=${CARGO:-cargo}
build() {
    # What this shell has set for other builds must not change the package.
    unset "${!CARGO_PROFILE_@}" CARGO_INCREMENTAL CFLAGS CXXFLAGS
    local home=${CARGO_HOME:-$HOME/.cargo} sysroot place flags=()
    sysroot=$(${RUSTC:-rustc} --print sysroot)
    # Messages of a panic, assertions in C and debugging information name files. The last prefix that fits counts.
    local names=("$PWD=/usr/src/weft" "$(pwd -P)=/usr/src/weft" "$home=/usr/src/cargo")
    # A compiler asks the kernel for its folder, which is without links. A cargo home may be a link, and have links to what others share.
    for place in registry git; do names+=("$(realpath -m "$home/$place")=/usr/src/cargo/$place"); done
    flags=("${names[@]/#/--remap-path-prefix=}" "--remap-path-prefix=$sysroot=/usr/src/rust")
    export CARGO_ENCODED_RUSTFLAGS
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
    export CFLAGS="${names[*]/#/-ffile-prefix-map=}"
    # mimalloc contains the time when it was compiled. SOURCE_DATE_EPOCH would do, but it differs from commit to commit, and what is compiled
    # already is not compiled again for it.
    CFLAGS+=' -Wno-builtin-macro-redefined -D__DATE__="-" -D__TIME__="-"'
    # A folder of its own: other flags would build everything again, here and then in target/release.
    $cargo build --release --locked -p weft --target-dir target/package
}
if [ -n "${WEFT_BINARY:-}" ]; then
    binary=$(realpath "$WEFT_BINARY")
else
    (build)
    binary=$PWD/target/package/release/weft
fi

number=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
version=$number
# The number alone is that of a release. Every other package is older than the release, and newer than packages of earlier commits.
if commit=$(git rev-parse --verify -q HEAD 2>/dev/null) && [ "$(git rev-parse --show-toplevel)" = "$(pwd -P)" ]; then
    seconds=$(git log -1 --format=%ct)
    released=$(git describe --exact-match --tags --match "v$number" 2>/dev/null) || released=
else
    # git has not written these into a copy that is no archive.
    read -r commit seconds <packaging/commit
    case $seconds in *[!0-9]* | '') commit= seconds=$(stat -c %Y Cargo.lock) ;; esac
    released=
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$seconds}
if [ -n "$commit" ] && [ -z "$released" ]; then
    version=$number~$(date -d "@$seconds" +%Y%m%d.%H%M%S).${commit:0:8}
fi

rm -rf target/deb
stage=target/deb/weft-$number
mkdir -p "$stage/completions" "$stage/examples" "$stage/text"
cp "$binary" "$stage/weft"
"$binary" man "$stage/man" >/dev/null
"$binary" completions bash >"$stage/completions/weft"
"$binary" completions zsh >"$stage/completions/_weft"
"$binary" completions fish >"$stage/completions/weft.fish"
"$binary" config init >"$stage/examples/weft.toml"
cp packaging/weft.toml "$stage/"
cp packaging/as-users.conf "$stage/examples/"
cp README.md CHANGELOG.md docs/*.md "$stage/text/"
cp -r docs/tasks "$stage/text/"
$cargo tree --locked -p weft --edges normal --prefix none --format '{p}: {l}' |
    sed -e '/^weft/d' -e 's/ (\*)$//' -e 's/ (proc-macro)//' | sort -u >"$stage/crates.txt"

cp -r packaging/debian "$stage/debian"
cp packaging/weft.service packaging/weft.socket "$stage/debian/"
# The text of the license as a paragraph of the copyright file.
sed -e '1,/^Permission is/{/^Permission is/!d}' -e 's/^$/./' -e 's/^/ /' LICENSE-MIT >"$stage/debian/mit"
sed -i -e "/^@MIT@$/{r $stage/debian/mit" -e 'd}' "$stage/debian/copyright"
rm "$stage/debian/mit"
mkdir "$stage/debian/source"
echo '3.0 (native)' >"$stage/debian/source/format"
cat >"$stage/debian/changelog" <<TEXT
weft ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The Weft authors <weft-storage@users.noreply.github.com>  $(date -R -d "@$SOURCE_DATE_EPOCH")
TEXT

(cd "$stage" && dpkg-buildpackage --build=binary --no-sign) >target/deb/build.log 2>&1 ||
    { tail -20 target/deb/build.log >&2; exit 1; }
package=$(echo target/deb/weft_*.deb)
size=$(stat -c %s "$stage/debian/weft/usr/bin/weft")
echo "$package: $(stat -c %s "$package") bytes, the binary $size"
# Not everywhere, as it is large; where it is, it decides.
if command -v lintian >/dev/null; then
    lintian --fail-on error target/deb/weft_*.changes
else
    echo "lintian is not installed, so it has not checked the package" >&2
fi
