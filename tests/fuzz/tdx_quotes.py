"""Atheris harness: whatever bytes come as a quote, its chain or its collateral, there is a verdict or EvidenceInvalid.

Run it by hand for as long as you like: `python tests/fuzz/tdx_quotes.py -max_total_time=600`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["cloister.attest.tdx"]):
    from cloister.attest.tdx import Launch, TdxPolicy, verify_tdx
    from cloister.errors import EvidenceInvalid

from tests.fuzz.tdx_made import NOW, MadePlatform

PLATFORM = MadePlatform()
QUOTES = (PLATFORM.quote(), PLATFORM.quote(5, 3))
COLLATERAL = PLATFORM.collateral()
POLICY = TdxPolicy(launches=(Launch(mrtd="11" * 48, rtmr0="30" * 48, rtmr1="31" * 48, rtmr2="32" * 48),))


def spliced(whole: bytes, data: bytes) -> bytes:
    """The first two bytes say where the rest is laid over something genuine."""
    at = int.from_bytes(data[:2], "big") % len(whole)
    return whole[:at] + data[2:] + whole[at + len(data) - 2 :]


def one_input(data: bytes) -> None:
    if len(data) < 4:
        return
    kind, data = data[0] % 6, data[1:]
    quote, collateral = QUOTES[0], COLLATERAL
    if kind == 0:
        quote = data
    elif kind <= 2:
        quote = spliced(QUOTES[kind - 1], data)
    elif kind == 3:
        quote = PLATFORM.quote(chain=spliced(PLATFORM.chain, data))
    elif kind == 4:
        collateral = data
    else:
        collateral = spliced(COLLATERAL, data)
    with contextlib.suppress(EvidenceInvalid):
        verdict = verify_tdx(quote, collateral, at=NOW, policy=POLICY, report_data=None, roots=PLATFORM.roots)
        if verdict.passed and quote[:636] not in [one[:636] for one in QUOTES] and quote[:702] != QUOTES[1][:702]:
            raise RuntimeError("an altered quote passed")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
