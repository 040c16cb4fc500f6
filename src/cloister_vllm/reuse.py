"""Which computed blocks a request may find, as names in vLLM's hashes of blocks. A block's hash has that of the block
before it, so a name at one block keeps all behind it apart."""

import hashlib
import secrets

from cloister.compute.layout import Remote
from cloister.engine.base import EngineRequest
from cloister.prefix.base import POLICIES
from cloister_vllm.core import Job

MOST_LIVES = 10_000


class Reuse:
    """Names depend on a secret of this process, and a tenant's change with each `forget`: no tenant can guess one."""

    def __init__(self, block_tokens: int) -> None:
        self._block, self._secret = block_tokens, secrets.token_bytes(32)
        self._lives: dict[str, bytes] = {}  # of tenants that were forgotten
        self._public: dict[int, int] = {}

    def label(self, request_id: int, public_tokens: int) -> None:
        """Blocks of the first tokens may be found by all. Rounded down: a block is public as a whole."""
        self._public[request_id] = public_tokens // self._block * self._block

    def ended(self, request_id: int) -> None:
        self._public.pop(request_id, None)

    def forget(self, tenant: str) -> None:
        """When too many were forgotten, all are: then no name is as before."""
        if len(self._lives) >= MOST_LIVES:
            self._lives.clear()
            self._secret = secrets.token_bytes(32)
        self._lives[tenant] = secrets.token_bytes(16)

    def job(self, request: EngineRequest, remote: Remote | None, most: int) -> Job:
        prompt = (request.partitions[0].first,) if request.partitions else request.prompt
        if remote is not None or request.policy == "none":
            return Job(request.request_id, prompt, request.params, most, remote)
        labelled = POLICIES[request.policy].labelled_public and not request.salt
        public = self._public.get(request.request_id, 0) if labelled else 0
        if request.policy == "global" and not request.salt:
            public = len(prompt)
        return Job(request.request_id, prompt, request.params, most, None, self._name(request), public)

    def _name(self, request: EngineRequest) -> str:
        life = self._lives.get(request.tenant, b"")
        parts = (life, request.tenant.encode(), request.salt.encode())
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(4, "little") + part)
        return digest.hexdigest()
