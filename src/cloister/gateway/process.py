"""The gateway as a process: joins the controller's socket, the tokenizer and the application, and serves HTTP."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path

from cloister.config import GatewaySettings
from cloister.detection.judge import form_of
from cloister.errors import ServiceUnavailable, SetupError
from cloister.gateway.app import create_app
from cloister.gateway.client import GatewayClient
from cloister.gateway.sealed import SealedFirst
from cloister.gateway.server import serve as serve_http
from cloister.keys import KeyRing
from cloister.messages.controller_gateway import Listening
from cloister.messages.lifecycle import start_failed
from cloister.models.source import open_folder
from cloister.process.sandbox.confinement import confine_or_refuse
from cloister.prompts.tokenizer import Tokenizer


async def serve(controller: socket.socket) -> None:
    client = await GatewayClient.connect(controller)
    try:
        start = await client.started
        settings = GatewaySettings.model_validate_json(start.settings)
        tokenizer = Tokenizer(open_folder(Path(start.path), start.name))
        keys = KeyRing.of(start.keys)
        client.when_keys_change(keys.admit)
        await client.serving
        with suppress(SetupError):  # the vocabulary lacks the two answers: uncertain blocks stay private
            client.send(form_of(tokenizer.encode))
        app = create_app(client, tokenizer, start.name, settings, start.created, client, keys)
        app.openapi()  # made now and kept: after confinement its code could not be read from files
        client.when_gone(lambda: signal.raise_signal(signal.SIGTERM))

        def listens(url: str) -> None:
            """Called before the first request is read."""
            confine_or_refuse("gateway", allow_degraded=start.allow_degraded)
            client.send(Listening(url))

        await serve_http(SealedFirst(app), settings, listens)
    except ServiceUnavailable:
        pass  # the controller ended during our start
    except Exception as reason:
        client.send(start_failed(reason, "The gateway cannot start"))
    finally:
        await client.close()
