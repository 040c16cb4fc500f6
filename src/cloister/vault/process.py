"""What a vault does before it is sealed: take its memory, start its threads.

The vault itself is in `vault.py`; this module alone knows of the link.
"""

from __future__ import annotations

from cloister.config import EngineSettings
from cloister.link.answering import Answerer
from cloister.link.memory import LinkShape
from cloister.models.decoder import Decoder
from cloister.models.reading import PromptReading
from cloister.vault.vault import Vault, VaultRunner


def prepare(
    decoder: Decoder, reading: PromptReading, settings: EngineSettings, question_fd: int, answer_fd: int
) -> Vault:
    """Everything that needs more than a sealed process may do: the cache's memory and the answering thread."""
    runner = VaultRunner(decoder, settings)
    shape = decoder.cache_shape
    link = LinkShape(heads=shape.kv_heads * decoder.queries_per_kv_head, dim=shape.dim, layers=shape.layers)
    answerer = Answerer(decoder.kernels, link, runner.cache, decoder.scales, decoder.windows, question_fd, answer_fd)
    answerer.start()
    return Vault(decoder, reading, settings, runner, answerer)
