"""`cloister serve`: finds the model, which may have to be converted; then this process becomes the controller."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from cloister.cli.options import settings_command
from cloister.config import Settings
from cloister.errors import SetupError

if TYPE_CHECKING:
    from cloister.models.source import ModelFolder


@settings_command(Settings)
def serve(settings: Settings) -> None:
    """Serve a model through an OpenAI-compatible API and a chat page.

    Examples:
      cloister serve
      cloister serve --model ./my-model --dtype fp32 --port 9000
      cloister serve --host 0.0.0.0 --keys keys.toml    # see `cloister key new`
      cloister serve --max-vaults 16 --session-idle 60
      cloister serve --sealed-weights model.sealed --provider-key 'example.com/weights+…'
      cloister serve --mpc local    # three parties on this machine: to try it; see docs/mpc.md
      cloister serve --mpc-parties parties.toml
    """
    begun = monotonic()
    from cloister.attest.machine import find_attester
    from cloister.controller.attested_settings import attested_settings
    from cloister.controller.evidence import find_release
    from cloister.controller.external_level import find_offer, measured_packages
    from cloister.controller.vault_host import check_remote_vaults
    from cloister.gateway.port import reserve_port
    from cloister.keys import load_keys
    from cloister.models.source import find_model
    from cloister.process.entry import become
    from cloister.terminal import error_console

    with error_console().status("Starting…"):
        # What is wrong should not cost the time to load a model.
        load_keys(settings.gateway)
        reserved = reserve_port(settings.gateway)
        check_remote_vaults(settings.controller)
        find_attester(settings.controller.attester)
        release = find_release(settings.controller.release, measured_packages(settings))
        folder = _sealed_model(settings) or find_model(settings.model)
        find_offer(settings, folder)
        attested_settings(settings)
    shown = release.manifest if settings.controller.release else None
    become("cloister.controller", settings, folder.name, folder.path, begun, reserved, shown)


def _sealed_model(settings: Settings) -> ModelFolder | None:
    """The model that a sealed file says it holds, if one is to be served. Nothing is decrypted here."""
    file, provider = settings.controller.sealed_weights, settings.controller.provider_key
    if file is None and provider is None:
        return None
    from cloister.models.source import ModelFolder
    from cloister.sealed_weights.file import WeightsBundle, read_provider_key

    if file is None or provider is None or settings.model is not None:
        hint = "`cloister weights seal` prints how to serve what it sealed."
        raise SetupError("--sealed-weights and --provider-key belong together, without --model.", hint=hint)
    bundle = WeightsBundle.open(file, read_provider_key(provider))
    bundle.close()
    return ModelFolder(bundle.header.model, file, {})
