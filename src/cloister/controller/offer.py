"""Which levels this node offers and why not the others; and which of them are open now, after their rehearsal."""

import asyncio
import logging
from typing import get_args

from msgspec.structs import asdict

from cloister.config import Settings
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.engine_process import EngineProcess
from cloister.controller.external_engine import ExternalEngine
from cloister.controller.rehearsal import Rehearsal
from cloister.controller.relay import FAILED, Relay
from cloister.errors import CloisterError, ModelUnsupported, QueueFull, ServiceUnavailable, VaultLost
from cloister.levels import LEVELS, MPC, Decodes, LevelName, Needs, Reader, default_of, served
from cloister.messages.controller_frontend import Serving
from cloister.process.sandbox.layers import Layer
from cloister.process.supervisor import BackOff, cancelled

log = logging.getLogger(__name__)
FIRST_REHEARSALS = 3  # a vault may be late once, on a machine that has just started all of this


class Offer:
    """`why_not_mpc`: what keeps this node from offering the level `mpc`; None where it does. `engine`: other than our
    own, which serves fewer levels and promises no equal bits."""

    def __init__(
        self,
        settings: Settings,
        relay: Relay,
        compute: ComputeProcesses | EngineProcess,
        why_not_mpc: str | None,
        engine: ExternalEngine | None = None,
    ) -> None:
        self._engine = engine
        self._settings, self._relay, self._compute = settings, relay, compute
        self.why_not_mpc = why_not_mpc
        # Levels that failed the first rehearsal: they are not offered.
        self._failed_first: frozenset[LevelName] = frozenset()
        self._service_is_new = asyncio.Event()
        self._rehearsing: asyncio.Task[None] | None = None

    def service_up(self) -> None:
        self._decide()
        self._service_is_new.set()

    def _decide(self) -> None:
        facts, ready = self._compute.preloaded, self._compute.ready
        assert facts is not None and ready is not None
        links = facts.partitionable and ready.asks_vaults
        met = {Needs.LINKS: links, Needs.PARTIES: self.why_not_mpc is None}
        possible = served(*(need for need, is_met in met.items() if is_met))
        if self._engine is not None:
            possible = tuple(level for level in possible if level in self._engine_levels)
        levels = tuple(level for level in possible if level not in self._failed_first)
        several = self._settings.gateway.keys_file is not None  # without keys all users are one tenant
        step_ms = self._settings.controller.quantise_ttft_ms if several else 0
        self._relay.offered = Serving(
            **asdict(ready),
            levels=levels,
            missing_layers=tuple(layer.value for layer in Layer if layer.value in {*facts.missing, *ready.lacks}),
            quantised={level: step_ms for level in levels if step_ms and self._relay.shares(level)},
            why_not=self._why_not(),
            verify=self._settings.controller.verify,
            tool_parser=self._settings.engine.tool_parser,
            token_challenge=self._relay.token_gate.challenge if self._relay.token_gate else "",
        )

    def _why_not(self) -> dict[LevelName, str]:
        why_not: dict[LevelName, str] = {} if self.why_not_mpc is None else {MPC: self.why_not_mpc}
        if self._engine is not None:
            reason = f"Its engine is {self._settings.engine.kind}, which does not serve this level here."
            why_not |= {level: reason for level in get_args(LevelName) if level not in self._engine_levels}
        return why_not

    @property
    def _engine_levels(self) -> tuple[LevelName, ...]:
        """Without vaults those that need none."""
        levels = () if self._engine is None else self._engine.levels
        return levels if self._compute.has_vaults else tuple(one for one in levels if not LEVELS[one].uses_vault)

    def close_levels(self, *decoded_by: Decodes) -> None:
        if self._relay.offered is not None:
            closed = [level for level in self._relay.offered.levels if LEVELS[level].decodes in decoded_by]
            self._relay.availability.close(closed)

    def keep_rehearsed(self) -> None:
        self._rehearsing = asyncio.create_task(self._keep_rehearsed())

    async def close(self) -> None:
        await cancelled(self._rehearsing)

    async def rehearse_first(self) -> None:
        """A level that fails is not offered, the default one is needed. A vault host that is away closes its levels."""
        self.close_levels(Decodes.SERVICE, Decodes.VAULT)
        for _ in range(FIRST_REHEARSALS):
            failed = await self._rehearse()
            if all(not isinstance(reason, ServiceUnavailable) for reason in failed.values()):
                break
        default = default_of(self._relay.serving().levels)
        for level, reason in failed.items():
            in_vaults = LEVELS[level].reader is Reader.VAULT
            if self._compute.has_vault_host and in_vaults and isinstance(reason, ServiceUnavailable):
                continue
            if level == default or len(self._relay.serving().levels) == 1:
                which = "default" if level == default else "only"
                raise ModelUnsupported(
                    f"A request at the {which} level, {level!r}, fails. {reason.message}",
                    hint="Serve another model, or another version of this one.",
                )
            log.error("The level %s is not offered, for a request at it fails. %s", level, reason)
            self._failed_first |= {level}
            self._relay.availability.open(level)
        self._decide()

    async def _rehearse(self) -> dict[LevelName, CloisterError]:
        """Opens the levels that pass; returns why the others did not."""
        availability = self._relay.availability
        closed = [level for level in self._relay.serving().levels if level in availability.closed]
        rehearsal = Rehearsal(self._relay, self._relay.serving(), equal_bits=self._engine is None)
        await rehearsal.play(closed)
        for level in closed:
            if (reason := rehearsal.failed.get(level)) is not None:
                availability.close((level,), reason if isinstance(reason, VaultLost) else FAILED)
            else:
                availability.open(level)
        return rehearsal.failed

    async def _keep_rehearsed(self) -> None:
        while True:
            await self._service_is_new.wait()
            self._service_is_new.clear()
            back_off = BackOff()
            while True:
                await back_off.pause()
                if self._compute.service is None or not self._relay.availability.closed:
                    break
                for level, reason in (await self._rehearse()).items():
                    if isinstance(reason, QueueFull):
                        # Users' requests fill the node. The same code passed when the node started.
                        self._relay.availability.open(level)
                    elif back_off.attempts == 1 and self._compute.service is not None:
                        log.error("A request at the level %s fails. %s", level, reason)
