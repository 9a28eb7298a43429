#!/bin/sh
# Builds wheel and sdist into dist/, and the wheel of Atropos's import names (recipes/imports); tries both wheels in an
# empty environment and an empty folder, and writes the notes.
#
#     sh scripts/release.sh [PYTHON]        needs pip and venv; PyTorch is found as pip is configured to
#
# The notes are the parts of CHANGELOG.md under Unreleased and under the version of src/hermes/__init__.py.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/build"
"$place/build/bin/pip" install --quiet --disable-pip-version-check build
rm -rf dist
"$place/build/bin/python" -m build --outdir dist .
"$place/build/bin/python" -m build --wheel --outdir dist recipes/imports
wheel=$(ls dist/hermes_research-*.whl)
version=$(basename "$wheel" | cut -d - -f 2)

"$python" -m venv "$place/empty"
"$place/empty/bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt "$wheel[train]"
"$place/empty/bin/pip" install --quiet --disable-pip-version-check --no-deps dist/hermes_research_atropos-*.whl
(cd "$place" && "$place/empty/bin/python" -c "from atroposlib.envs.base import BaseEnv")
mkdir "$place/folder"
(cd "$place/folder" && HERMES_HOME="$place/home" "$place/empty/bin/hermes" quickstart --fast)

awk -v version="## $version" '/^## / { inside = $0 == "## Unreleased" || index($0 " ", version " ") == 1; next } inside' \
    CHANGELOG.md >dist/notes.md
[ -s dist/notes.md ] || { echo "error: CHANGELOG.md has neither $version nor Unreleased" >&2; exit 1; }
echo "$version: $(ls dist | tr '\n' ' ')"
