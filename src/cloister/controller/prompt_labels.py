"""At `shared`: has a detector read prompts, which has a veto on what is shared of each. A prompt's text is not kept;
uncertain blocks are put to the serving model (judge.py)."""

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from cloister.controller.detector import BlockLabel
from cloister.controller.judge import FRONTEND, JudgeKeeper, case_of
from cloister.controller.node import Node
from cloister.controller.requests import frontend_of, wide
from cloister.controller.routes.open import SharedRoute
from cloister.controller.sharing import Sharing
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import Examine, JudgeForm
from cloister.messages.controller_service import Probed
from cloister.messages.generation import Accepted, Failed, Tokens

log = logging.getLogger(__name__)
HALF_LIFE_S = 60.0
LOG_EVERY_S = 60.0


class Probes:
    """The service's reports of probing (SafeKV §V-C, §V-D). A false one costs a line in the log, and cache hits."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._tenants: frozenset[str] = frozenset()
        self._suspected: dict[str, float] = {}
        self._logged: dict[str, float] = {}

    def keep_only(self, tenants: frozenset[str]) -> None:
        self._tenants = tenants
        self._suspected = {name: at for name, at in self._suspected.items() if name in tenants}
        self._logged = {name: at for name, at in self._logged.items() if name in tenants}

    def handle(self, message: Probed) -> None:
        """Names of unknown tenants are not logged."""
        if not {message.owner, message.suspect} <= self._tenants:
            return
        now = self._clock()
        self._suspected[message.owner] = self._suspected[message.suspect] = now
        if now - self._logged.get(message.owner, float("-inf")) >= LOG_EVERY_S:
            self._logged[message.owner] = now
            log.warning("A shared prompt of tenant %r looks probed: it is private again.", message.owner)

    def suspicion(self, tenant: str) -> float:
        """From 0 to 1; it halves with every minute."""
        if (last := self._suspected.get(tenant)) is None:
            return 0.0
        return float(2.0 ** -((self._clock() - last) / HALF_LIFE_S))


class PromptLabels:
    """`examine` is set while there is a detector; what it finds comes to `labelled`."""

    def __init__(self, node: Node, probes: Probes, sharing: Sharing, *, judge: bool) -> None:
        self._node, self._probes = node, probes
        self.examine: Callable[..., None] | None = None  # DetectorKeeper.classify
        self.route = SharedRoute(node, sharing, lambda: self.examine is not None)
        self._judge = JudgeKeeper(node.send, self.route.labelled) if judge else None

    def learn(self, form: JudgeForm) -> None:
        if self._judge is not None:
            self._judge.learn(form)

    def read(self, frontend: int, message: Examine) -> None:
        request = self._node.requests.get(wide(frontend, message.request_id))
        if request is not None and request.level.examined and self.examine is not None:
            request.same_prompt = tuple(wide(frontend, one) for one in message.also)
            suspicion = self._probes.suspicion(request.tenant)
            self.examine(request.request_id, message.text, message.ends, suspicion=suspicion)

    def labelled(self, request_id: int, blocks: Sequence[BlockLabel]) -> None:
        """The detector's veto begins at the first block that is not public."""
        size = self._node.serving().block_tokens
        public = size * next((at for at, one in enumerate(blocks) if one.label is not Label.PUBLIC), len(blocks))
        final = True
        if (request := self._node.requests.get(request_id)) is not None:
            request.labels = tuple(blocks)
            for other in map(self._node.requests.get, request.same_prompt):
                if other is not None and other.tenant == request.tenant and other.shown == request.shown:
                    other.labels = request.labels
                    self.route.labelled(other.request_id, public)
            if self._judge is not None and self._node.service is not None:
                case = case_of(request_id, request.tenant, request.shown, blocks, size)
                final = case is None or not self._judge.ask(case)
        self.route.labelled(request_id, public, final=final)

    def from_service(self, message: Accepted | Tokens | Failed) -> bool:
        if self._judge is None or frontend_of(message.request_id) != FRONTEND:
            return False
        self._judge.handle(message)
        return True

    def forget(self, tenant: str) -> None:
        """Requests that wait for the detector are served before the service forgets."""
        self.route.serve_all_of(tenant)
        if self._judge is not None:
            self._judge.forget(tenant)

    def service_gone(self) -> None:
        if self._judge is not None:
            self._judge.service_gone()
