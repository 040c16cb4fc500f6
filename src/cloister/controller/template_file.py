"""The operator's registered templates: a signed file, read again when it changes."""

import asyncio
import hashlib
import logging
from functools import partial
from pathlib import Path

from cloister import signed_text
from cloister.config import ControllerSettings
from cloister.controller.sharing import Sharing
from cloister.errors import SetupError
from cloister.files import sha256_of
from cloister.prefix.public_pages import MAX_TEMPLATES_BYTES, read_templates
from cloister.process.supervisor import cancelled
from cloister.transparency.note import VerifierKey

log = logging.getLogger(__name__)
EVERY_S = 2.0
_HINT = "Write it with `cloister cache register FILE --into TEMPLATES --key KEYFILE`."
_READ_BY_TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")
read_signed = partial(signed_text.read_signed, check=read_templates, most=MAX_TEMPLATES_BYTES, hint=_HINT)
sign_templates = partial(signed_text.signed_text, check=read_templates)


def tokenizer_digest(folder: Path) -> str:
    """A digest of every file that decides a chat's tokens."""
    files = [folder / name for name in _READ_BY_TOKENIZER]
    return hashlib.sha256(
        "".join(f"{file.name} {sha256_of(file)}\n" for file in files if file.exists()).encode()
    ).hexdigest()


class TemplateFile:
    def __init__(self, path: Path, key: VerifierKey, tokenizer: str) -> None:
        self._signed = signed_text.SignedText(path, key, read_templates, most=MAX_TEMPLATES_BYTES, hint=_HINT)
        self._tokenizer = tokenizer
        self._watching: asyncio.Task[None] | None = None

    def start(self, sharing: Sharing) -> None:
        apply = partial(self._apply, sharing)
        apply(self._signed.text)
        self._watching = asyncio.create_task(self._signed.watch(EVERY_S, apply))

    async def close(self) -> None:
        await cancelled(self._watching)

    def _apply(self, sharing: Sharing, text: str) -> None:
        templates = read_templates(text)
        fitting = [one for one in templates if one.tokenizer == self._tokenizer]
        if len(fitting) < len(templates):
            log.warning("Templates of another model's tokenizer are not shared: %d.", len(templates) - len(fitting))
        sharing.register(fitting)
        log.info("Registered templates: %d.", len(fitting))


def find_templates(settings: ControllerSettings, folder: Path) -> TemplateFile | None:
    if settings.templates is None:
        return None
    if settings.templates_key is None:
        raise SetupError("Templates are taken only if they are signed.", hint="Name the signer's key: --templates-key.")
    return TemplateFile(settings.templates, VerifierKey.parse(settings.templates_key), tokenizer_digest(folder))
