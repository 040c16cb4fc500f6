"""README and docs/client.md, typed as they are: every program and command in them that can run on this machine runs.

Only what a document leaves to its reader is put in: the node's address, the key, and in place of a policy for real
hardware the word for a development node.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cloister.cli import app
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.keys import load_keys
from tests.attest.snp_maker import Chip
from tests.doc_blocks import commands_of, programs_of, spoken_commands_of
from tests.served import Command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "client.md")
MODEL = "SmolLM2-135M-Instruct"

JUDGES_FILES = "cloister attest check "
LEFT_TO_THE_READER = {
    "http://127.0.0.1:8000": "{url}",
    "https://node.example": "{url}",
    'api_key="…"': f'api_key="{DEVELOPMENT_KEY}"',
    'policy="policy.toml"': "allow_software_tee=True",
    "--policy policy.toml": "--allow-software-tee",
    'model="…"': f'model="{MODEL}"',
    "messages=[…]": 'messages=[{"role": "user", "content": "Hello"}], max_tokens=4',
    "temperature=0.2,": "temperature=0.2, max_tokens=8,",
}


def put_in(text: str, url: str) -> str:
    for left, ours in LEFT_TO_THE_READER.items():
        text = text.replace(left, ours.replace("{url}", url))
    assert "…" not in text, "the document leaves something to its reader that this test does not know"
    return text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_program_runs(document: Path, short_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    programs = programs_of(document)
    assert programs
    for program in programs:
        exec(compile(put_in(program, short_server), document.name, "exec"), {})
    assert document.name != "README.md" or capsys.readouterr().out.strip(), "README's program prints the answer"


def test_every_command_that_can_run_here_runs(short_server: str, tmp_path: Path) -> None:
    lines = [line for document in DOCUMENTS for line in commands_of(document) if line.startswith("cloister ")]
    lines = [line for line in lines if not line.startswith(JUDGES_FILES)]
    assert {shlex.split(line)[1] for line in lines} >= {"verify", "proxy"}
    for number, line in enumerate(lines):
        _, *words = shlex.split(put_in(line, short_server), comments=True)
        if words[0] == "proxy":
            words += ["--port", "0"]
        command = Command(tmp_path / str(number), *words)
        try:
            if words[0] == "proxy":
                listing = httpx.get(
                    command.wait_for(r"API +(http://\S+)", 60) + "/models",
                    headers={"Authorization": f"Bearer {DEVELOPMENT_KEY}"},
                )
                assert listing.json()["data"][0]["id"] == MODEL
            else:
                assert command.process.wait(60) == 0, command.said
        finally:
            assert command.stop() == 0, command.said


def test_other_peoples_evidence_is_judged_by_the_command_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that we made up: everything is read and judged, and AMD did not sign it."""
    [line] = [line for document in DOCUMENTS for line in commands_of(document) if line.startswith(JUDGES_FILES)]
    chip = Chip()
    (tmp_path / "report.bin").write_bytes(chip.report())
    (tmp_path / "vcek.der").write_bytes(chip.leaf())
    (tmp_path / "cert_chain.pem").write_bytes(chip.ask)
    (tmp_path / "crl").write_bytes(chip.revocation_list(99))
    (tmp_path / "policy.toml").write_text(f'[snp]\nmeasurements = ["{"aa" * 48}"]\n')
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 1, result.output
    assert re.search(r"signature +PASS", result.output) and re.search(r"Failed, at .*: root key", result.output)


def test_the_keys_that_readme_makes_are_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [make] = [line for line in spoken_commands_of(ROOT / "README.md") if line.startswith("cloister key new")]
    [serve] = [line for line in spoken_commands_of(ROOT / "README.md") if line.startswith("cloister serve --host")]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(make)[1:])
    assert result.exit_code == 0, result.output
    keys = load_keys(GatewaySettings(host="0.0.0.0", keys_file=Path(shlex.split(serve)[-1])))
    assert keys.caller(result.stdout.strip()).tenant == "alice"
