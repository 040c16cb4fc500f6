"""The level `mpc` as the controller sees it: whether it can be offered, its route, its processes, its parties."""

from cloister.attest.evidence import Parties
from cloister.config import Settings
from cloister.controller.external_level import ExternalLevel
from cloister.controller.routes.base import Node
from cloister.messages.controller_frontend import Serving
from cloister.models.source import ModelFolder
from cloister_mpc import offer
from cloister_mpc.client_keeper import MpcClientKeeper, MpcRoute
from cloister_mpc.config import read_config


class MpcLevel(ExternalLevel):
    def __init__(self) -> None:
        self._route: MpcRoute | None = None

    def require(self, settings: Settings, folder: ModelFolder) -> None:
        offer.require(settings, folder)

    def parties(self, settings: Settings) -> Parties | None:
        if settings.mpc.parties is None:
            return None
        config = read_config(settings.mpc.parties)
        addresses = tuple(place.control for place in config.party)
        return Parties(config.protocol, config.beaver, addresses, config.identity())

    def route(self, node: Node) -> MpcRoute:
        self._route = MpcRoute(node)
        return self._route

    def start(self, folder: ModelFolder, settings: Settings, serving: Serving, parties: Parties | None) -> None:
        assert self._route is not None
        keeper = self._route.client = MpcClientKeeper(
            folder,
            settings.mpc,
            self._route,
            vocabulary=serving.vocabulary,
            max_context=serving.max_context,
            identity=b"" if parties is None else parties.identity,
        )
        if settings.mpc.mode == "local" or parties is not None:
            keeper.start()

    async def close(self) -> None:
        if self._route is not None and self._route.client is not None:
            await self._route.client.close()

    def banner(self, settings: Settings) -> str:
        if settings.mpc.parties is not None:
            return "Level mpc: computed by the parties that --mpc-parties names."
        when = "are being started" if settings.mpc.mode == "local" else "start with the first request for it"
        return (
            f"Level mpc: three parties on this machine {when}; with the default model they take about 9 GB of memory."
        )
