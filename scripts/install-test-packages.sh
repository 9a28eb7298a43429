#!/bin/sh
# Installs what the tests need from the system (a browser, a sandbox and its network), where this user may.
# Never fails: a test that misses its package skips and names it.
missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v pasta >/dev/null 2>&1 || missing="$missing passt"
command -v slirp4netns >/dev/null 2>&1 || missing="$missing slirp4netns"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing for the tests:$missing"
    echo "  bubblewrap, passt, slirp4netns: the sandbox and its network; chromium: the web app in a browser"
    apt-get update -qq >/dev/null 2>&1
    apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 && exit 0
    absent=""  # one that this system does not have must not keep the others away
    for package in $missing; do
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || absent="$absent $package"
    done
    missing="$absent"
    [ -z "$missing" ] && exit 0
fi
echo "not installed:$missing (the tests that need them will skip; install them with your package manager)"
