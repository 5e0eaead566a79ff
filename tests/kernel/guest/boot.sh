#!/usr/bin/env bash
# Boots the guest, runs the script JOB there with bash, and ends with its exit status; its output comes out here.
#
#     boot.sh DIR JOB     DIR is /lab in the guest, its working folder; the kernel's log goes to DIR/.console
#
#     LAB          where build.sh put the guest (default: target/lab)
#     LAB_SIW      parameters of siw, for example "mpa_crc_required=1 peer_to_peer=1"
#     LAB_FORWARD  "HOSTPORT:GUESTPORT ...": the guest's services on the host's 127.0.0.1
#     LAB_SECONDS  the guest is stopped after so long (default 300)
#     LAB_ACCEL    tcg (default: no special machine needed, ten times slower) or kvm
#
# The guest reaches the services of the host's 127.0.0.1 as 10.0.2.2, and nothing else. What it writes to its disk is
# thrown away, so several may run at a time.
set -euo pipefail
lab=${LAB:-$(dirname "$0")/../../../target/lab}
dir=$(realpath "$1")
printf '%s\n' "$2" > "$dir/.job"
rm -f "$dir/.status" "$dir/.console"
forward=
for pair in ${LAB_FORWARD:-}; do forward+=",hostfwd=tcp:127.0.0.1:${pair%:*}-:${pair#*:}"; done
siw=
for parameter in ${LAB_SIW:-}; do siw+=" siw.$parameter"; done
case ${LAB_ACCEL:-tcg} in
    tcg) processor=(-accel tcg,thread=multi,tb-size=512 -cpu max,la57=off,smap=off,smep=off,pku=off) ;;
    *) processor=(-accel "$LAB_ACCEL" -cpu host) ;;
esac
# One processor: with two, an emulated guest of QEMU 7.2 has died in early boot.
timeout --foreground "${LAB_SECONDS:-300}" qemu-system-x86_64 -M q35,hpet=off,smbus=off,sata=off "${processor[@]}" \
    -smp 1 -m 1024 -nodefaults -display none -no-reboot -kernel "$lab/vmlinuz" -initrd "$lab/initrd.cpio" \
    -append "console=ttyS0 loglevel=6 panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on cryptomgr.notests$siw" \
    -drive "file=$lab/root.img,format=raw,if=virtio,snapshot=on" \
    -virtfs "local,path=$dir,mount_tag=lab,security_model=none" \
    -netdev "user,id=n0$forward" -device virtio-net-pci,netdev=n0,romfile= \
    -device virtio-serial-pci -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out \
    -serial "file:$dir/.console" < /dev/null | cat || true # through a pipe: it would write over what a file has
if [ -s "$dir/.status" ]; then exit "$(cat "$dir/.status")"; fi
tail -20 "$dir/.console" >&2 2>/dev/null || true
echo "boot.sh: the guest ended without an exit status" >&2
exit 125
