"""The table of command lines: those that run unasked in a workspace, and those that are asked about."""

from __future__ import annotations

UNASKED = r"""
ls
ls -la
ls -lah src
ls src/*.py
ls --color=auto -1
cat a.txt
cat -n a.txt b.txt
cat *.txt
cat src/*.py
cat s*/main.py
cat < a.txt
head a.txt
head -5 a.txt
head -n 5 a.txt
tail -n +2 a.txt
tail -20 a.txt
less a.txt
less -N README.md
more a.txt
wc -l *.txt
wc -l < a.txt
grep plain a.txt
grep -rn plain src
grep -E 'a|b' a.txt b.txt
grep -c -- -q a.txt
grep -e plain -A 2 a.txt
grep --include=*.py -r main src
grep -n plain *.txt
rg plain
rg -n plain src
rg --files src
rg -g '*.py' main
find . -name '*.py'
find src -type f -newer a.txt
find . -maxdepth 2 -not -path './.git/*'
git status
git status --porcelain
git log --oneline -5
git diff
git diff HEAD -- src
git show HEAD:a.txt
git blame a.txt
git branch -a
git ls-files
git remote -v
git config --local --list
jq .name package.json
jq -r '.name | length' package.json
jq '.a[] | select(.b == "c")' package.json
awk '{print $1}' f
awk -F, '{print $1, $NF}' data.csv
awk 'NR > 1 && $3 >= 10 {s += $3} END {print s / NR}' data.csv
awk '/plain/ {n++} END {print n}' a.txt
awk '{ if ($1 > 5) print }' data.csv
awk '/a|b/ {print $1 ": " $2}' a.txt
awk '{s += $1 / 2} END {print s, NR}' a.txt
awk '$1 ~ /^p/ && !/x/' a.txt
sed -n 1,5p a.txt
sed 's/plain/fancy/g' a.txt
sed -n '/plain/p' a.txt
sed -E 's/(a+)/[\1]/' a.txt
sed -e 1d -e '$d' a.txt
sed '/^$/d' a.txt
sort a.txt
sort -t, -k2 -rn data.csv
sort a.txt | uniq -c | sort -rn | head
uniq -c a.txt
cut -d, -f1 data.csv
tr a-z A-Z < a.txt
paste a.txt b.txt
diff a.txt b.txt
diff -u a.txt b.txt
cmp a.txt b.txt
comm a.txt b.txt
column -t a.txt
nl a.txt
od -c a.txt
hexdump -C a.txt
xxd a.txt
strings a.txt
base64 a.txt
md5sum a.txt
sha256sum a.txt b.txt
stat a.txt
file a.txt
du -sh .
df -h
tree -L 2
ps
ps aux
ps -ef
ps -o pid,cmd -p 1
echo hello
echo $((1+2))
echo "$((6 * 7))"
echo $HOME
echo $(git log -1)
printf '%s\n' hello
date
date +%Y-%m-%d
pwd
whoami
id
uname -a
nproc
which python3
command -v git
type ls
seq 1 5
sleep 0
true
test -f a.txt
[ -d src ] && echo yes
cd src && ls
cd src && cat main.py
(cd src; ls)
ls | wc -l
ls 2>/dev/null
cat a.txt 2>&1 | head
basename src/main.py
realpath src
python3 --version
git --version
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
grep -f a.txt b.txt
grep -R plain .
grep --dereference-recursive plain .
grep -rn TOKEN .
grep -rn plain linked/../..
grep plain link
grep * a.txt
rg --files ~/.ssh
rg --files ..
rg --files /
rg --hidden TOKEN
rg -uu TOKEN
rg -L plain
rg --follow plain
rg --pre ./x plain
rg -z plain
rg -f a.txt plain
rg plain link
jq '$ENV' package.json
jq -n env
jq -n 'env.HOME'
jq -n '$ENV.PATH'
jq -n '"\(env)"'
jq 'import "a" as a; .' package.json
jq 'include "a"; .' package.json
jq -f x.jq package.json
jq -L . . package.json
jq --slurpfile a link . package.json
jq --rawfile a link -n '$a'
jq . link
jq -n 'input_filename' link
ps e
ps auxe
ps axe
ps -E
ps eww
ps -o environ
ps -o pid,environ
ps aux e
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
cd out && cat id_rsa
cd out && ls
cd linked && cat inner
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
less '+!id' a.txt
less -o log a.txt
less link
more link
wc --files0-from=a.txt
du --files0-from=a.txt
sort --files0-from=a.txt
sort -o a.txt b.txt
sort -T . a.txt
md5sum -c a.txt
file -f a.txt
file -C -m a.txt
file -m link a.txt
diff -r . out
diff a.txt link
diff . linked
diff -l a.txt b.txt
xxd -r a.txt
xxd a.txt b.txt
uniq a.txt b.txt
tree -l
tree -o x
tree -Lo 1 x
ls out/
ls -R out
stat link
readlink -f ../x
awk '{print > "x"}' f
awk '{print >> "x"}' f
awk '{print | "sh"}' f
awk 'BEGIN{system("id")}'
awk 'BEGIN{"id" | getline x; print x}'
awk 'BEGIN{while ((getline l < "link") > 0) print l}'
awk 'BEGIN{print ENVIRON["HOME"]}'
awk 'BEGIN{ARGV[1]="link"; ARGC=2} {print}' f
awk '@include "x"; {print}' f
awk -f x.awk f
awk -i inplace '{print}' f
awk '{print}' link
awk 'BEGIN{printf "x" > "y"}'
awk 'function f(a){print a} {f($1)}' f
awk '/[/]/ {print > "x"} /]/' f
awk '{print /"/ > "f"; x = /"/}' f
awk '{if (1) /"/; print "x" > "f"; y = /"/}' f
awk '{n = 1 + /"/; print "x" > "f"; y = /"/}' f
awk 'NR\n/"/ {print "x" > "f"} /"/' f
awk '{x = length /"/; print > "f"; y = /"/}' f
awk '{print length > "f"}' f
awk '{system(x)}' x=id f
awk '{print $1 | x}' x=sh f
git diff --no-index . src
git diff --no-inde . src
git diff . src
cat loop
sed -i s/a/b/ a.txt
sed -n 'w out' a.txt
sed 's/a/b/w out' a.txt
sed 's/a/id/e' a.txt
sed -n '1e id' a.txt
sed '1r link' a.txt
sed -n 'R link' a.txt
sed -f x a.txt
sed --in-place s/a/b/ a.txt
sed -ns/a/b/ a.txt
sed p link
find . -exec cat {} +
find . -delete
find . -fprintf x %p
find -L . -name x
find out -name x
find / -name x
find ~ -name x
find . -files0-from a.txt
git -c core.pager=./x log
git -p log
git --paginate log
git -C src status
git --git-dir=x status
git --work-tree=/ status
git grep -O./x foo
git diff --no-index a.txt link
git diff --output=x
git log --ext-diff
git show --textconv
git log --remerge-diff
git blame --contents link a.txt
git st
git config --list
git config --global --list
git config core.fsmonitor ./x
git fetch
git commit -m x
git stash
git submodule status
git log -O/etc/passwd
.venv/bin/pip --version
./.venv/bin/pip --version
src/../.venv/bin/pip --version
env
env ls
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
python3 -i
""".strip().splitlines()
