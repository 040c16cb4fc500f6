"""An engine of another distribution (`cloister.engines`), in another environment. Imported only if chosen."""

from abc import ABC, abstractmethod
from importlib.metadata import entry_points

from cloister.config import EngineChoice, Settings
from cloister.errors import SetupError
from cloister.levels import LevelName
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder

GROUP = "cloister.engines"
PACKAGES: dict[EngineChoice, str] = {"vllm": "cloister_vllm"}  # an entry point that leads elsewhere does not count


class ExternalEngine(ABC):
    """The controller's side: made without arguments, before anything of the node runs."""

    levels: tuple[LevelName, ...]  # those that need vaults: for a model that our own engine knows

    @abstractmethod
    def require(self, settings: Settings, folder: ModelFolder | None) -> None:
        """SetupError for every setting that it cannot honour; it must be what runs here. None: before the model."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program; its last argument will be the number of its socket."""

    @abstractmethod
    def unserved(self, params: SamplingParams) -> str | None:
        """The field of a request that it cannot serve, if there is one."""

    @abstractmethod
    def describe(self, settings: Settings) -> str:
        """Name, version and arguments, for evidence."""


UNVERIFIED = "sample:0.1"  # the default of `cloister serve`


def unverified(settings: Settings) -> Settings:
    """No vault can compute another engine's bits again: the default is off, and evidence shows it."""
    if settings.engine.kind == "own" or settings.controller.verify != UNVERIFIED:
        return settings
    return settings.model_copy(update={"controller": settings.controller.model_copy(update={"verify": "off"})})


def find_engine(settings: Settings, folder: ModelFolder | None = None) -> ExternalEngine | None:
    """None: our own. SetupError where the chosen one cannot serve these settings."""
    if settings.engine.kind == "own":
        if settings.engine.tensor_parallel > 1:
            raise SetupError("Cloister's own engine is one process.", hint="--tensor-parallel is for --engine vllm.")
        return None
    engine = load_engine(settings.engine.kind)
    _refuse(settings)
    engine.require(settings, folder)
    return engine


def describe_engine(settings: Settings) -> str:
    return "" if settings.engine.kind == "own" else load_engine(settings.engine.kind).describe(settings)


def load_engine(name: EngineChoice) -> ExternalEngine:
    found = next((each for each in entry_points(group=GROUP) if each.name == name), None)
    if found is None or found.module.partition(".")[0] != PACKAGES[name]:
        distribution = PACKAGES[name].replace("_", "-")
        raise SetupError(
            f"The engine {name} needs the distribution {distribution}, which is not installed.",
            hint=f"`make {name}` installs it, and the engine in another environment.",
        )
    engine = found.load()()
    if not isinstance(engine, ExternalEngine):
        raise SetupError(f"{found.value} is no engine.", hint=f"Install {PACKAGES[name]} again.")
    return engine


def _refuse(settings: Settings) -> None:
    """What no engine but our own has: fail closed, by name."""
    controls, engine, name = settings.controller, settings.engine, settings.engine.kind
    refused = {
        "--vault-host": controls.vault_host is not None,
        "--sealed-weights": controls.sealed_weights is not None,
        "--release": controls.release is not None,
        "--gpu-in-turns": controls.gpu_in_turns,
        "--private-layers": engine.private_layers > 0,
        "--watch-attention": engine.watch_attention,
        "--speculate": engine.speculate > 0,
        "--weights int8": engine.weights != "as-dtype",
        "--kernels": engine.kernels != "auto",
        f"--prefix-policy {controls.prefix_policy}": controls.prefix_policy != "none",
        f"--mpc {settings.mpc.mode}": settings.mpc.mode == "local",
        "--mpc-parties": settings.mpc.parties is not None,
        f"--verify {controls.verify}": controls.verify != "off",
    }
    if found := [option for option, given in refused.items() if given]:
        raise SetupError(
            f"With the engine {name} this server cannot keep what {', '.join(found)} asks for.",
            hint="Leave it out, or serve with Cloister's own engine.",
        )
    if not controls.allow_degraded_sandbox:
        raise SetupError(
            f"The process of the engine {name} makes code while it runs: a layer of its sandbox is missing, seccomp.",
            hint="Accept that with --allow-degraded-sandbox; evidence shows it, and clients refuse it by default.",
        )
