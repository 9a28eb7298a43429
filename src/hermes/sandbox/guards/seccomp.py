"""System call filters (seccomp), assembled here as classic BPF for x86_64 and aarch64.

`sandbox_filter` is for commands in a sandbox: it refuses what a command has no use for and what reaches past
namespaces, such as the kernel's keyrings, tracing, mounts, BPF, io_uring, address families that are not
namespaced, and set-uid files. `evaluator_filter` is for a process that only calculates: it allows reading
files, memory, time and its own end, and nothing else; no program is started, no socket and no file for
writing is opened.

A refused call returns an error, so that a program can continue without it. Calls of another architecture's
table (32-bit programs, x32) are refused as unknown. On any other processor or system there is no filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LOAD, _JEQ, _JGE, _JSET, _RET, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_NUMBER, _ARCH, _ARGS = 0, 4, 16
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_OPEN_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into a terminal."""
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6 and netlink. Others, such as vsock, are not bound to a network namespace."""
_MAP_SHARED_ANONYMOUS = 0x21


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor's name for the filter, and its column in the tables."""

    arch: int
    column: int


_MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
Numbers = tuple[int | None, int | None]

_REFUSED: dict[str, Numbers] = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "unshare": (272, 97),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "fanotify_init": (300, 262),
    "vhangup": (153, 58),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
_ABSENT: dict[str, Numbers] = {
    "clone3": (435, 435),  # its flags lie in memory that a filter cannot read; libraries fall back to clone
    "openat2": (437, 437),  # likewise its mode
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
}
_UNCOUNTED_MEMORY: dict[str, Numbers] = {"memfd_create": (319, 279), "shmget": (29, 194)}
"""Memory that no limit of a process counts."""
_SET_MODE: tuple[tuple[Numbers, int], ...] = (
    ((90, None), 1),  # chmod
    ((91, 52), 1),  # fchmod
    ((268, 53), 2),  # fchmodat
    ((452, 452), 2),  # fchmodat2
    ((133, None), 1),  # mknod
    ((259, 33), 2),  # mknodat
    ((85, None), 1),  # creat
    ((83, None), 1),  # mkdir
    ((258, 34), 2),  # mkdirat
)
"""Calls with a file's mode, and which argument it is."""
_CREATE: tuple[tuple[Numbers, int], ...] = (((2, None), 1), ((257, 56), 2))
"""open and openat: which argument holds the flags; the mode follows it, if a file is created."""
_O_TMPFILE = 0o20000000
"""The kernel's bit, without the O_DIRECTORY of `os.O_TMPFILE`: a file that `linkat` names later."""
_PRIVILEGED_MODE = 0o6000
_CLONE: Numbers = (56, 220)
_SOCKET: Numbers = (41, 198)
_SOCKETPAIR: Numbers = (53, 199)
_IOCTL: Numbers = (16, 29)
_MMAP: Numbers = (9, 222)
_OPENAT: Numbers = (257, 56)
_OPEN: Numbers = (2, None)
_PRLIMIT: Numbers = (302, 261)

_CALCULATING: dict[str, Numbers] = {
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "write": (1, 64),
    "writev": (20, 66),
    "close": (3, 57),
    "fstat": (5, 80),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "lseek": (8, 62),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "fcntl": (72, 25),
    "dup": (32, 23),
    "dup3": (292, 24),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "membarrier": (324, 283),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "setitimer": (38, 103),
    "alarm": (37, None),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "poll": (7, None),
    "ppoll": (271, 73),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "arch_prctl": (158, None),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}

Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand."""


def machine() -> Machine | None:
    """This machine's row; None where there is no filter."""
    return _MACHINES.get(platform.machine()) if sys.platform == "linux" else None


def sandbox_filter(target: Machine, *, count_memory: bool = True) -> bytes:
    """For the commands of a sandbox, as bubblewrap's `--seccomp` reads it.

    With `count_memory` shared memory without a file is refused too, because no limit of a process counts it.
    """
    rules = _start(target)
    rules += _answer_calls(target, _REFUSED.values(), _ERRNO | errno.EPERM)
    rules += _answer_calls(target, _ABSENT.values(), _ERRNO | errno.ENOSYS)
    rules += _answer_bits(target, _CLONE, 0, _NEW_NAMESPACES, errno.EPERM)
    rules += _answer_families(target)
    rules += _answer_values(target, _IOCTL, 1, _TERMINAL_INPUT, errno.EPERM)
    for call, argument in _SET_MODE:
        rules += _answer_bits(target, call, argument, _PRIVILEGED_MODE, errno.EPERM)
    for call, flags in _CREATE:
        rules += _answer_created_mode(target, call, flags)
    if count_memory:
        rules += _answer_calls(target, _UNCOUNTED_MEMORY.values(), _ERRNO | errno.ENOSYS)
        rules += _answer_all_bits(target, _MMAP, 3, _MAP_SHARED_ANONYMOUS, errno.ENOMEM)
    return _assemble([*rules, (_RET, 0, 0, _ALLOW)])


