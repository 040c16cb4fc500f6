"""`cloister serve`: finds the model, which may have to be converted; then this process becomes the controller."""

from time import monotonic

from cloister.cli.options import settings_command
from cloister.config import Settings
from cloister.errors import SetupError


@settings_command(Settings, config_file=True)
def serve(settings: Settings) -> None:
    """Serve a model through an OpenAI-compatible API and a chat page.

    Examples:
      cloister serve
      cloister serve --model ./my-model --dtype fp32 --port 9000
      cloister serve --host 0.0.0.0 --keys keys.toml    # see `cloister key new`
      cloister serve --host 0.0.0.0 --keys keys.toml --port 443 --tls-cert chain.pem --tls-key key.pem
      cloister serve --config cloister.toml    # see `cloister config`
      cloister serve --max-vaults 16 --session-idle 60
      cloister serve --sealed-weights model.sealed --provider-key 'example.com/weights+…'
      cloister serve --mpc local    # three parties on this machine: to try it; see docs/mpc.md
      cloister serve --mpc-parties parties.toml
    """
    begun = monotonic()
    from cloister.attest.machine import find_attester
    from cloister.attest.profile import check_profile
    from cloister.certificate import read_certificate
    from cloister.controller.attested_settings import attested_settings
    from cloister.controller.evidence import find_release
    from cloister.controller.external_engine import find_engine, unverified
    from cloister.controller.external_level import find_offer, measured_packages
    from cloister.controller.vault_host import check_remote_vaults
    from cloister.keys import load_keys
    from cloister.models.source import ModelFolder, find_model
    from cloister.port import reserve_port
    from cloister.process.entry import become
    from cloister.sealed_weights.file import WeightsBundle, read_provider_key
    from cloister.terminal import error_console

    with error_console().status("Starting…"):
        # What is wrong should not cost the time to load a model.
        settings = unverified(settings)
        load_keys(settings.gateway)
        read_certificate(settings.gateway)
        reserved = reserve_port(settings.gateway)
        check_remote_vaults(settings.controller)
        tee, released = find_attester(settings.controller.attester).tee, settings.controller.release is not None
        check_profile(attested_settings(settings), tee, released=released)
        release = find_release(settings.controller.release, measured_packages(settings))
        file, provider = settings.controller.sealed_weights, settings.controller.provider_key
        if file is None and provider is None:
            folder = find_model(settings.model)
        elif file is None or provider is None or settings.model is not None:
            hint = "`cloister weights seal` prints how to serve what it sealed."
            raise SetupError("--sealed-weights and --provider-key belong together, without --model.", hint=hint)
        else:
            bundle = WeightsBundle.open(file, read_provider_key(provider))  # nothing is decrypted here
            bundle.close()
            folder = ModelFolder(bundle.header.model, file, {})
        find_engine(settings, folder)
        find_offer(settings, folder)
    shown = release.manifest if settings.controller.release else None
    log_format = settings.controller.log_format
    become("cloister.controller", settings, folder.name, folder.path, begun, reserved, shown, log_format)
