#!/bin/bash
# A real systemd as PID 1 of namespaces of its own, to try the units in: root only, and nothing of this machine changes.
#
#   tools/live_systemd.sh [COMMAND ...]
#
# COMMAND runs beside that systemd, by default tools/live_systemd_checks.py. This machine's files lie under an overlay in
# memory, /sys and /proc/sys can only be read, and the network is a loopback. When COMMAND ends, or after
# SPECMESH_LIVE_LIMIT seconds, all of it is gone. Exit code 75: it cannot run here, and why.
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
world=${SPECMESH_LIVE_WORLD:-}
python=${SPECMESH_LIVE_PYTHON:-/usr/bin/python3}
limit=${SPECMESH_LIVE_LIMIT:-900}
mounts=${SPECMESH_LIVE_MOUNTS:-$(readlink /proc/self/ns/mnt)}
tries=0

skip() { echo "skipped: $*" >&2; exit 75; }

outside() {
    [ "$(id -u)" = 0 ] || skip "needs root"
    [ -x /lib/systemd/systemd ] || skip "needs systemd, in /lib/systemd"
    grep -qw overlay /proc/filesystems || modprobe -q overlay || skip "the kernel has no overlay filesystem"
    for program in unshare setpriv findmnt pivot_root; do
        command -v "$program" > /dev/null || skip "needs $program"
    done
    tree=$(findmnt -n -l -t cgroup2 -o TARGET | head -n 1)
    [ -n "$tree" ] || skip "cgroup v2 is not mounted"
    ! findmnt -n /usr > /dev/null || skip "/usr is a file system of its own, which an overlay of / does not show"
    unshare --mount --uts --ipc --cgroup --net --pid --fork true || skip "may not make namespaces here"
    world=$(mktemp -d /run/specmesh-live.XXXX)
    export SPECMESH_LIVE_WORLD=$world SPECMESH_LIVE_MOUNTS=$mounts
    group="$tree/specmesh-live.$$"
    mkdir "$group" || { rmdir "$world"; skip "may not make a cgroup"; }
    trap clean EXIT
    (
        echo "$BASHPID" > "$group/cgroup.procs"
        [ $# -gt 0 ] || set -- /usr/bin/python3 /opt/live/live_systemd_checks.py
        exec unshare --mount --propagation private --uts --ipc --cgroup "$0" --inside "$group" "$@"
    )
}

clean() {
    echo 1 > "$group/cgroup.kill"  # all that was started here, and nothing else
    for _ in {1..50}; do
        ! find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || break
        sleep 0.1
    done
    rmdir "$world"
}

# A root of its own, with specmesh installed in /opt/specmesh: the network is still there for pip.
inside() {
    local group=$1; shift
    [ "$(readlink /proc/self/ns/mnt)" != "$mounts" ] || exit 70
    mount -t tmpfs -o mode=755 tmpfs "$world"
    mkdir "$world/upper" "$world/work" "$world/root"
    mount -t overlay -o "lowerdir=/,upperdir=$world/upper,workdir=$world/work" overlay "$world/root"
    local new="$world/root"
    for folder in dev proc sys; do mount --rbind "/$folder" "$new/$folder"; done
    rm -rf "$new/opt/specmesh" "$new/opt/live"
    mkdir "$new/opt/live"
    cp -r "$source"/{pyproject.toml,setup.py,README.md,LICENSE,specmesh,wire,daemons,systemd,launchd} "$new/opt/live"
    cp "$source"/{tools/live_systemd_checks.py,docs/operations.md} "$new/opt/live"
    chroot "$new" "$python" -m venv /opt/specmesh
    chroot "$new" /opt/specmesh/bin/pip install -q '/opt/live[verifier]'
    for folder in dev proc sys; do umount -R -l "$new/$folder"; done
    # nothing of this machine is started: only what the tried units need
    rm -rf "$new"/etc/systemd/system/* "$new/etc/fstab" "$new"/usr/lib/systemd/system-generators/* \
        "$new"/usr/lib/systemd/system/*.target.wants "$new/etc/specmesh" "$new"/{var/lib,var/cache}/specmesh
    local units="$new/etc/systemd/system"
    mkdir -p "$units/sysinit.target.wants" "$units/sockets.target.wants" "$new/var/log/journal"
    ln -s /lib/systemd/system/systemd-journald{.socket,-dev-log.socket,.service} "$units/sysinit.target.wants"
    ln -s /lib/systemd/system/dbus.socket "$units/sockets.target.wants"

    unshare --mount --propagation private --net --pid --fork --kill-child "$0" --booting 2> "$world/boot.log" &
    local holder=$! init=
    until init=$(tr -d ' ' < "/proc/$holder/task/$holder/children") && [ -n "$init" ]; do sleep 0.1; done
    mkdir "$group/commands"
    echo $$ > "$group/commands/cgroup.procs"
    until [ "$(cat "/proc/$init/comm" 2> /dev/null)" = systemd ]; do
        [ -d "/proc/$init" ] || { cat "$world/boot.log" >&2; exit 1; }
        sleep 0.1
    done
    local enter=(nsenter --target "$init" --mount --pid --net --ipc --uts --cgroup)
    until "${enter[@]}" systemctl is-system-running > "$world/state" 2>&1; do
        [ $((++tries)) -lt 50 ] || { cat "$world/boot.log" "$world/state" >&2; exit 1; }
        sleep 0.2
    done
    timeout "$limit" "${enter[@]}" env -i HOME=/root LANG=C.UTF-8 PATH=/opt/specmesh/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# The mounts that a container has, and systemd in place of this shell.
booting() {
    [ $$ = 1 ] || exit 70
    cd "$world/root"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/pts dev/shm
    for device in null zero full random urandom tty; do
        touch "dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    ln -s /proc/self/fd dev/fd
    ln -s pts/ptmx dev/ptmx
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    for folder in dev/shm run tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
    chmod 755 run
    ip link set lo up
    mkdir -p mnt
    pivot_root . mnt
    umount -l /mnt
    mount --make-rshared /  # as a machine has it; without it credentials do not reach a unit
    exec setpriv --bounding-set -sys_time,-sys_module,-sys_boot,-sys_rawio,-syslog,-mac_admin,-wake_alarm \
        env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=no < /dev/null
}

{  # read as a whole, so that this file may change meanwhile
    case "${1:-}" in
        --inside) shift; inside "$@" ;;
        --booting) shift; booting ;;
        *) outside "$@" ;;
    esac
    exit
}
