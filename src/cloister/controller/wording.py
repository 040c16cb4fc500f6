"""What users are told when the service fails them: the controller's own words for the service's code.

The service is sealed, and what it says goes to users as tokens and numbers; text it wrote itself would be a way out
for whatever it holds of somebody else.
"""

from __future__ import annotations

from cloister.errors import CloisterError, InvalidRequest, PromptTooLong, QueueFull, ServiceUnavailable, VaultLost
from cloister.messages.generation import Failed

MAX_RETRY_AFTER_S = 60

_LOST = frozenset(str(VaultLost.because(reason)) for reason in ("vault_lost", "vault_timeout", "link_malformed"))
_FIELDS = frozenset({"prompt", "logit_bias", "max_tokens", "logprobs", "repetition_penalty"})
_WORDS = {
    kind.code: words
    for kind, words in (
        (InvalidRequest, "The service cannot do this: see that token ids and logit_bias are of this model."),
        (PromptTooLong, "Prompt and answer are longer than the service can hold. Shorten the prompt."),
        (QueueFull, "Too many requests wait already."),
        (ServiceUnavailable, "The service could not go on with the request. Try again."),
        (VaultLost, str(VaultLost.because("vault_lost"))),
    )
}


def in_own_words(failed: Failed) -> Failed:
    """The same failure as far as its code is one the service has; none of its text that is not ours to the letter."""
    retry_after = min(max(failed.retry_after, 0), MAX_RETRY_AFTER_S)
    words = _WORDS.get(failed.code)
    if words is None:
        return Failed(failed.request_id, CloisterError.code, "The service failed.")
    if failed.code == VaultLost.code and failed.message in _LOST:
        words = failed.message
    param = failed.param if failed.param in _FIELDS else None
    return Failed(failed.request_id, failed.code, words, retry_after, param=param)
