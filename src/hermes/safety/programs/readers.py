"""The options with which programs only read the files they are given, and print."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hermes.safety.programs.options import OptionTable as Options

_GREP = Options(
    flags="EFGPivwxcLlnHhoqsrbzaITUy",
    valued="emABCd",
    number=True,
    long="extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case invert-match "
    "word-regexp line-regexp count files-without-match files-with-matches line-number with-filename "
    "no-filename only-matching quiet silent no-messages recursive byte-offset null null-data text "
    "initial-tab regexp= max-count= after-context= before-context= context= include= exclude= exclude-dir= "
    "color? colour? binary-files= line-buffered directories= label=",
)
_RG = Options(
    flags="inlcwvFSsoxUNHIqpPa0",
    valued="egtTABCmrMdj",
    long="files ignore-case case-sensitive smart-case line-number no-line-number files-with-matches "
    "files-without-match count count-matches word-regexp line-regexp invert-match fixed-strings "
    "only-matching multiline with-filename no-filename quiet pretty pcre2 text null heading no-heading "
    "vimgrep json stats trim no-messages no-config type-list regexp= glob= iglob= type= type-not= "
    "after-context= before-context= context= max-count= replace= max-columns= max-depth= sort= sortr= "
    "color= colors= max-filesize= threads= column",
)
_SUM = Options(flags="btz", long="binary text tag zero")
_HEAD = Options(
    flags="qvzfFr",
    valued="nc",
    number=True,
    long="lines= bytes= quiet silent verbose zero-terminated follow?",
)

FILE_READERS: Mapping[str, Options] = MappingProxyType(
    {
        "b2sum": _SUM,
        "base64": Options(flags="di", valued="w", long="decode ignore-garbage wrap="),
        "cat": Options(
            flags="AbeEnstTuv",
            long="show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting",
        ),
        "cksum": Options(),
        "cmp": Options(flags="bls", valued="in", long="print-bytes verbose silent quiet"),
        "column": Options(
            flags="tenx", valued="scoN", long="table separator= output-separator= table-columns="
        ),
        "comm": Options(flags="123z", long="check-order nocheck-order output-delimiter= total"),
        "cut": Options(
            flags="nsz", valued="bcdf", long="bytes= characters= delimiter= fields= only-delimited complement"
        ),
        "diff": Options(
            flags="quwbBiaysNtTcedn",
            valued="UCWI",
            long="brief unified? context? side-by-side ignore-case ignore-all-space ignore-space-change "
            "ignore-blank-lines new-file color? width= minimal suppress-common-lines",
        ),
        "du": Options(
            flags="abchHkmsSxl0",
            valued="dBt",
            long="all bytes total human-readable summarize max-depth= apparent-size si exclude= block-size= "
            "time? one-file-system",
        ),
        "expand": Options(flags="i", valued="t", long="initial tabs="),
        "file": Options(flags="bhikLNrs0", long="brief mime mime-type mime-encoding"),
        "fmt": Options(flags="cstu", valued="wpg", long="width= split-only"),
        "fold": Options(flags="bs", valued="w", long="bytes spaces width="),
        "head": _HEAD,
        "hexdump": Options(flags="bcCdovx", valued="ens"),
        "join": Options(flags="iz", valued="12aejtov", long="header ignore-case"),
        "less": Options(flags="EFNRSXnre", long="chop-long-lines raw-control-chars quit-if-one-screen"),
        "ls": Options(
            flags="aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1",
            valued="ITw",
            long="all almost-all author escape color? directory classify? full-time group-directories-first "
            "no-group human-readable si indicator-style= inode literal numeric-uid-gid reverse recursive "
            "size sort= time= time-style= width= zero ignore= hide=",
        ),
        "md5sum": _SUM,
        "more": Options(flags="dflcpsu", number=True),
        "nl": Options(valued="bdfhilnpsvw", long="body-numbering= number-width= number-separator="),
        "od": Options(
            flags="abcdfiloxsvh",
            valued="AjNtSw",
            long="address-radix= skip-bytes= read-bytes= format= output-duplicates width?",
        ),
        "paste": Options(flags="sz", valued="d", long="serial delimiters="),
        "readlink": Options(flags="efmnqsvz", long="canonicalize no-newline"),
        "realpath": Options(flags="emLPqsz"),
        "rev": Options(),
        "sha1sum": _SUM,
        "sha224sum": _SUM,
        "sha256sum": _SUM,
        "sha384sum": _SUM,
        "sha512sum": _SUM,
        "sort": Options(
            flags="bcCdfghiMmnrRsuVz",
            valued="kt",
            long="reverse unique numeric-sort human-numeric-sort version-sort key= field-separator= "
            "ignore-case ignore-leading-blanks stable check? zero-terminated general-numeric-sort "
            "random-sort month-sort dictionary-order",
        ),
        "stat": Options(flags="Lft", valued="c", long="dereference file-system format= printf= terse"),
        "strings": Options(flags="afow", valued="ntes", number=True, long="all bytes= radix= encoding="),
        "sum": Options(flags="rs"),
        "tac": Options(flags="br", valued="s", long="before regex separator="),
        "tail": _HEAD,
        "tree": Options(
            flags="aACdDfFghinNpqrsStuUvxcG", separate="LIP", long="dirsfirst noreport gitignore du prune"
        ),
        "unexpand": Options(flags="a", valued="t", long="all first-only tabs="),
        "uniq": Options(
            flags="cdDiuz",
            valued="fsw",
            long="count repeated unique ignore-case skip-fields= skip-chars= check-chars= zero-terminated",
        ),
        "wc": Options(flags="clLmw", long="bytes chars lines max-line-length words total="),
        "xxd": Options(flags="abeEiuC", valued="clsgo"),
    }
)
"""Program → its options; every operand is a file."""

SEARCHERS: Mapping[str, Options] = MappingProxyType(
    {"grep": _GREP, "egrep": _GREP, "fgrep": _GREP, "rg": _RG}
)
"""The first operand is the expression, unless an option gives it or asks for a list of files."""

ONE_FILE = frozenset(("uniq", "xxd"))
"""A second operand is a file they write."""

JQ = Options(
    flags="rcsSeMCnjaR",
    long="raw-output compact-output slurp sort-keys exit-status monochrome-output color-output null-input "
    "join-output ascii-output raw-input tab",
)
SED = Options(flags="nErsuz", valued="e", long="quiet silent regexp-extended expression= null-data separate")
AWK = Options(valued="Fv", long="field-separator= assign=")
_FIND_TESTS = (
    "-a -amin -and -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty -executable -false -group "
    "-ilname -iname -inum -ipath -iregex -iwholename -links -lname -ls -maxdepth -mindepth -mmin -mount "
    "-mtime -name -newer -nogroup -not -nouser -o -or -P -path -perm -print -print0 -printf -prune -quit "
    "-readable -regex -regextype -samefile -size -true -type -user -wholename -writable -xdev -xtype"
)
FIND_TESTS = frozenset(_FIND_TESTS.split())
_PS_COLUMNS = (
    "pid ppid pgid sid user uid gid group comm args cmd command pcpu %cpu pmem %mem rss vsz stat state tty "
    "tname time etime etimes start lstart stime ni pri nlwp cls wchan psr thcount ucmd"
)
PS_COLUMNS = frozenset(_PS_COLUMNS.split())
