"""At `shared`: which first tokens others may find, by digests of pages and accounts; it keeps no token."""

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cloister.config import ControllerSettings, cache_folder
from cloister.errors import CloisterError
from cloister.files import make_folder, read_private, write_private
from cloister.messages.controller_frontend import KeyEntry
from cloister.messages.controller_service import GeneratePrompt, PublicPrefix
from cloister.prefix.base import POLICIES, TOKEN_BYTES, Paging
from cloister.prefix.public_pages import SECRET_BYTES, Evidence, Template, Templates, page_digests

log = logging.getLogger(__name__)


class Sharing:
    """`vetoed`: a detector has a veto on what is counted."""

    def __init__(
        self, settings: ControllerSettings, page_tokens: Callable[[], int], secret: bytes | None = None
    ) -> None:
        self.policy, self.vetoed = settings.shared_policy, settings.detector
        self._secret = secret or (shared_secret() if self.labels else secrets.token_bytes(SECRET_BYTES))
        self._evidence = Evidence(self._secret, settings.share_epsilon, settings.share_threshold)
        self._templates = Templates(self._secret)
        self._page_tokens = page_tokens
        self._accounts: dict[str, str] = {}

    @property
    def labels(self) -> bool:
        """Whether a request's label decides what it finds of others."""
        return POLICIES[self.policy].labelled_public

    @property
    def waits(self) -> bool:
        """Whether that label depends on what a detector finds in the text."""
        return self.policy == "counted" and self.vetoed

    def admit(self, keys: Sequence[KeyEntry]) -> None:
        """An account is a trust group, or a tenant without one: its keys have one vote."""
        groups = {key.trust_group for key in keys}
        self._accounts = {
            key.tenant: key.trust_group or (f"tenant:{key.tenant}" if key.tenant in groups else key.tenant)
            for key in keys
        }

    def register(self, templates: Iterable[Template]) -> None:
        self._templates.replace(templates, self._page_tokens())

    def label(self, order: GeneratePrompt, passed: int) -> PublicPrefix:
        """`passed`: the first tokens in which the detector found nothing private."""
        size, account = self._page_tokens(), self._accounts.get(order.tenant, order.tenant)
        paging = Paging(order.public, len(order.prompt), size)
        pages = page_digests(self._secret, paging.pack(order.prompt), size * TOKEN_BYTES)
        public = registered = self._templates.covers(account, pages)
        if self.policy == "counted":
            public += self._evidence.count(account, pages[registered : paging.pages(passed)])
        return PublicPrefix(order.request_id, paging.positions(public), paging.positions(registered))


def shared_secret(path: Path | None = None) -> bytes:
    """The secret behind all pages' noise. A file keeps it, so that a restart of the node draws no new noise."""
    path = path or cache_folder() / "sharing.key"
    try:
        if not path.exists():
            make_folder(path.parent)
            write_private(path, secrets.token_bytes(SECRET_BYTES))
        kept = read_private(path, SECRET_BYTES, "secret of shared pages")
        if len(kept) == SECRET_BYTES:
            return kept
        log.warning("%s is not a secret of %d bytes; remove it.", path, SECRET_BYTES)
    except (CloisterError, OSError) as wrong:
        log.warning("The secret of shared pages cannot be kept over a restart: %s", wrong)
    return secrets.token_bytes(SECRET_BYTES)
