"""A real node whose service was taken over: what it carries to another tenant (cloister_bench.privacy.cheating).

Controller, vaults and verifier run the honest code. With `--verify off` every channel works: that is the control.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloister.models.source import ModelFolder
from cloister_bench.privacy.cheating import ATTACKS, CheatingNode, run_trial, running

LEVEL = "partitioned"
SMALL = ("--threads", "1", "--max-vaults", "8", "--spare-vaults", "1")
BY_NAME = {attack.name: attack for attack in ATTACKS}
# Timing is left out: no test may depend on how busy the machine is.
CERTAIN = [name for name in BY_NAME if name not in ("timing", "queries")]


@pytest.fixture(scope="module")
def unverified(short_folder: ModelFolder) -> Iterator[CheatingNode]:
    with running("off", str(short_folder.path), SMALL) as node:
        yield node


@pytest.mark.parametrize("name", CERTAIN)
def test_without_verification_every_channel_carries_the_victims_words(unverified: CheatingNode, name: str) -> None:
    trial = run_trial(unverified, BY_NAME[name], LEVEL, 0)
    assert trial is not None and trial.bits and not trial.wrong


def test_without_verification_a_vault_answers_questions_that_no_token_needs(unverified: CheatingNode) -> None:
    trial = run_trial(unverified, BY_NAME["queries"], LEVEL, 0)
    assert trial is not None and trial.bits == BY_NAME["queries"].asked - 1
