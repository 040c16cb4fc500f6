"""SmolLM2 with four of its thirty layers: its own words, tokenizer, widths and name, a third of the work.

What it says depends on every word of a prompt and makes no sense. For tests that talk to a server and do not read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from cloister.models.source import ModelFolder, find_model, open_folder

KEPT = (0, 1, 28, 29)
"""Which layers. With these a greedy answer does not end or go in circles soon."""

_FOLDER = Path(__file__).parents[1] / "artifacts" / "models"


def short_model() -> ModelFolder:
    """Made once a checkout; groups of tests that ask at the same time make the same."""
    whole = find_model(None)
    folder = _FOLDER / "-".join(map(str, KEPT)) / whole.name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        _write(whole, made)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)  # another group was faster
    return open_folder(folder, whole.name)


def _write(whole: ModelFolder, folder: Path) -> None:
    from safetensors.torch import save_file

    from cloister.models.weights import open_weights

    kept = {}
    for name, tensor in open_weights(whole).items():
        layer, place = _layer_of(name)
        if layer is None:
            kept[name] = tensor
        elif layer in KEPT:
            kept[f"model.layers.{KEPT.index(layer)}.{place}"] = tensor
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**whole.config, "num_hidden_layers": len(KEPT)}))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(whole.path / name, folder)
    os.chmod(folder, 0o755)


def _layer_of(name: str) -> tuple[int | None, str]:
    if not name.startswith("model.layers."):
        return None, ""
    number, _, place = name.removeprefix("model.layers.").partition(".")
    return int(number), place
