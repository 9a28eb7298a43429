"""Which command lines run unasked, which are asked about; every unasked one is then really run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hermes.safety.approval import ApprovalPolicy, Verdict
from hermes.safety.private import PrivatePlaces
from tests.security.workspace import CANARY, make_project

UNASKED = r"""
ls
cd src && cat main.py
ls -lah src
ls --color=auto -1
pwd && ls | head -20
cat a.txt src/main.py
cat -n a.txt b.txt
cat 'a.txt' "b.txt"
head -5 a.txt; tail -n +2 b.txt
wc -l a.txt
grep plain a.txt
grep -rn "def main" src
grep -E 'a|b.*' a.txt b.txt
grep -c -- -q a.txt
cat a.txt 2>/dev/null | tr a-z A-Z
ls 2>&1 | grep main > /dev/null || echo no
cut -d, -f1 data.csv
stat a.txt
du -sh .
nl a.txt
readlink -f src
echo hello $HOME "$USER" *
basename src/main.py
uname -a
which python3
python3 --version
git --version
sleep 0
true
""".strip().splitlines()

ASKED = r"""
pytest -q
make
npm test
python x.py
python3 -c 'print(1)'
./script.sh
rm a.txt
touch x
echo x > a.txt
grep -v -- -q ~/.ssh/id_rsa
grep -v -- -q ../notes.txt
grep -q x -- ../notes.txt
grep -R plain .
grep --dereference-recursive plain .
grep -rn TOKEN .
grep -rn plain linked/../..
grep plain link
grep * a.txt
rg --files ~/.ssh
jq '$ENV' package.json
ps e
cat link
cat linked/inner
cat linked/*
cat l*
cat out/id_rsa
cat o*/id_rsa
cat .*/x
cat .*
cat .?/x
cat .[.]/x
cat .e*
cat .env
cat ./.env
cat server.key
cat s*.key
cat dashes/../.env
cat dashes/* ../x
cd dashes && cat *
cat $HOME/.bashrc
cat ~/.bashrc
cat ~root/x
cat "$HOME/x"
cat /etc/passwd
cat /proc/self/environ
cat /dev/stdin
head -c 100 link
tail -f link
less +!id a.txt
more link
wc --files0-from=a.txt
du --files0-from=a.txt
sort --files0-from=a.txt
md5sum -c a.txt
file -f a.txt
diff -r . out
xxd -r a.txt
uniq a.txt b.txt
tree -l
ls out/
ls -R out
stat link
readlink -f ../x
awk '{print > "x"}' f
git diff --no-index . src
cat loop
sed -i s/a/b/ a.txt
find . -exec cat {} +
.venv/bin/pip --version
./.venv/bin/pip --version
src/../.venv/bin/pip --version
env
printenv
set
export
GIT_DIR=x git status
LD_PRELOAD=./x.so ls
PATH=.:$PATH ls
LESSOPEN='|id' less a.txt
echo $((a[$(id)]))
echo $((x))
echo ${x:=$(id)}
echo `id`
echo <(id)
who /etc/passwd
xargs cat
tee x
curl http://example.com
bash -c ls
sh -c ls
ssh host
nohup ls
timeout 5 ls
time ls
sudo ls
ls; rm a.txt
ls | sh
for f in *; do cat $f; done
cat <<EOF
alias ls=rm
eval ls
source a.txt
. ./a.txt
ls && rm a.txt
ls || rm a.txt
ls | xargs rm
ls & rm a.txt
echo $(rm a.txt)
echo `rm a.txt`
echo "$(rm a.txt)"
(rm a.txt)
{ rm a.txt; }
! rm a.txt
echo x >> a.txt
ls 2> a.txt
cat a.txt | tee b.txt
./ls
/tmp/ls
PATH=. ls
PATH=.
exec ls
. x
command rm a.txt
cat < /dev/tcp/1.2.3.4/80
cat < /etc/passwd
cat ~/.ssh/id_rsa
cat $HOME/.ssh/id_rsa
cat ../secret
cat src/../../secret
cat /work/projectx/secret
cat /work/project/../secret
grep -r . /
grep -f/etc/passwd x
grep --file=/etc/passwd x
grep -e x /etc/passwd
grep --regexp=x /etc/passwd
ls /
ls ~
date -s 2020-01-01
hostname evil
printf -v PATH .
test -v 'a[$(rm x)]'
ls $(
if true; then rm x; fi
$cmd
"$cmd" x
$(echo rm) x
r\m a.txt
yarn --version
cat -- -link
grep -R plain src
grep -rflink x
grep -re plain
ls -LR
cat a.txt & rm b.txt
cat a.txt |& sh
cat "a.txt
find . -name '*.py'
git log
sort a.txt
cat a.txt > /dev/null2
""".strip().splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("home"))


def policy(workspace: Path, home: Path | None = None) -> ApprovalPolicy:
    home = (home or workspace.parent).resolve()
    places = PrivatePlaces(home, home / ".hermes", home / ".hermes/workspaces")
    return ApprovalPolicy((), (), interactive=True, isolated=False, workspace=str(workspace), places=places)


def test_commands_that_only_read_are_not_asked_about(project: Path) -> None:
    assert [command for command in UNASKED if policy(project).decide(command) is not Verdict.ALLOW] == []


def test_everything_else_is_asked_about(project: Path) -> None:
    (project / "-link").symlink_to(project.parent / ".bashrc")
    try:
        assert [command for command in ASKED if policy(project).decide(command) is not Verdict.ASK] == []
    finally:
        (project / "-link").unlink()


def test_what_runs_unasked_shows_no_secret_and_changes_nothing(project: Path) -> None:
    shell = shutil.which("bash") or "/bin/sh"
    environ = {"HOME": str(project.parent), "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null"}
    before = _snapshot(project.parent)
    for command in UNASKED:
        done = subprocess.run(
            [shell, "-c", command],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert CANARY.encode() not in done.stdout + done.stderr, command
    assert _snapshot(project.parent) == before


def _snapshot(top: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(top.rglob("*"))
        if path.name != "index"  # git refreshes what it knows about times
    }


@pytest.mark.parametrize("program", ["ls -l", "pip --version", "ls"])
def test_a_program_that_the_workspace_puts_on_the_path_is_asked_about(
    project: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy(project).decide("ls -l") is Verdict.ALLOW
    for folder in (str(project / ".venv/bin"), ".venv/bin", "", "."):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        assert policy(project).decide(program) is Verdict.ASK
