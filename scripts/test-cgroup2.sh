#!/bin/sh
# Runs the tests of the sandbox's memory limit on a kernel with control groups of version 2, whatever this machine has.
#
#     sh scripts/test-cgroup2.sh        needs Debian's user-mode-linux (or LINUX=path/to/linux.uml) and .venv
#
# User-mode Linux is a process: it mounts this machine's files read-only, and its own /tmp in memory. Exits with 1 if a
# test fails or none ran.
set -eu

linux=${LINUX:-linux.uml}
root=$(pwd)
command -v "$linux" >/dev/null 2>&1 || {
    echo "error: there is no program '$linux'" >&2
    echo "  fix: apt install user-mode-linux, or LINUX=path/to/linux.uml" >&2
    exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/init" <<INIT
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mount -t tmpfs tmpfs /tmp -o size=600m
cd "$root" && .venv/bin/pytest -v -p no:cacheprovider tests/security/test_sandbox_memory.py && echo "cgroup2: passed"
halt -f
INIT
chmod 700 "$folder/init"
"$linux" mem=1500M root=/dev/root rootfstype=hostfs ro "init=$folder/init" con=null con0=null,fd:1 ssl=null quiet \
    </dev/null 2>&1 | tee "$folder/log"
grep -q "cgroup2: passed" "$folder/log"
