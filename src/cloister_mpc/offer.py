"""Whether this server can offer `mpc`, and has the memory for three parties. Imports none of it."""

from importlib.util import find_spec
from pathlib import Path

from cloister.config import Settings
from cloister.errors import ModelUnsupported, ServiceUnavailable, SetupError
from cloister.models.source import ModelFolder
from cloister_mpc.config import KIND, PARTIES

BYTES_PER_NUMBER = 16  # replicated sharing: each party holds two of a number's three shares, eight bytes each
BYTES_BESIDE_WEIGHTS = 700 << 20
"""What a party takes beside weights: its interpreter, SPU and JAX, and the cache of one generation."""
_PACKAGES = ("spu", "jax")


def require_packages() -> None:
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise SetupError(
            f"The level mpc needs {' and '.join(missing)}.",
            hint="`make mpc` installs them. (SPU has packages for Python 3.11 on Linux, x86-64 and ARM.)",
        )


def require(settings: Settings, folder: ModelFolder) -> None:
    """CloisterError, with what its operator can do, where this server cannot offer the level."""
    require_packages()
    if settings.controller.sealed_weights is not None and settings.mpc.parties is None:
        raise SetupError(
            "Parties on this machine cannot be dealt weights that are sealed.",
            hint="Their provider can deal them to parties elsewhere (--mpc-parties).",
        )
    if folder.config and folder.config.get("model_type") != KIND:
        raise ModelUnsupported(
            f"Models of the kind '{folder.config.get('model_type')}' are not computed on shares.",
            hint="Llama-style models are.",
        )
    parties = settings.mpc.parties
    if parties is not None and not parties.is_file():
        raise SetupError(f"There is no file {parties}.", hint="`cloister mpc up` makes one; see docs/mpc.md.")


def bytes_per_party(folder: ModelFolder) -> int:
    stored = sum(file.stat().st_size for file in folder.path.glob("*.safetensors"))
    dtype = folder.config.get("dtype") or folder.config.get("torch_dtype")
    return stored // (4 if dtype == "float32" else 2) * BYTES_PER_NUMBER + BYTES_BESIDE_WEIGHTS


def require_memory(folder: ModelFolder, meminfo: Path = Path("/proc/meminfo")) -> None:
    """ServiceUnavailable, with numbers, if three parties do not fit into what this machine has left."""
    needed = PARTIES * bytes_per_party(folder)
    available = _available(meminfo)
    if available < needed:
        raise ServiceUnavailable(
            f"Three parties on this machine would take {needed / 1e9:.1f} GB of memory for this model, and "
            f"{available / 1e9:.1f} GB are free.",
            hint="Run them on three machines (docs/mpc.md), or choose another level.",
        )


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
