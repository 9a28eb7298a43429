"""What runs unasked, what is asked about, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hermes.errors import ConfigError, ToolError
from hermes.safety.approval import AllowAll, Answer, ApprovalPolicy, PolicyApprover, Verdict

HARMLESS = """
ls
ls -la src
ls *.py
pwd && ls | head -20
cat README.md src/main.py
cat /work/project/notes.txt
head -n 20 a.txt; tail -5 b.txt
grep -rn "def main" src
grep -rn /api/users src
wc -l < a.txt
find . -name '*.py' -not -path './.git/*' -type f
find src -mtime -7 -size +10k
git status
git log --oneline -5
git diff HEAD~2..HEAD -- src
git --no-pager show main:README.md
git branch -a
git stash list
python --version
python3 -V
sort -k2 -n a.txt | uniq -c | sort -rn
sed -n 10,20p a.txt
echo hello $USER $(git log -1)
cd src && ls
test -f a.txt && echo yes
[ -d src ] || echo no
date +%Y
printf '%s\\n' hello
cat a.txt 2>/dev/null | tr a-z A-Z
diff a.txt b.txt
du -sh . 2>&1
(cd src; ls)
ls # a comment
command -v python3
jq .name package.json
tree -L 2
stat a.txt
awk '{print}' a.txt
""".strip().splitlines()

ASKED = """
rm a.txt
ls; rm a.txt
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
echo x > a.txt
echo x >> a.txt
ls 2> a.txt
cat a.txt | tee b.txt
find . -delete
find . -exec rm {} +
find . -ok rm {} ;
find . -fprint out
find . $(echo -delete)
find . *
find . {-delete,}
sort -o out a.txt
sort -no out a.txt
sort --output=out a.txt
sort --outp out a.txt
sort --compress-program=./x a.txt
uniq a.txt b.txt
tree -o out
tree -Lo out
sed -i s/a/b/ a.txt
sed -n '1p;w out' a.txt
sed -n 1e a.txt
sed 's/x/id/e' a.txt
git push
git commit -m x
git -c core.pager=./x log
git -C /elsewhere status
git --exec-path=. status
git diff --output=out
git diff --outpu=out
git log --ext-diff
git branch new
git tag v1
git remote add x y
git stash
git config user.name x
git grep -O./x foo
rg --pre ./x foo
awk 'BEGIN{system("id")}'
python x.py
python -c 'print(1)'
python --version x
bash -c ls
sh x.sh
./ls
/tmp/ls
env
env ls
LD_PRELOAD=./x.so ls
PATH=. ls
PATH=.
export PATH=.
alias ls=rm
eval ls
exec ls
source x
. x
command rm a.txt
sudo ls
xargs ls
curl http://example.com
cat < /dev/tcp/1.2.3.4/80
cat < /etc/passwd
cat /etc/passwd
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
cd
cd /
cd ..
cd -
date -s 2020-01-01
date 01010000
hostname evil
printf -v PATH .
printf '%n' PATH
printf '%5n' PATH
test -v 'a[$(rm x)]'
file -C -m x
ls $(
for f in *; do rm $f; done
cat <<EOF
if true; then rm x; fi
$cmd
"$cmd" x
$(echo rm) x
r\\m a.txt
yarn --version
""".strip().splitlines()


def policy(
    *,
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    interactive: bool = True,
    isolated: bool = False,
) -> ApprovalPolicy:
    return ApprovalPolicy(allow, deny, interactive, isolated, workspace="/work/project")


@pytest.mark.parametrize("command", HARMLESS)
def test_commands_that_only_look_need_no_question(command: str) -> None:
    assert policy().decide(command) is Verdict.ALLOW


@pytest.mark.parametrize("command", ASKED)
def test_everything_else_is_asked_about_or_refused_when_nobody_is_there(command: str) -> None:
    assert policy().decide(command) is Verdict.ASK
    assert policy(interactive=False).decide(command) is Verdict.REFUSE


@pytest.mark.parametrize("command", [*HARMLESS, *ASKED])
def test_in_an_isolating_sandbox_everything_is_allowed(command: str) -> None:
    assert policy(interactive=False, isolated=True).decide(command) is Verdict.ALLOW


def test_absolute_paths_need_a_question_if_the_workspace_is_not_known() -> None:
    assert ApprovalPolicy((), (), True, False).decide("cat /work/project/notes.txt") is Verdict.ASK


@pytest.mark.parametrize(
    "pattern, command, allowed",
    [
        ("pytest *", "pytest", True),
        ("pytest *", "pytest -q tests", True),
        ("pytest *", "pytest $FILES && ls", True),
        ("pytest *", "pytest; rm x", False),
        ("pytest *", "pytest > log", False),
        ("pytest *", "X=1 pytest", False),
        ("pytest *", "./pytest", False),
        ("pytest *", "pytester", False),
        ("pytest *", "pytest $(rm x)", False),
        ("npm run build", "npm run build", True),
        ("npm run build", "npm run build --force", False),
        ("npm run *", "npm run", True),
        ("npm run *", "npm install", False),
        ("make test-?", "make test-1", True),
        ("make test-?", "make test-12", False),
        ("make test-?", "make *", False),
        ("make test-?", "make $x", False),
        ("git commit -m *", "git commit -m 'a; b'", True),
        ("git commit -m *", "git -c x=y commit -m a", False),
        ("'my tool' go", "'my tool' go", True),
        ("'my tool' go", "my tool go", False),
    ],
)
def test_allow_patterns_match_word_by_word(pattern: str, command: str, allowed: bool) -> None:
    assert policy(allow=(pattern,)).decide(command) is (Verdict.ALLOW if allowed else Verdict.ASK)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "git push",
            "git push origin main",
            "ls && git push",
            "(git push)",
            "echo $(git push)",
            "/usr/bin/git push",
        ),
        *(
            "bash -c 'git push'",
            "sudo git push",
            "if true; then git push; fi",
            "cat <<EOF\n`git push`\nEOF",
            "g'i't push",
        ),
    ],
)
def test_deny_patterns_refuse_wherever_the_command_stands(command: str) -> None:
    for isolated in (True, False):
        denying = policy(allow=("*",), deny=("git push",), isolated=isolated)
        assert denying.decide(command) is Verdict.REFUSE
    assert policy(deny=("git push *",), isolated=True).decide(command) is Verdict.REFUSE


def test_a_deny_pattern_does_not_refuse_its_neighbours() -> None:
    denying = policy(deny=("git push", "rm -rf *"))
    assert denying.decide("git status") is Verdict.ALLOW
    assert denying.decide("rm x") is Verdict.ASK


@pytest.mark.parametrize("pattern", ["", "   ", "echo 'unclosed"])
def test_a_pattern_that_cannot_be_read_is_a_configuration_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        policy(allow=(pattern,))


class Person:
    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, kind: str, action: str) -> Answer:
        self.asked.append((kind, action))
        return self.answers.pop(0)


async def test_once_allows_once_and_always_the_same_text_from_then_on() -> None:
    person = Person("once", "always", "no")
    approver = PolicyApprover(policy(), person)
    for _ in range(3):
        await approver.approve("command", "rm x")
    assert person.asked == [("command", "rm x")] * 2
    with pytest.raises(ToolError) as refusal:
        await approver.approve("command", "rm x ")
    assert refusal.value.kind == "refused"
    assert "rm x" in refusal.value.message
    assert approver.approved == {("command", "rm x")}


async def test_always_does_not_overrule_a_deny_pattern() -> None:
    approver = PolicyApprover(policy(deny=("rm",)), Person(), {("command", "rm x")})
    with pytest.raises(ToolError, match="denied by the user's rule 'rm'"):
        await approver.approve("command", "rm x")


async def test_other_kinds_are_asked_about_even_in_an_isolating_sandbox() -> None:
    person = Person("once")
    await PolicyApprover(policy(isolated=True), person).approve("mcp_server", "npx server")
    assert person.asked == [("mcp_server", "npx server")]


async def test_when_nobody_is_there_only_what_was_approved_before_goes() -> None:
    approver = PolicyApprover(policy(interactive=False), None, {("mcp_server", "npx known")})
    await approver.approve("mcp_server", "npx known")
    await approver.approve("command", "ls")
    for kind, action in (("mcp_server", "npx other"), ("command", "npx known"), ("path", "write /etc/x")):
        with pytest.raises(ToolError) as refusal:
            await approver.approve(kind, action)
        assert refusal.value.kind == "refused"
        assert refusal.value.hint


async def test_without_a_way_to_ask_asking_means_refusing() -> None:
    with pytest.raises(ToolError):
        await PolicyApprover(policy(interactive=True)).approve("command", "rm x")


async def test_allow_all_allows_all() -> None:
    await AllowAll().approve("command", "rm -rf /")


def test_what_runs_unasked_changes_nothing(tmp_path: Path) -> None:
    """Every command on the list, really run: the tree it ran in is the same afterwards."""
    workspace = tmp_path / "project"
    (workspace / "src").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "README.md", "src/main.py", "package.json"):
        (workspace / name).write_text('{"name": "x"}\n')
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", "init", "-q"], cwd=workspace, env=home, check=True)
    before = _snapshot(tmp_path)
    shell = shutil.which("bash") or "/bin/sh"
    for command in HARMLESS:
        subprocess.run(
            [shell, "-c", command], cwd=workspace, env=home, capture_output=True, timeout=30, check=False
        )
    assert _snapshot(tmp_path) == before


def _snapshot(top: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(top.rglob("*"))}
