"""The system calls that a sandboxed program may not make, as the program of the kernel's filter (seccomp, classic BPF).

Memory that belongs to no process (System V segments, anonymous files) escapes the limit on address space, and a user
namespace of its own would make a program root in it, with file systems of any size. Nothing that a contest solution
does needs either.
"""

import errno
import platform
import struct
from functools import cache

from trustmopd.evaluation.benchmark import Unavailable

#: Refused with EPERM, by the kernel's number on x86-64 and on aarch64.
_REFUSED = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_CLONE = (56, 220)
#: Its flags are in memory, which a filter cannot read. If it seems not to exist, libraries use clone.
_CLONE3 = 435
#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_X32 = 0x40000000  # on x86-64 this bit asks for a second set of numbers
#: By machine: the kernel's name for the architecture, and the column of the numbers above.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # places in what the kernel shows to a filter


@cache
def system_call_filter() -> bytes:
    """The filter for this machine, as `bwrap --seccomp` reads it."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise Unavailable(
            f"the sandbox for generated code has no filter of system calls for {machine!r}: without one its memory "
            f"limit does not hold. Grade on {' or '.join(_MACHINES)}: copy the responses that were sampled here."
        )
    architecture, column = _MACHINES[machine]
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_IF_EQUAL, architecture, hit=1),
        _instruction(_RETURN, _KILL),  # a call for another architecture, whose numbers differ
        _instruction(_LOAD, _NUMBER),
    ]
    refuse, absent = _instruction(_RETURN, _ERROR | errno.EPERM), _instruction(_RETURN, _ERROR | errno.ENOSYS)
    if machine == "x86_64":
        program += [_instruction(_IF_AT_LEAST, _X32, miss=1), refuse]
    program += [_instruction(_IF_EQUAL, _CLONE3, miss=1), absent]
    for numbers in _REFUSED.values():
        program += [_instruction(_IF_EQUAL, numbers[column], miss=1), refuse]
    program += [
        _instruction(_IF_EQUAL, _CLONE[column], miss=3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_IF_ANY_BIT, _NAMESPACES, miss=1),
        refuse,
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, hit: int = 0, miss: int = 0) -> bytes:
    """`struct sock_filter`: `hit` and `miss` say how many instructions a comparison skips."""
    return struct.pack("=HBBI", code, hit, miss, value)
