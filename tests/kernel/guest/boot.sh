#!/usr/bin/env bash
# Boots the guest, runs the script JOB there with bash, and ends with its exit status; its output comes out here.
#
#     boot.sh DIR JOB     DIR is /lab in the guest, its working folder; the kernel's log goes to DIR/.console
#
#     LAB          where build.sh put the guest (default: target/lab)
#     LAB_SIW      parameters of siw, for example "mpa_crc_required=1 peer_to_peer=1"
#     LAB_FORWARD  "HOSTPORT:GUESTPORT ...": the guest's services on the host's 127.0.0.1
#     LAB_TAP      tap devices of these names, in place of QEMU's own network: the host side of the first has 10.0.2.2/24, of
#                  the second 10.0.3.2/24, and so on; the guest is 15 in each
#     LAB_DRIVES   more disks, as QEMU names them ("nbd://127.0.0.1:10809/vol1 ..."): /dev/vdb, /dev/vdc, ...
#     LAB_SECONDS  the guest is stopped after so long (default 1800)
#     LAB_ACCEL    tcg (default: no special machine needed, ten times slower) or kvm
#
# The guest reaches the services of the host's 127.0.0.1 (with a tap device, of its 10.0.2.2) as 10.0.2.2, and nothing else. What it writes to its disk is
# thrown away, so several may run at a time.
set -euo pipefail
lab=${LAB:-$(dirname "$0")/../../../target/lab}
dir=$(realpath "$1")
printf '%s\n' "$2" > "$dir/.job"
rm -f "$dir/.status" "$dir/.console"
forward=
for pair in ${LAB_FORWARD:-}; do forward+=",hostfwd=tcp:127.0.0.1:${pair%:*}-:${pair#*:}"; done
network=()
for tap in ${LAB_TAP:-}; do
    id=n$((${#network[@]} / 4))
    network+=(-netdev "tap,id=$id,ifname=$tap,script=no,downscript=no" -device "virtio-net-pci,netdev=$id,romfile=")
done
if [ ${#network[@]} = 0 ]; then network=(-netdev "user,id=n0$forward" -device virtio-net-pci,netdev=n0,romfile=); fi
drives=()
for drive in ${LAB_DRIVES:-}; do drives+=(-drive "file=$drive,format=raw,if=virtio,cache=none"); done
# A processor that stands still is one that the host has stopped, and no fault of the guest.
patience="nosoftlockup rcupdate.rcu_cpu_stall_suppress=1"
siw=
for parameter in ${LAB_SIW:-}; do siw+=" siw.$parameter"; done
case ${LAB_ACCEL:-tcg} in
    tcg) processor=(-accel tcg,thread=multi,tb-size=512 -cpu max,la57=off,smap=off,smep=off,pku=off) ;;
    *) processor=(-accel "$LAB_ACCEL" -cpu host) ;;
esac
# One processor: with two, an emulated guest of QEMU 7.2 has died in early boot.
timeout --foreground "${LAB_SECONDS:-1800}" qemu-system-x86_64 -M q35,hpet=off,smbus=off,sata=off "${processor[@]}" \
    -smp 1 -m 1024 -nodefaults -display none -no-reboot -kernel "$lab/vmlinuz" -initrd "$lab/initrd.cpio" \
    -append "console=ttyS0 loglevel=6 panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on cryptomgr.notests $patience$siw" \
    -drive "file=$lab/root.img,format=raw,if=virtio,snapshot=on" "${drives[@]}" \
    -virtfs "local,path=$dir,mount_tag=lab,security_model=none" \
    "${network[@]}" \
    -device virtio-serial-pci -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out \
    -serial "file:$dir/.console" < /dev/null | cat || true # through a pipe: it would write over what a file has
if [ -s "$dir/.status" ]; then exit "$(cat "$dir/.status")"; fi
tail -20 "$dir/.console" >&2 2>/dev/null || true
echo "boot.sh: the guest ended without an exit status" >&2
exit 125
