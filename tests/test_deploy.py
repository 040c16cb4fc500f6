"""Files for operators: the systemd units and the container file parse, and what they name is in the repository."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

from cloister.cli import app
from tests.test_docs import _unknown_options

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path for path in DEPLOY.iterdir() if path.suffix in (".service", ".timer"))
INSTALLED = "/opt/cloister/"

OPTIONS = {
    "Unit": "Description After Wants StartLimitIntervalSec StartLimitBurst",
    "Service": """Type User Group EnvironmentFile Environment WorkingDirectory ExecStart ExecReload Restart RestartSec
        TimeoutStartSec TimeoutStopSec KillMode StateDirectory CacheDirectory StateDirectoryMode CacheDirectoryMode
        UMask LimitMEMLOCK LimitNOFILE LimitCORE NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem
        ProtectHome PrivateTmp PrivateDevices ProtectKernelTunables ProtectKernelModules ProtectKernelLogs
        ProtectControlGroups ProtectClock RestrictSUIDSGID RestrictNamespaces RestrictRealtime LockPersonality RemoveIPC
        RestrictAddressFamilies SystemCallArchitectures SystemCallFilter SystemCallErrorNumber""",
    "Timer": "OnActiveSec OnUnitActiveSec",
    "Install": "WantedBy",
}
"""Names of systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.timer(5) that the units use."""

INSTRUCTIONS = {
    "FROM",
    "ENV",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}
Unit = dict[str, dict[str, str]]


def read_unit(path: Path) -> Unit:
    """Strictly: every line is a section, a comment, or an option inside a section, and no option comes twice."""
    unit: Unit = {}
    section = ""
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
            assert section not in unit, line
            unit[section] = {}
            continue
        name, equals, value = line.partition("=")
        assert section and equals and re.fullmatch(r"[A-Za-z]+", name), line
        assert name not in unit[section], line
        unit[section][name] = value
    return unit


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_known_sections_and_options(path: Path) -> None:
    for section, options in read_unit(path).items():
        assert set(options) <= set(OPTIONS[section].split()), section


@pytest.mark.parametrize("text", ["Type=exec\n", "[Service]\nType exec\n", "[Service]\nType=a\nType=b\n"])
def test_a_broken_unit_is_noticed(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken.service").write_text(text)
    with pytest.raises(AssertionError):
        read_unit(tmp_path / "broken.service")


def test_the_node_is_restarted_and_its_own_sandbox_stays_possible() -> None:
    service = read_unit(DEPLOY / "cloister.service")["Service"]
    assert service["Restart"] == "on-failure" and service["User"] != "root"
    assert service["NoNewPrivileges"] == "yes" and service["CapabilityBoundingSet"] == ""
    assert not {"RestrictNamespaces", "MemoryDenyWriteExecute"} & set(service)
    assert service["SystemCallFilter"].startswith("~") and "@mount" not in service["SystemCallFilter"]
    assert "@sandbox" not in service["SystemCallFilter"]


def environment(file: str = "cloister.env") -> dict[str, str]:
    words = shlex.split((DEPLOY / file).read_text(), comments=True)
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize(
    ("unit", "file", "variable"),
    [
        ("cloister.service", "cloister.env", "CLOISTER_ARGS"),
        ("cloister-relay.service", "relay.env", "CLOISTER_RELAY_ARGS"),
        ("cloister-issuer.service", "issuer.env", "CLOISTER_ISSUER_ARGS"),
    ],
)
def test_a_unit_runs_a_command_with_options_that_exist(unit: str, file: str, variable: str) -> None:
    service = read_unit(DEPLOY / unit)["Service"]
    program, *words = service["ExecStart"].split()
    assert program == f"{INSTALLED}.venv/bin/cloister" and service["EnvironmentFile"] == f"/etc/cloister/{file}"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "cloister" in scripts and words[-1] == f"${variable}"
    given = shlex.split(environment(file)[variable])
    assert not _unknown_options(typer.main.get_command(app), [*words[:-1], *given])


def test_health_is_asked_where_the_node_listens() -> None:
    given = shlex.split(environment()["CLOISTER_ARGS"])
    port = given[given.index("--port") + 1]
    assert environment()["CLOISTER_HEALTH"] == f"http://127.0.0.1:{port}/health"
    assert "$CLOISTER_HEALTH" in read_unit(DEPLOY / "cloister-health.service")["Service"]["ExecStart"]
    assert '"/health"' in (ROOT / "src" / "cloister" / "gateway" / "routes.py").read_text()


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With the programs of this checkout and this system in the place of those of an installed node."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "cloister"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace(f"{INSTALLED}.venv/bin/cloister", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in done.stderr.splitlines() if any(path.name in line for path in UNITS)]
    assert not ours, done.stderr


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_container_file_has_known_instructions_and_pinned_stages() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS and found[0][0] == "FROM"
    stages = [value for name, value in found if name == "FROM"]
    assert len(stages) == 2 and stages[0].endswith(" AS build")
    assert all(re.search(r":\d+\.\d+\.\d+-[\w-]+", stage) for stage in stages), "a tag that names the version"
    for name, value in found:
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(value))


def test_the_container_runs_unprivileged_and_shows_its_health() -> None:
    last = max(number for number, (name, _) in enumerate(instructions()) if name == "FROM")
    final = dict(instructions()[last:])
    assert final["USER"].split(":")[0] not in ("0", "root")
    assert "/health" in final["HEALTHCHECK"] and "CMD" in final["HEALTHCHECK"]
    program, *words = json.loads(final["ENTRYPOINT"])
    assert program == "cloister"
    assert not _unknown_options(typer.main.get_command(app), [*words, *json.loads(final["CMD"])])


def test_what_the_container_copies_and_runs_is_in_the_repository() -> None:
    for name, value in instructions():
        words = shlex.split(value)
        if name == "COPY" and "--from=build" in words:
            sources = [word.removeprefix(INSTALLED) for word in words[:-1] if word.startswith(INSTALLED)]
            sources = [source for source in sources if source != ".venv"]  # which the stage before made
        elif name == "COPY":
            sources = [word for word in words[:-1] if not word.startswith("--")]
        elif name == "RUN" and words[0] == "python3":
            sources = [words[1]]
        else:
            continue
        assert not [source for source in sources if not (ROOT / source).exists()]


def test_what_the_guide_installs_is_in_the_repository() -> None:
    text = (DEPLOY / "README.md").read_text()
    named = set(re.findall(r"deploy/([\w.-]+)", text))
    assert {"cloister.service", "cloister.env", "Containerfile"} <= named
    assert not [name for name in named if not (DEPLOY / name).exists()]
    assert re.search(r"^runtime:", (ROOT / "Makefile").read_text(), re.MULTILINE) and "make runtime" in text
