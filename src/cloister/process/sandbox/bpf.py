"""An assembler for seccomp(2) filters. A rule's first alternative whose tests all pass decides for `granted`, else
`otherwise`; calls without a rule get the default."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
ALLOW = 0x7FFF0000
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
X32_BIT = 0x40000000
Instruction = tuple[int, int, int, int]
# Of each word: (offset to load, comparison, whether the test fails when that is true, value).
Test = tuple[tuple[int, int, bool, int], ...]


def equals(argument: int, value: int) -> Test:
    """The argument's low word has this value. The kernel reads ints, pids and commands from the low word too."""
    return ((_low(argument), _EQUAL, False, value),)


def upper_word(argument: int, value: int) -> Test:
    """The argument, a pointer, lies in the 4 GiB whose addresses have this upper word."""
    return ((_low(argument) + 4, _EQUAL, False, value),)


def is_null(argument: int) -> Test:
    return ((_low(argument), _EQUAL, False, 0), (_low(argument) + 4, _EQUAL, False, 0))


def has_any(argument: int, bits: int) -> Test:
    return ((_low(argument), _ANY_BIT, False, bits),)


def lacks(argument: int, bits: int) -> Test:
    return ((_low(argument), _ANY_BIT, True, bits),)


def _low(argument: int) -> int:
    return _ARGUMENTS + 8 * argument


@dataclass(frozen=True)
class Rule:
    """Without alternatives, `otherwise` is the answer."""

    alternatives: tuple[tuple[Test, ...], ...]
    otherwise: int
    granted: int = ALLOW


def assemble(arch: int, rules: Mapping[int, Rule], default: int) -> bytes:
    """The program: wrong architecture or x32 numbers end the process, then the rules in order."""
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, X32_BIT),
        (_RETURN, 0, 0, KILL_PROCESS),
    ]
    for number, rule in rules.items():
        block = _rule(rule)
        program.append((_EQUAL, 0, len(block), number))
        program += block
    program.append((_RETURN, 0, 0, default))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _rule(rule: Rule) -> list[Instruction]:
    block: list[Instruction] = []
    for tests in rule.alternatives:
        block += _alternative(tests, rule.granted)
    return [*block, (_RETURN, 0, 0, rule.otherwise)]


def _alternative(tests: Iterable[Test], granted: int) -> list[Instruction]:
    """Falls through to the grant when every test passes, and jumps behind it when one fails."""
    block: list[Instruction] = [(_RETURN, 0, 0, granted)]
    for load, code, failing_when_true, value in reversed([step for test in tests for step in test]):
        beyond = len(block)
        jump = (code, beyond, 0, value) if failing_when_true else (code, 0, beyond, value)
        block = [(_LOAD, 0, 0, load), jump, *block]
    return block