def evaluator_filter(target: Machine) -> bytes:
    """For a process that calculates: files can be read, and that is all."""
    rules = _start(target)
    rules += _answer_bits(target, _OPENAT, 2, _OPEN_FOR_WRITING, errno.EACCES)
    rules += _answer_bits(target, _OPEN, 1, _OPEN_FOR_WRITING, errno.EACCES)
    rules += _answer_bits(target, _PRLIMIT, 2, 0xFFFFFFFF, errno.EPERM)  # asking for a limit, not setting it
    allowed = [*_CALCULATING.values(), _OPENAT, _OPEN, _PRLIMIT]
    rules += _answer_calls(target, allowed, _ALLOW)
    return _assemble([*rules, (_RET, 0, 0, _ERRNO | errno.EPERM)])


def enter(program: bytes) -> None:
    """Puts this process and its descendants under a filter; OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    # struct sock_fprog: the number of instructions, padding, their address.
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header)),
    ):
        option, second, third = (ctypes.c_ulong(value) for value in arguments)
        if libc.prctl(option, second, third, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            number = ctypes.get_errno()
            raise OSError(number, f"a system call filter cannot be set: {os.strerror(number)}")


def _start(target: Machine) -> list[Instruction]:
    refuse: Instruction = (_RET, 0, 0, _ERRNO | errno.ENOSYS)
    rules: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, target.arch),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
    ]
    return [*rules, (_JGE, 0, 1, _X32), refuse] if target.column == 0 else rules


def _answer_calls(target: Machine, calls: Iterable[Numbers], verdict: int) -> list[Instruction]:
    """The call's number is loaded, before and after."""
    rules: list[Instruction] = []
    for numbers in calls:
        number = numbers[target.column]
        if number is not None:
            rules += [(_JEQ, 0, 1, number), (_RET, 0, 0, verdict)]
    return rules


def _guarded(target: Machine, call: Numbers, body: Sequence[Instruction]) -> list[Instruction]:
    """Runs `body` for one call; then the call's number is loaded again."""
    number = call[target.column]
    if number is None:
        return []
    return [(_JEQ, 0, len(body), number), *body, (_LOAD, 0, 0, _NUMBER)]


def _answer_bits(target: Machine, call: Numbers, argument: int, bits: int, error: int) -> list[Instruction]:
    """Refuses the call if any of the bits is set in the argument (for a pointer, in either half)."""
    low = _ARGS + 8 * argument
    body: list[Instruction] = [(_LOAD, 0, 0, low), (_JSET, 0, 1, bits), (_RET, 0, 0, _ERRNO | error)]
    if bits == 0xFFFFFFFF:
        body += [(_LOAD, 0, 0, low + 4), (_JSET, 0, 1, bits), (_RET, 0, 0, _ERRNO | error)]
    return _guarded(target, call, body)


def _answer_created_mode(target: Machine, call: Numbers, flags: int) -> list[Instruction]:
    """Refuses to create a set-uid or set-gid file."""
    body: list[Instruction] = [
        (_LOAD, 0, 0, _ARGS + 8 * flags),
        (_JSET, 0, 3, os.O_CREAT | _O_TMPFILE),
        (_LOAD, 0, 0, _ARGS + 8 * (flags + 1)),
        (_JSET, 0, 1, _PRIVILEGED_MODE),
        (_RET, 0, 0, _ERRNO | errno.EPERM),
    ]
    return _guarded(target, call, body)


def _answer_all_bits(
    target: Machine, call: Numbers, argument: int, bits: int, error: int
) -> list[Instruction]:
    """Refuses the call if all of the bits are set in the argument."""
    load: Instruction = (_LOAD, 0, 0, _ARGS + 8 * argument)
    body: list[Instruction] = [load, (_AND, 0, 0, bits), (_JEQ, 0, 1, bits), (_RET, 0, 0, _ERRNO | error)]
    return _guarded(target, call, body)


def _answer_values(
    target: Machine, call: Numbers, argument: int, values: Sequence[int], error: int
) -> list[Instruction]:
    """Refuses the call if the argument is one of the values."""
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGS + 8 * argument)]
    for value in values:
        body += [(_JEQ, 0, 1, value), (_RET, 0, 0, _ERRNO | error)]
    return _guarded(target, call, body)


def _answer_families(target: Machine) -> list[Instruction]:
    """Refuses sockets of every address family but the known ones."""
    rules: list[Instruction] = []
    for call in (_SOCKET, _SOCKETPAIR):
        body: list[Instruction] = [(_LOAD, 0, 0, _ARGS)]
        body += [(_JEQ, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
        body.append((_RET, 0, 0, _ERRNO | errno.EAFNOSUPPORT))
        rules += _guarded(target, call, body)
    return rules


def _assemble(rules: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)
