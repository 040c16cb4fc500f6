"""`cloister chat`: talk to a verified node from the terminal. Knows the terminal; `conversation` knows the API."""

import json
import sys
from typing import TYPE_CHECKING

import typer

from cloister.cli.anonymity import AnonymityOptions
from cloister.cli.options import DEFAULT_URL, settings_command, without_control_characters
from cloister.config import option
from cloister.errors import CloisterError, SetupError

if TYPE_CHECKING:
    from cloister.cli.conversation import Conversation
    from cloister.client.cloud_transport import CloudAccess
    from cloister.client.verification import VerifiedNode


_PROMPT_HELP = 'What to say; "-" reads standard input: other users can see a process\'s arguments. Else a chat begins.'
_LEVEL_HELP = "What the provider may see: everything (open), the answer (partitioned) or nothing (isolated, mpc)."


class ChatOptions(AnonymityOptions):
    prompt: str | None = option(None, _PROMPT_HELP, argument=True, show_default=False)
    url: str = option(DEFAULT_URL, "Where the server listens; `/v1` may be left out.")
    model: str | None = option(None, "Which model.", show_default="the server's first")
    system: str | None = option(None, "A system prompt.", show_default=False)
    max_tokens: int | None = option(None, "Tokens in an answer at most.", ge=1, show_default="the server's")
    temperature: float = option(0.2, "0 takes the likeliest token; a small model talks nonsense at 1.", ge=0, le=2)
    seed: int | None = option(None, "The same seed draws the same answer.", show_default="random")
    protection: str | None = option(None, _LEVEL_HELP, metavar="LEVEL", show_default="the server's choice: partitioned")
    insecure_plaintext: bool = option(False, "Verify and seal nothing: everyone on the way can read it all.")
    as_json: bool = option(False, "Print one JSON document instead of streaming.", name="json")


@settings_command(ChatOptions)
def chat(options: ChatOptions) -> None:
    """Chat with a model: one question, or a conversation. The node is verified first, and everything goes sealed.

    Examples:
      cloister chat --url https://node.example --policy policy.toml
      cloister chat "Why is the sky blue?" --allow-software-tee    # a development node of your own
      echo "A private question" | cloister chat - --allow-software-tee
      cloister chat "Name three rivers." --temperature 0 --json --allow-software-tee
      cloister chat --protection isolated --policy policy.toml
      cloister chat --relay https://relay.example --issuer https://issuer.example --cloud cloud.json
    """
    from cloister.addresses import HttpAddress
    from cloister.cli.conversation import Conversation

    address, prompt = HttpAddress.parse(options.url), options.prompt
    if prompt is None and options.as_json:
        raise SetupError("--json answers one question.", hint='Give it, or "-" to read it from standard input.')
    verifying = options.policy or options.allow_software_tee or options.relay or options.issuer
    if options.insecure_plaintext and verifying:
        raise SetupError("--insecure-plaintext verifies nothing.", hint="Leave out the other flags, or it.")
    if prompt == "-":
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise SetupError("Standard input holds no prompt.", hint='Try: echo "Hello" | cloister chat -')
    node: VerifiedNode | CloudAccess | None = None
    if options.issuer:
        node = options.access(options.url)
    elif not options.insecure_plaintext:
        node = options.verified(options.url, options.relay)
    choices = options.model_dump(include={"max_tokens", "temperature", "seed", "protection"}, exclude_none=True)
    spoken = {"model": options.model, "system": options.system}
    with Conversation(address, options.api_key(), node=node, choices=choices, **spoken) as conversation:
        conversation.on_wait = _show_waiting
        if prompt is None:
            for line in [] if node is None else options.anonymity():
                typer.secho(line, dim=True, err=True)
            _converse(conversation)
        elif options.as_json:
            typer.echo(json.dumps(conversation.ask_whole(prompt), indent=2, ensure_ascii=False))
        else:
            _print_answer(conversation, prompt)


def _show_waiting(why: str) -> None:
    typer.secho(f"{without_control_characters(why)} Waiting for it; Ctrl-C ends that.", dim=True, err=True)


COMMANDS = {"/help": "this list", "/clear": "start over; the node forgets this one", "/exit": "end, as Ctrl-D does"}
_ALSO = {"/?": "/help", "/new": "/clear", "/bye": "/exit", "/quit": "/exit"}


def _command(conversation: "Conversation", line: str) -> bool:
    """Run a command line; returns whether the conversation goes on. Commands are not sent."""
    word = line.split()[0]
    match _ALSO.get(word, word):
        case "/exit":
            return False
        case "/clear":
            conversation.forget()
            typer.secho("A new conversation begins.", dim=True, err=True)
        case "/help":
            for command, what in COMMANDS.items():
                typer.secho(f"{command:<8} {what}", dim=True, err=True)
            typer.secho("//…      send a line that begins with a slash", dim=True, err=True)
        case _:
            typer.secho(f"There is no command {without_control_characters(word)}, and it was not sent.", err=True)
            typer.secho("/help lists the commands; begin with // to send a slash.", dim=True, err=True)
    return True


def _converse(conversation: "Conversation") -> None:
    typer.secho(f"Talking to {conversation.model}. Ctrl-D ends it, /help shows more.", dim=True, err=True)
    while True:
        try:
            line = input("› " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo(err=True)
            return
        if not line:
            continue
        if line.startswith("/") and not line.startswith("//"):
            if not _command(conversation, line):
                return
            continue
        try:
            _print_answer(conversation, line.removeprefix("/"))
        except KeyboardInterrupt:
            typer.echo(" (stopped)", err=True)
        except CloisterError as error:
            typer.secho(f"Error: {error}", fg="red", err=True)


def _print_answer(conversation: "Conversation", prompt: str) -> None:
    progress = ProgressLine()
    conversation.on_progress = progress.show
    try:
        for piece in conversation.ask(prompt):
            progress.clear()
            print(without_control_characters(piece), end="", flush=True)
    finally:
        progress.clear()
    sys.stdout.write("\n")


class ProgressLine:
    MOST = 78
    _shown = False

    def show(self, progress: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{without_control_characters(progress)[: self.MOST]}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
