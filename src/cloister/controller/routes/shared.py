"""`shared`: as `open`, and what a detector finds nothing private in may be found by others (SafeKV)."""

from __future__ import annotations

from cloister.controller.routes.base import Node
from cloister.controller.routes.open import OpenRoute
from cloister.levels import LEVELS


class SharedRoute(OpenRoute):
    """Frontend → service → frontend, with the policy `safekv`."""

    level = LEVELS["shared"]

    def __init__(self, node: Node) -> None:
        super().__init__(node, "safekv")
