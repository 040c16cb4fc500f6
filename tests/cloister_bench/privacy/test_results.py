"""Rows of all attacks make one document, a table and a figure; borrowed attacks have baselines that succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloister.errors import SetupError
from cloister_bench.privacy import borrowed, stealing
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.results import FIGURES, QUICK, Results, tables
from cloister_bench.privacy.rows import Victim, rate_of_prompts, row
from cloister_bench.sharing.families import read_families
from cloister_bench.suite.documents import draw_figures, rate_of
from tests.gateway.fakes import ByteTokenizer
from tests.models.architectures import CONFIGS, random_model


def victim(tokenizer: Any = None, obfuscation: Path = Path("none"), model: Any = None) -> Victim:
    return Victim(QUICK, None, obfuscation, tokenizer, lambda: model)


def test_the_likeliest_prompt_of_an_answer_is_its_own() -> None:
    torch.manual_seed(3)
    network = Network(random_model(CONFIGS["llama"]))
    prompts = [[7, number, 12, 13] for number in range(20, 28)]
    for true in (0, 5):
        scores = stealing.likelihoods(network, prompts, continued(network, prompts[true], 16))
        assert max(range(8), key=scores.__getitem__) == true


def test_cache_timing_finds_what_all_share_and_guesses_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrowed, "read_families", lambda: read_families()[:1])
    found = {row["setting"].partition(",")[0]: row for row in borrowed.cache_timing(victim(ByteTokenizer()))}
    assert found["global"]["gets"] == found["global"]["baseline"] > 0.9
    assert found["partition"]["gets"] == pytest.approx(0.25) and found["partition"]["level"] == "open"


def test_the_distinguishers_document_is_read(tmp_path: Path) -> None:
    def one(method: str, adversary: str, share: float, group: str = "all") -> dict[str, Any]:
        interval = {"share": share, "low": 0.0, "high": 1.0, "of": 9}
        return {"method": method, "adversary": adversary, "group": group, **interval}

    rows = [one("exchangeable", "letters", 0.1), one("exchangeable", "model", 0.2), one("gqs", "model", 0.6)]
    rows.append(one("exchangeable", "sizes", 1.0, "name"))
    (tmp_path / "o.json").write_text(json.dumps({"plan": {"fakes": 7}, "distinguisher": rows}))
    first, second = borrowed.distinguisher(victim(obfuscation=tmp_path / "o.json"))
    assert (first["gets"], first["baseline"], second["gets"], first["guessing"]) == (0.2, 0.6, 0.6, 0.125)
    assert first["setting"].endswith("model")
    with pytest.raises(SetupError):
        list(borrowed.distinguisher(victim(obfuscation=tmp_path / "none.json")))


def test_a_document_has_targets_and_a_table() -> None:
    results = Results(QUICK, "model")
    layers = {"dtype": "fp32", "tokens": 4, "guessing": 0.0}
    for layer in (0, 1):
        results.rows.append(
            row("reconstruction", "partitioned", "x", rate_of(4, 4), 1.0, "tokens", layer=layer, **layers)
        )
    results.rows.append(row("traffic", "every level", "sealed", rate_of(208, 400), 0.9, "AUC"))
    results.rows.append(row("stealing", "isolated", "nothing", rate_of(0, 0), 0.9, "secrets"))
    document = results.document()
    verdicts = {one["name"]: one["met"] for one in document["targets"]}
    assert verdicts["sealed, AUC"] and verdicts["baseline: reconstruction"]
    assert not verdicts["plain stream, --beat, AUC"], "what was not measured is not met"
    shown = tables(document)[0].markdown()
    assert "| reconstruction | partitioned |" in shown and "0.520" in shown


def test_curves_of_recitations_are_drawn(tmp_path: Path) -> None:
    curves: list[dict[str, Any]] = [
        {"kind": kind, "by": by, "curve": {"0.01": 0.5, "0.1": 1.0}}
        for kind in ("verbatim", "base64")
        for by in ("letters", "attention", "either")
    ]
    document = {"rows": [{"attack": "traffic"}, *curves], "model": "m"}
    [path] = draw_figures(document, tmp_path, FIGURES)
    assert path.name == "privacy-recitation.png" and path.read_bytes()[1:4] == b"PNG"
    assert not draw_figures({"rows": [{"attack": "traffic"}], "model": "m"}, tmp_path, FIGURES)


def test_tokens_of_one_prompt_are_no_sample() -> None:
    assert rate_of_prompts([6, 6, 0, 6], 6) == pytest.approx({"share": 0.75, "of": 24, **wide(3, 4)}, abs=1e-3)
    assert rate_of_prompts([], 6) == {"share": 0.0, "of": 0, "low": 0.0, "high": 1.0}


def wide(hits: int, of: int) -> dict[str, Any]:
    return {name: value for name, value in rate_of(hits, of).items() if name in ("low", "high")}
