#!/usr/bin/env bash
# Builds the guest that the tests of this folder boot: Debian 12 with the 6.12 kernel of bookworm's security archive and
# its siw, cifs (with SMB Direct), ksmbd (with SMB Direct), NFS/RDMA client and server, rping.
#
#     build.sh [DIR]      result in DIR (default target/lab): vmlinuz, initrd.cpio, root.img; about 4 minutes on two cores
#
# Needs a Debian 12 host with its package lists fetched (apt-get update) and the network for .deb files. Needs no root: packages are
# unpacked, never installed. A finished step is not repeated; a change of this folder rebuilds what depends on it.
#
# Debian's 6.12 has siw, SMB Direct's client and SMB Direct's server switched off: these modules are compiled from
# linux-source of the same version against the kernel's headers. siw's constants try_gso, mpa_crc_required,
# mpa_crc_strict and peer_to_peer are made module parameters, so that the tests can set them; nothing else is changed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
lab=$(realpath -m "${1:-$here/../../../target/lab}")
series=6.12
jobs=${LAB_JOBS:-$(nproc)}
packages="bash coreutils findutils grep sed gawk util-linux mount kmod iproute2 netbase procps diffutils
  nfs-common nfs-kernel-server cifs-utils ksmbd-tools rdmacm-utils ibverbs-utils ibverbs-providers
  rpcbind fio git make gcc libc6-dev attr dash tar"
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$lab"
cd "$lab"

# One build at a time; whoever waited finds it done.
exec 9> .lock
flock 9

begin() { # STEP: false when it is done
    [ ! -e ".done-$1" ] && echo "guest: $1 (at ${SECONDS} s)"
}
finish() {
    touch ".done-$1"
}
aptget() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}
fail() {
    echo "guest: $1" >&2
    exit 1
}

