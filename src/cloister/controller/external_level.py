"""A level of another distribution (`cloister.levels`), imported unless switched off, and then measured too."""

from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint, entry_points

from cloister.attest.evidence import Parties
from cloister.config import Settings
from cloister.controller.routes.base import Node, Route
from cloister.controller.vault_side import PendingRequest
from cloister.errors import CloisterError, SetupError
from cloister.levels import MPC, LevelName
from cloister.messages.controller_frontend import Serving
from cloister.models.source import ModelFolder

GROUP = "cloister.levels"
PACKAGES: dict[LevelName, str] = {MPC: "cloister_mpc"}  # an entry point that leads elsewhere does not count


class ExternalRoute(Route):
    @abstractmethod
    def ask(self, asked: PendingRequest) -> None:
        """Take this request, or refuse it (`Requests.refuse`)."""


class ExternalLevel(ABC):
    """The controller's side of one level. Made without arguments, before anything of the node runs."""

    @abstractmethod
    def require(self, settings: Settings, folder: ModelFolder) -> None:
        """CloisterError, with what its operator can do, where this server cannot offer the level."""

    @abstractmethod
    def parties(self, settings: Settings) -> Parties | None:
        """The other machines that compute, for evidence, if there are any. SetupError if their file is unusable."""

    @abstractmethod
    def route(self, node: Node) -> ExternalRoute:
        """The route of its requests; called once."""

    @abstractmethod
    def start(self, folder: ModelFolder, settings: Settings, serving: Serving, parties: Parties | None) -> None:
        """Start the level's processes, or have its first request start them. `parties` are those of the evidence."""

    @abstractmethod
    async def close(self) -> None:
        """End the level's processes."""

    @abstractmethod
    def banner(self, settings: Settings) -> str:
        """A line for the operator, printed when the server is ready."""


def find_offer(settings: Settings, folder: ModelFolder) -> ExternalLevel | str:
    """A text says why this server does not offer `mpc`. An error where the operator asked for it in vain."""
    if is_off(settings):
        return "It was started with `--mpc off`; without that, its operator may offer 'mpc'."
    try:
        level = load_level(MPC)
        level.require(settings, folder)
    except CloisterError as reason:
        if settings.mpc.mode == "auto" and settings.mpc.parties is None:
            return f"For its operator: {reason}"
        raise
    return level


def load_level(name: LevelName) -> ExternalLevel:
    if (found := _entry_points().get(name)) is None:
        distribution = PACKAGES[name].replace("_", "-")
        raise SetupError(
            f"The level {name} needs the distribution {distribution}, which is not installed.",
            hint=f"`make {name}` installs it. (It needs Python 3.11 on Linux, x86-64 or ARM.)",
        )
    level = found.load()()
    if not isinstance(level, ExternalLevel):
        raise SetupError(f"{found.value} is no level.", hint=f"Install {PACKAGES[name]} again.")
    return level


def measured_packages(settings: Settings) -> tuple[str, ...]:
    """All that this node may import beside `cloister`; with a vault host all that is installed, as it measures too."""
    return () if is_off(settings) and settings.controller.vault_host is None else installed_packages()


def installed_packages() -> tuple[str, ...]:
    return tuple(sorted(PACKAGES[name] for name in _entry_points()))


def is_off(settings: Settings) -> bool:
    if settings.engine.kind != "own" and settings.mpc.mode == "auto" and settings.mpc.parties is None:
        return True  # beside another engine only what was asked for could be meant, and that is refused
    return settings.mpc.mode == "off" and settings.mpc.parties is None


def _entry_points() -> dict[LevelName, EntryPoint]:
    found = {each.name: each for each in entry_points(group=GROUP)}
    return {
        name: found[name]
        for name, package in PACKAGES.items()
        if name in found and found[name].module.partition(".")[0] == package
    }
