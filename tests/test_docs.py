"""What the documents name exists: files, links, tests, commands with their options, and one request's walk."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from cloister.attest.policy import read_policy
from cloister.cli import app
from cloister.detection.rules import read_rules
from cloister.transparency.note import Algorithm, SigningKey
from cloister_mpc.config import read_config
from tests.doc_blocks import blocks_of, commands_of, programs_of, spoken_commands_of, walk_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cloister"
ARCHIVE = ROOT / "docs" / "archive"
ROOTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/README.md")]
DOCUMENTS = [*ROOTS, *(path for path in sorted((ROOT / "docs").rglob("*.md")) if ARCHIVE not in path.parents)]
"""All but the archive, which shows files and commands as they were."""
RUN = (ROOT / "README.md", ROOT / "docs" / "client.md")
MOST_FILES_OF_A_WALK = {"partitioned": 30, "shared": 30, "obfuscated": 34}
QUESTIONS = 15


def named_files(text: str) -> set[str]:
    return set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|c|h))`", text))


def exists(name: str) -> bool:
    return any((place / name).exists() for place in (ROOT, SOURCE, SOURCE.parent, ROOT / "tests")) or any(
        SOURCE.rglob(name)
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    assert not [name for name in sorted(named_files(text)) if not exists(name)]
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert not [link for link in links if "://" not in link and not (document.parent / link).exists()]


def test_nothing_but_the_log_links_to_the_archive() -> None:
    linking = [
        path.name for path in DOCUMENTS if "(archive/" in path.read_text() or "docs/archive/" in path.read_text()
    ]
    assert linking == ["LOG.md"]


@pytest.mark.parametrize("level", MOST_FILES_OF_A_WALK)
def test_one_request_walks_through_few_files(level: str) -> None:
    files = walk_of(ROOT / "docs" / "architecture.md", level)
    assert 10 < len(files) <= MOST_FILES_OF_A_WALK[level]
    assert not [name for name in files if not (SOURCE / name).is_file()]


def test_each_question_is_answered_by_one_place() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.+\?) \| `([\w/.]+)` \|$", text, re.MULTILINE)
    assert len(rows) == QUESTIONS
    assert not [place for _, place in rows if not (SOURCE / place).exists() and not (SOURCE.parent / place).exists()]


def test_the_threat_model_names_tests_that_exist() -> None:
    """Each test by its name, and each row at least one: a promise without a test is none."""
    text = (ROOT / "docs" / "threat-model.md").read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    tests = set(re.findall(r"^ *(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert not sorted(set(re.findall(r"`(test_\w+)`", text)) - tests)
    rows = [line for line in text.splitlines() if line.count(" | ") == 2 and not line.startswith("attack |")]
    assert len(rows) > 60
    attempts = r"`(?:test_\w+|[\w/]*test_\w+\.py|\w+/\*|[a-z_*]+)`"
    assert not [line for line in rows if not re.search(attempts, line.rpartition(" | ")[2])]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_options_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in commands_of(document):
        program, *words = shlex.split(line, comments=True)
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), line
            planned = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
            assert planned.returncode == 0 and "scripts/setup.py" in planned.stdout, planned.stderr
        elif program == "cloister":
            unknown = _unknown_options(typer.main.get_command(app), words)
            assert not unknown, f"{line}: {unknown}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_sentences_name_exist(document: Path) -> None:
    for line in spoken_commands_of(document):
        unknown = _unknown_options(typer.main.get_command(app), shlex.split(line)[1:], whole=False)
        assert not unknown, f"{line}: {unknown}"


def _unknown_options(command: Any, words: list[str], *, whole: bool = True) -> list[str]:
    """Options of the command line that the command it names does not have. One that is not `whole` may name a group."""
    while hasattr(command, "commands"):
        if not whole and (not words or words[0].startswith("--")):
            break
        following = command.get_command(None, words[0]) if words else None
        assert following is not None, f"there is no command {words[:1]}"
        command = following
        words = words[1:]
    known = {"--help"} | {option for parameter in command.params for option in parameter.opts}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert _unknown_options(typer.main.get_command(app), ["serve", "--no-such", "--port", "1"]) == ["--no-such"]
    assert len(spoken_commands_of(ROOT / "README.md")) >= 8
    assert len(commands_of(ROOT / "docs" / "client.md")) >= 2 and len(commands_of(ROOT / "docs" / "mpc.md")) >= 5


@pytest.mark.parametrize("document", RUN, ids=lambda path: path.name)
def test_no_block_of_what_is_run_is_overlooked(document: Path) -> None:
    """Each is a program or commands of ours, which serving/test_documents.py runs, or the policy, read below."""
    lines = commands_of(document)
    rest = [block for block in blocks_of(document) if block not in programs_of(document)]
    rest = [block for block in rest if not set(block.strip().splitlines()) <= set(lines)]
    assert [block.splitlines()[0] for block in rest] == (
        ['tees = ["sev-snp", "tdx"]'] if document.name == "client.md" else []
    )


def test_the_policy_that_the_clients_guide_shows_is_read(tmp_path: Path) -> None:
    """With values for what it leaves to its reader: every name in it is known, and every table has its shape."""
    [shown] = [block for block in blocks_of(ROOT / "docs" / "client.md") if block.startswith("tees = ")]
    lines, digits = [], 64
    for line in shown.splitlines():
        digits = 96 if line.startswith(("[snp]", "[[tdx")) else digits
        kind = Algorithm.COSIGNATURE if line.startswith("witnesses") else Algorithm.ED25519
        if left := re.search(r'"([^"…]+)[+]…"', line):
            line = line.replace(left[0], f'"{SigningKey.generate(left[1], kind).verifier}"')
        lines.append(line.replace("…", "crl" if line.startswith("snp_revocation") else "ab" * (digits // 2)))
    for name in ("crl", "driver.xml", "vbios.xml", "signer.der", "trusted_root.json", "intel.json"):
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "policy.toml").write_text("\n".join(lines))
    policy = read_policy(tmp_path / "policy.toml")
    assert policy.names_releases and policy.gpu_manifests and policy.snp.measurements and policy.tdx.launches
    assert policy.tdx_collateral


def test_the_parties_that_the_guide_to_mpc_shows_are_read(tmp_path: Path) -> None:
    [shown] = [block for block in blocks_of(ROOT / "docs" / "mpc.md") if block.startswith("# parties.toml")]
    common, _, first = shown.partition("[[party]]")
    first, others, _ = ("[[party]]" + first).partition("# … and the same")
    assert others
    parties = (re.sub(r"party([-]?)0", rf"party\g<1>{rank}", first) for rank in range(3))
    (tmp_path / "parties.toml").write_text(common + "".join(parties))
    config = read_config(tmp_path / "parties.toml")
    assert [place.control for place in config.party] == [f"party{rank}.example:7100" for rank in range(3)]


def test_the_rules_that_the_guide_to_detection_shows_are_read() -> None:
    [shown] = [block for block in blocks_of(ROOT / "docs" / "detection.md") if block.startswith("version = 1")]
    assert [rule.id for rule in read_rules(shown)] == ["projects", "badge"]


def test_the_guide_to_a_cloud_starts_each_node_where_its_list_says() -> None:
    """The shell's loop, with the command's name as a function that says its words."""
    lines = [line.removeprefix("$ ") for line in (ROOT / "docs" / "cloud.md").read_text().splitlines()]
    [loop] = [line for line in lines if line.startswith("for ") and " serve " in line]
    script = f'cloister() {{ echo "$@"; }}\n{loop}\nwait'
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    listed = re.findall(r"--node (\w+)=http://127\.0\.0\.1:(\d+)", "\n".join(lines))
    words = [f"serve --port {port} --cloud cloud.json --node-name {name} --spent spent/{name}" for name, port in listed]
    assert sorted(said) == sorted(words) and len(words) == 3