kernel() {
    local image version abi headers
    image=$(apt-cache depends "linux-image-$series-amd64" 2>/dev/null | sed -n 's/.*Depends: *//p' | head -1)
    [ -n "$image" ] || fail "no linux-image-$series-amd64 in the package lists: this needs Debian 12 with bookworm-security, and apt-get update"
    version=${image#linux-image-} abi=${image#linux-image-} abi=${abi%-amd64}
    rm -rf debs system source
    mkdir -p debs system source
    (cd debs && aptget download "$image" "linux-headers-$version" "linux-headers-$abi-common" \
        "linux-kbuild-$abi" "linux-source-$series")
    for deb in debs/*.deb; do dpkg -x "$deb" system; done
    echo "$version" > version
    cp "system/boot/vmlinuz-$version" vmlinuz
    headers=system/usr/src/linux-headers-$version
    echo "include $lab/system/usr/src/linux-headers-$abi-common/Makefile" > "$headers/Makefile"
    rm -f "$headers/vmlinux" # without it no BTF is made for our modules, which needs pahole
    tar -xf "system/usr/src/linux-source-$series.tar.xz" -C source --strip-components=1 --wildcards \
        '*/fs/smb/*' '*/fs/nls/*.h' '*/drivers/infiniband/sw/siw/*' '*/scripts/asn1_compiler.c' '*/include/linux/asn1*.h'
    rm -rf debs "system/usr/src/linux-source-$series.tar.xz"
}

modules() {
    local version abi siw=source/drivers/infiniband/sw/siw
    version=$(cat version) abi=${version%-amd64}
    for constant in try_gso mpa_crc_required mpa_crc_strict peer_to_peer; do
        sed -i "s/^const bool $constant\(.*\);/bool $constant\1; module_param($constant, bool, 0644);/" $siw/siw_main.c
        sed -i "s/^extern const bool $constant;/extern bool $constant;/" $siw/siw.h
    done
    gcc -O1 -Isource/include -o "system/usr/lib/linux-kbuild-$abi/scripts/asn1_compiler" source/scripts/asn1_compiler.c
    compile() { # DIRECTORY OPTION...
        make -s -C "system/usr/src/linux-headers-$version" M="$lab/source/$1" -j"$jobs" "${@:2}" modules
    }
    compile drivers/infiniband/sw/siw CONFIG_RDMA_SIW=m
    compile fs/smb/client CONFIG_CIFS_SMB_DIRECT=y CFLAGS_MODULE=-DCONFIG_CIFS_SMB_DIRECT=1
    compile fs/smb/server CONFIG_SMB_SERVER_SMBDIRECT=y CFLAGS_MODULE=-DCONFIG_SMB_SERVER_SMBDIRECT=1
}

debs() { # the guest's packages with all that they depend on
    mkdir -p packages/partial
    : > status
    # shellcheck disable=SC2086
    aptget install -y --download-only --no-install-recommends \
        -o Dir::State::status="$lab/status" -o Dir::Cache::archives="$lab/packages" $packages
}

root() {
    local version to from
    version=$(cat version)
    rm -rf root root.img first
    mkdir -p root/usr/{bin,sbin,lib,lib64}
    for dir in bin sbin lib lib64; do ln -s "usr/$dir" "root/$dir"; done
    for deb in packages/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --no-same-owner --keep-directory-symlink
    done
    rm -rf root/usr/share/{doc,man,locale,info,lintian,bash-completion,perl}
    # What maintainer scripts would have made: none has run.
    mkdir -p root/{proc,sys,dev,run,tmp,lab,mnt,srv/export,var/lib/nfs/{rpc_pipefs,v4recovery,nfsdcltrack,sm,sm.bak},etc/ksmbd}
    touch root/var/lib/nfs/{etab,rmtab,state}
    printf '%s\n' root:x:0:0:root:/root:/bin/bash nobody:x:65534:65534::/:/bin/false u:x:1000:1000::/:/bin/false \
        statd:x:100:65534::/:/bin/false _rpc:x:101:65534::/:/bin/false > root/etc/passwd
    printf '%s\n' root:x:0: nogroup:x:65534: > root/etc/group
    printf '%s\n' '127.0.0.1 localhost' '10.0.2.2 host' '10.0.2.15 guest' > root/etc/hosts
    printf '%s: files\n' passwd group hosts protocols services > root/etc/nsswitch.conf
    ln -s /proc/self/mounts root/etc/mtab
    ln -sf gawk root/usr/bin/awk
    to=root/usr/lib/modules/$version from=system/lib/modules/$version
    [ -d "$from" ] || from=system/usr/lib/modules/$version
    mkdir -p "$to/updates"
    cp "$from"/modules.{order,builtin,builtin.modinfo} "$to"
    (cd "$from" && find kernel/{arch,crypto,fs,lib,net} kernel/drivers/{virtio,block,infiniband/{core,sw,ulp}} \
        kernel/drivers/net/{virtio_net,net_failover}.ko* -name '*.ko*' -print0 |
        xargs -0 cp --parents -t "$lab/$to")
    find "$to" -name '*.ko.xz' -print0 | xargs -0 -r -P "$jobs" -n 40 xz -d
    find source -name '*.ko' -exec cp -t "$to/updates" {} + # modprobe prefers this folder
    # An emulated processor loads modules without debug data much faster.
    find "$to" -name '*.ko' -print0 | xargs -0 -P "$jobs" -n 1 objcopy -g -R .BTF
    depmod -b root "$version"
    mkdir first # the modules that the first root needs to mount the second, in order
    modprobe -d root -S "$version" --show-depends -a virtio_blk ext4 | awk '$1 == "insmod" && !seen[$2]++ {print $2}' |
        cat -n | while read -r number module; do cp "$module" "first/$(printf %02d "$number").ko"; done
    truncate -s "$(($(du -sm root | cut -f1) + 300))M" root.img
    mkfs.ext4 -q -F -O ^has_journal -E root_owner=0:0 -d root root.img
    rm -rf root
}

initrd() {
    rm -rf initial
    mkdir -p initial/{bin,proc,dev,new,lab}
    cp "$(command -v busybox)" initial/bin/busybox
    cp -r first initial/modules
    install -m 755 "$here"/bin/* initial/lab
    for program in connectathon files; do
        gcc -O1 -Wall -static -o "initial/lab/$program" "$here/$program.c"
    done
    install -m 755 "$here/first-init" initial/init
    (cd initial && find . | cpio -o -H newc --quiet) > initrd.new
    mv initrd.new initrd.cpio
    rm -rf initial
}

# A step is done for good when it is done for this script; the first root costs a second and is always made.
digest=$(sha256sum "$here/build.sh" | cut -c1-16)
if [ "$(cat .made-by 2>/dev/null)" != "$digest" ]; then
    rm -f .done-*
    echo "$digest" > .made-by
fi
for step in kernel modules debs root; do
    if begin $step; then
        $step
        finish $step
    fi
done
initrd
