from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.fake_node import FakeNode, release_in, running

# That the command serves and ends is tested with the proxy itself: tests/client/test_proxy.py.


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's memory of logs, the test's own."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))


def test_it_does_not_open_for_a_node_that_is_not_verified(run: Run, tmp_path: Path) -> None:
    with running(FakeNode(release_in(tmp_path / "log"))) as node:
        result = run("proxy", node.url, "--port", "0")
    assert result.exit_code == 1 and "not verified" in result.stderr and "API" not in result.stdout
    assert "--allow-software-tee" in result.stderr


def test_a_port_that_is_taken_is_said_with_what_to_do(run: Run, tmp_path: Path) -> None:
    with running(FakeNode(release_in(tmp_path / "log"))) as node:
        port = node.url.rpartition(":")[2]
        result = run("proxy", node.url, "--port", port, "--allow-software-tee")
    assert result.exit_code == 2 and "--port" in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("http://127.0.0.1:9", "--port", "99999")])
def test_wrong_use_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("proxy", *arguments).exit_code == 2


def test_nobody_there_exits_with_1(run: Run) -> None:
    result = run("proxy", "http://127.0.0.1:9", "--allow-software-tee")
    assert result.exit_code == 1 and "Nothing answers" in result.stderr
