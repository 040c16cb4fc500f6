"""A made-up node to audit, with the flaws that a test names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.audit.target import Target
from tests.audit.audited_node import KEY, OTHER_KEY, AuditedNode
from tests.client.fake_node import release_in, running

Audited = Callable[..., Target]


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Audited]:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    with ExitStack() as stack:

        def start(*flaws: str, other_key: str = OTHER_KEY) -> Target:
            node = AuditedNode(release_in(tmp_path / "log"), flaws=frozenset(flaws))
            stack.enter_context(running(node))
            policy = Policy(allow_software_tee=True)
            target = Target(HttpAddress.parse(node.url), KEY, policy, other_key)
            stack.callback(target.close)
            return target

        yield start
