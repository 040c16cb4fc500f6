"""At `shared`: has a detector read prompts, which has a veto on what is shared of each. A prompt's text is not kept."""

from collections.abc import Callable, Sequence

from cloister.controller.detector import BlockLabel
from cloister.controller.node import Node
from cloister.controller.requests import wide
from cloister.controller.routes.open import SharedRoute
from cloister.controller.sharing import Sharing
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import Examine


class PromptLabels:
    """`examine` is set while there is a detector; what it finds comes to `labelled`."""

    def __init__(self, node: Node, sharing: Sharing) -> None:
        self._node = node
        self.examine: Callable[..., None] | None = None  # DetectorKeeper.classify
        self.route = SharedRoute(node, sharing, lambda: self.examine is not None)

    def read(self, frontend: int, message: Examine) -> None:
        request = self._node.requests.get(wide(frontend, message.request_id))
        if request is not None and request.level.examined and self.examine is not None:
            request.same_prompt = tuple(wide(frontend, one) for one in message.also)
            self.examine(request.request_id, message.text, message.ends)

    def labelled(self, request_id: int, blocks: Sequence[BlockLabel]) -> None:
        """The detector's veto begins at the first block that is not public."""
        size = self._node.serving().block_tokens
        public = size * next((at for at, one in enumerate(blocks) if one.label is not Label.PUBLIC), len(blocks))
        if (request := self._node.requests.get(request_id)) is not None:
            request.labels = tuple(blocks)
            for other in map(self._node.requests.get, request.same_prompt):
                if other is not None and other.tenant == request.tenant and other.shown == request.shown:
                    other.labels = request.labels
                    self.route.serve(other.request_id, public)
        self.route.serve(request_id, public)
