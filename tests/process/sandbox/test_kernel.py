"""The tables against the kernel's own headers, where they are installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.process.sandbox.kernel import TABLES
from cloister.process.sandbox.seccomp import _ALLOWED, _ATTACKS, _judged

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
SPELLED_OTHERWISE = {"newfstatat": "fstatat"}


@pytest.mark.parametrize("arch", HEADERS)
def test_numbers_are_the_headers(arch: str) -> None:
    found = [Path(path) for path in HEADERS[arch] if Path(path).exists()]
    if not found:
        pytest.skip(f"no kernel headers for {arch} here")
    defined = re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", found[0].read_text())
    numbers = {name: int(number) for name, number in defined}
    ours = {name: number for name, number in TABLES[arch].items() if number <= max(numbers.values())}
    assert ours == {name: numbers.get(name, numbers.get(SPELLED_OTHERWISE.get(name, ""))) for name in ours}


def test_every_rule_names_a_known_call() -> None:
    named = {*_ALLOWED.split(), *_ATTACKS.split(), *_judged(1)}
    assert named <= set(TABLES["x86_64"])
    assert not set(_ALLOWED.split()) & set(_ATTACKS.split())
