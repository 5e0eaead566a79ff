#!/usr/bin/env bash
# Installs the Debian package on a Debian 12 that systemd runs, in the emulated guest of tests/kernel, and uses its units there: the job below.
#
# Wants root, debootstrap and the guest (tests/kernel/guest/build.sh); five minutes. systemd.sh [PACKAGE]: default is the package of `make deb`.
# LAB names the guest's folder (default target/lab), WEFT_INSTALL and MIRROR are those of run.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
lab=$(realpath "${LAB:-target/lab}")
for file in vmlinuz initrd.cpio root.img; do
    [ -e "$lab/$file" ] || { echo "there is no guest in $lab: bash tests/kernel/guest/build.sh" >&2; exit 1; }
done
shopt -s nullglob
packages=("${1:+$(realpath "$1")}")
[ -n "${1:-}" ] || packages=("$PWD"/target/deb/weft_*.deb)
[ ${#packages[@]} = 1 ] || { echo "there is no package in target/deb, or more than one: make deb" >&2; exit 1; }
own=${WEFT_INSTALL:-$PWD/target/lab/install}.systemd
mirror=${MIRROR:-http://deb.debian.org/debian}
base=$own.base
if [ ! -e "$base/.whole" ]; then
    rm -rf "$base"
    mkdir -p "$(dirname "$base")"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,udev,kmod,iproute2,smbclient,nfs-common,adduser bookworm "$base" "$mirror" \
        >"$base.log" 2>&1 || { tail -5 "$base.log" >&2; exit 1; }
    touch "$base/.whole"
fi
trap 'rm -rf "$own"' EXIT
rm -rf "$own"
mkdir -p "$own/initrd/lab" "$own/shared"
cp -a --reflink=auto "$base" "$own/root"
cp "${packages[0]}" "$own/root/root/weft.deb"
debugfs -R "rdump /usr/lib/modules $own/root/usr/lib" "$lab/root.img" 2>"$own/debugfs.log"
mkdir -p "$own/root/lab"
: >"$own/root/etc/machine-id"
# What QEMU's folder needs, before systemd is process 1.
cat >"$own/initrd/lab/lab-init" <<'TEXT'
#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
modprobe -a 9pnet_virtio 9p
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 lab /lab
exec /lib/systemd/systemd
TEXT
chmod +x "$own/initrd/lab/lab-init"
cat >"$own/root/etc/systemd/system/job.service" <<'TEXT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
Environment=HOME=/root
ExecStart=/bin/bash -c 'for port in /sys/class/virtio-ports/*; do exec >"/dev/$${port##*/}" 2>&1; done; cd /root; bash -eu /lab/.job; echo $$? >/lab/.status; sync; systemctl poweroff --force --force'
TEXT
mkdir -p "$own/root/etc/systemd/system/graphical.target.wants"
ln -s ../job.service "$own/root/etc/systemd/system/graphical.target.wants/job.service"
truncate -s "$(($(du -sm "$own/root" | cut -f1) + 400))M" "$own/root.img"
mkfs.ext4 -q -F -O ^has_journal -d "$own/root" "$own/root.img"
(cd "$own/initrd" && find . | cpio -o -H newc --quiet) | cat "$lab/initrd.cpio" - >"$own/initrd.cpio"
ln -s "$lab/vmlinuz" "$own/vmlinuz"
cat >"$own/job" <<'TEXT'
step() { echo "== $* ($(cut -d. -f1 /proc/uptime) s)"; }
expect() { # VALUE COMMAND...
    local value=$1
    shift
    said=$("$@" 2>&1) || true
    case $said in *"$value"*) ;; *) echo "FAILED: $*: $said, and not: $value"; journalctl -u weft --no-pager | tail -40; exit 1 ;; esac
}
property() { systemctl show --property "$2" --value "$1"; }
as() { smbclient -t 90 "//127.0.0.1/$2" -U "$1%$1-secret" -c "$3"; }
holder() { ss -Htlnp "sport = :445" | grep -o 'users:.*'; }
# Functions inherit it.
set -E
trap 'journalctl -u weft -u weft.socket --no-pager | tail -40; systemctl status weft weft.socket --no-pager -n 0' ERR

step install
ip link set lo up
dpkg -i weft.deb
expect active systemctl is-active weft
expect enabled systemctl is-enabled weft
expect disabled systemctl is-enabled weft.socket
expect weft property weft User
echo "shares: $(property weft StatusText)"

step users and shares
export WEFT_PASSWORD
for user in alice bob; do WEFT_PASSWORD=$user-secret weft user add $user; done
weft group add staff alice
install -d -o weft -g weft /srv/team
weft share add team /srv/team --write @staff --read bob
echo text >one
as alice team 'put one; ls'
expect ACCESS_DENIED as bob team 'put one two'
expect 'getting file' as bob team 'get one again'
# No error in a day's use: the unit forbids nothing that the service needs.
expect '' journalctl -u weft -p err --no-pager -q
test -z "$said"

step reload and restart
systemctl reload weft
systemctl restart weft
as alice team ls
pid=$(property weft MainPID)
kill -9 "$pid"
for _ in $(seq 100); do [ "$(property weft MainPID)" != "$pid" ] && systemctl -q is-active weft && break; sleep 1; done
test "$(property weft MainPID)" != "$pid"
as alice team ls

step sockets
systemctl stop weft
systemctl enable --now weft.socket
expect systemd holder
systemctl start weft
expect weft holder
as alice team ls
systemctl stop weft
expect systemd holder
# systemd starts the service for whoever connects.
as alice team ls
expect active systemctl is-active weft
systemctl disable --now weft.socket
systemctl restart weft

step as users
useradd --no-create-home alice
useradd --no-create-home bob
usermod --append --groups staff alice
install -D -m 0644 /usr/share/doc/weft/examples/as-users.conf /etc/systemd/system/weft.service.d/as-users.conf
systemctl daemon-reload
systemctl restart weft
expect root property weft User
install -d -m 2775 -g staff /srv/desk
weft share add desk /srv/desk
as alice desk 'put one'
expect 'alice staff' stat -c '%U %G' /srv/desk/one
expect ACCESS_DENIED as bob desk 'put one two'
as alice desk 'mkdir folder'
# Of the group of its folder, with the unit's umask.
expect 'alice staff drwxr-s---' stat -c '%U %G %A' /srv/desk/folder
sed -i 's/^smb_port = 445/&\nnfs_port = 2049/' /etc/weft/weft.toml
printf '\n[shares.desk.nfs]\nnet = ["127.0.0.1"]\n' >>/etc/weft/weft.toml
systemctl restart weft
mount -t nfs -o vers=4.2 127.0.0.1:/desk /mnt
runuser -u alice -- sh -c 'echo nfs >/mnt/by-nfs && mkdir /mnt/by-alice && chmod 2775 /mnt/by-alice'
expect 'alice staff' stat -c '%U %G' /srv/desk/by-nfs
expect 'Permission denied' runuser -u bob -- sh -c 'echo x >/mnt/of-bob'
umount /mnt
mount -t cifs -o "vers=3.1.1,username=alice,password=alice-secret" //127.0.0.1/desk /mnt
echo cifs >/mnt/by-cifs
umount /mnt
expect alice stat -c %U /srv/desk/by-cifs
expect '' journalctl -u weft -p err --no-pager -q
test -z "$said"
rm -r /etc/systemd/system/weft.service.d
systemctl daemon-reload
systemctl restart weft
expect weft property weft User
as alice team ls

step upgrade
dpkg-deb -R weft.deb tree
sed -i 's/^Version: .*/&+newer/' tree/DEBIAN/control
dpkg-deb -b -Zgzip -z1 tree newer.deb >/dev/null
pid=$(property weft MainPID)
dpkg -i newer.deb
test "$(property weft MainPID)" != "$pid"
as alice team ls
pid=$(property weft MainPID)
sed -i 's/Version: .*/&.again/' tree/DEBIAN/control
dpkg-deb -b -Zgzip -z1 tree newer.deb >/dev/null
echo 'wrong = 1' >>/etc/weft/weft.toml
expect 'is not restarted' dpkg -i newer.deb
test "$(property weft MainPID)" = "$pid"
as alice team ls

step purge
systemd-analyze security weft --no-pager | tail -1
apt-get purge -y -q weft
test ! -e /var/lib/weft && test ! -e /etc/weft && test -e /srv/team/one
expect 'could not be found' systemctl status weft
echo all of it worked
TEXT
LAB=$own LAB_SECONDS=1500 bash tests/kernel/guest/boot.sh "$own/shared" "$(cat "$own/job")"
