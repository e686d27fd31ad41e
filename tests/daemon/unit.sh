#!/usr/bin/env bash
# Boots a systemd of its own that runs docs/deploy/effectd.service; tests/daemon/unit.rs starts this as root.
#
#   unit.sh boot FOLDER GROUP   as PID 1 of new PID, mount, network, IPC and UTS namespaces; FOLDER has effectd.service, request.json and
#                               the program (bin/effectd), GROUP is an empty cgroup of version 2
#   unit.sh try                 as a service of that systemd; writes what it finds into the folder
#
# This systemd reads no unit and no setting of the machine, and has its own cgroups, users, network, /run, /tmp and /var/lib. Everything else
# is read-only for it: at its start a systemd sets kernel parameters, and may write to /etc and /dev.
set -euo pipefail
here=/run/test

boot() {
    # Outside of these namespaces, a second systemd would act on the machine itself.
    (($$ == 1))
    mount -t proc proc /proc
    echo 0 >"$2/cgroup.procs"
    mount -t tmpfs tmpfs /run
    mkdir "$here"
    mount --bind "$1" "$here"
    local name
    for name in /tmp /var/tmp /var/lib /etc/systemd; do
        mount -t tmpfs tmpfs "$name"
    done
    # The unit hides home folders, where the build may be, and /usr/bin is the machine's.
    mount --bind "$here/bin" /usr/local/bin
    for name in passwd group; do
        cp "/etc/$name" "$here"
        mount --bind "$here/$name" "/etc/$name"
    done
    echo 'effectd:x:64917:64917::/var/lib/effectd:/usr/sbin/nologin' >>/etc/passwd
    echo 'effectd:x:64917:' >>/etc/group
    units
    mount -o remount,bind,ro /
    for name in /dev /proc/sys; do
        mount --rbind "$name" "$name"
        mount -o remount,bind,ro "$name"
    done
    # shellcheck disable=SC2016 # the inner shell expands it
    exec unshare --cgroup bash -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec env -i container=test PATH="$PATH" \
        SYSTEMD_UNIT_PATH="$0/units" SYSTEMD_GENERATOR_PATH="$0/none" \
        /lib/systemd/systemd --system --unit=try.service --log-target=null --show-status=no' "$here"
}

units() {
    local name units="$here/units"
    mkdir -p "$units/effectd.service.d" "$units/doctor.service.d"
    for name in sysinit basic shutdown; do
        printf '[Unit]\nDefaultDependencies=no\n' >"$units/$name.target"
    done
    # The doctor as a service that is confined like the daemon.
    for name in effectd doctor; do
        sed 's,/usr/bin/effectd,/usr/local/bin/effectd,' "$here/effectd.service" >"$units/$name.service"
        printf '[Service]\nStandardOutput=file:%s\nStandardError=file:%s\n' "$here/$name.out" "$here/$name.err" >"$units/$name.service.d/output.conf"
    done
    printf '[Service]\nType=oneshot\nExecStart=\nExecStart=/usr/local/bin/effectd doctor -o json\n' >"$units/doctor.service.d/command.conf"
    printf '[Unit]\nSuccessAction=exit-force\nFailureAction=exit-force\n[Service]\nType=oneshot\nExecStart=/bin/bash %s/unit.sh try\nStandardError=file:%s/try.err\n' \
        "$here" "$here" >"$units/try.service"
}

as_effectd() {
    (cd /var/lib/effectd && setpriv --reuid=64917 --regid=64917 --clear-groups "$@")
}

restarted() {
    [[ "$(systemctl show effectd -p NRestarts -p ActiveState | sort | tr '\n' ' ')" == "ActiveState=active NRestarts=1 " ]]
}

try() {
    trap 'systemctl status effectd doctor --no-pager >&2 || true' ERR
    # The kernel lets the sandbox mount a /proc only where nothing hides a part of one.
    umount /proc/sys
    install -d -m 0700 -o 64917 -g 64917 /var/lib/effectd
    as_effectd effectd init --state /var/lib/effectd
    # No night rule: this runs at every hour.
    sed -i 's/"22:00"/"00:00"/; s/"06:00"/"00:00"/' /var/lib/effectd/policy/policy.toml
    systemctl start doctor
    systemctl start effectd
    export EFFECTD_STATE=/var/lib/effectd EFFECTD_SOCKET=/run/effectd/effectd.sock
    as_effectd effectd run -o json - <"$here/request.json" >"$here/receipt.json"
    systemctl reload effectd
    # Killed, it comes back in the same cgroup.
    systemctl kill --kill-who=main --signal=KILL effectd
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        ! restarted || break
        sleep 0.1
    done
    restarted
    as_effectd effectd receipts verify
    systemctl stop effectd
    systemctl show effectd -p Result >"$here/ended.txt"
}

"$@"
