"""`cloister obfuscate`: the prompts that a prompt with secrets would be sent among, sampled on this machine."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import typer
from pydantic import BaseModel

from cloister.cli.options import settings_command, without_control_characters
from cloister.config import DEFAULT_MODEL, option
from cloister.errors import InvalidRequest, SetupError
from cloister.files import read_text

if TYPE_CHECKING:
    from cloister.obfuscation.requests import Obfuscation
    from cloister.obfuscation.tags import TaggedText
    from cloister.obfuscation.variants import GivenSubstitutes, Variants

MAX_FILE_BYTES = 4 << 20


class SamplingOptions(BaseModel):
    fakes: int = option(7, "λ: how many made-up prompts go with the real one.", ge=1, le=512)
    method: Literal["exchangeable", "dictionary", "gqs"] = option(
        "exchangeable", "Values that exist, drawn by the model; drawn evenly; or made up by the model (the paper's)."
    )
    epsilon: float = option(2.0, "Of gqs, ε: how far a made-up prompt's probability may be from the real.", ge=1e-6)
    auto_redact: bool = option(False, "Look for secrets on this machine, too: names, dates, places, numbers.")
    sampling_model: str | None = option(None, "Model that samples, as for `serve`.", show_default=DEFAULT_MODEL)
    store: str | None = option(
        None,
        'File that keeps substitutes from run to run, or "none".',
        metavar="FILE",
        show_default="in the user's data folder",
    )

    def obfuscation(self) -> "Obfuscation":
        from cloister.local_sampling import local_obfuscation

        chosen = self.model_dump(include={"fakes", "method", "epsilon", "auto_redact", "store"})
        return local_obfuscation(self.sampling_model, **chosen)


class ObfuscateOptions(SamplingOptions):
    file: str = option(..., 'With <redacted>secrets</redacted>; "-" is standard input.', argument=True, metavar="FILE")
    fewest: int | None = option(None, "λ_min: fewer are not shown.", ge=1, name="at-least", show_default="--fakes")
    distance: Literal["absolute", "relative"] = option("relative", "Of gqs: of logarithms, or of probabilities.")
    candidates: int = option(128, "Of gqs, λ_max: candidates kept at every token.", ge=1, le=4096)
    temperature: float = option(1.0, "Of gqs: flattens the model's probabilities.", ge=0.05, le=10)
    regularise: bool = option(False, "Spell secrets with usual capitals and spaces first.")
    substitutes: Path | None = option(None, "Sample nothing: a JSON list of variants, each a list of substitutes.")
    other_model: str | None = option(None, "An adversary's: print also what it could tell. As for `serve`.")
    as_json: bool = option(False, "Print JSON instead of text.", name="json")


@settings_command(ObfuscateOptions)
def obfuscate(options: ObfuscateOptions) -> None:
    """Show the prompts that a prompt would be hidden among, and how well a guess can do.

    Nothing is sent anywhere. The real prompt is the first one shown; sent, they would be shuffled.

    Examples:
      cloister obfuscate letter.txt
      echo 'I live in <redacted category="place">Boston</redacted>.' | cloister obfuscate - --fakes 5
      cloister obfuscate letter.txt --other-model ./gemma-3-270m.gguf --json
      cloister obfuscate letter.txt --auto-redact
    """
    from cloister.obfuscation.tags import auto_redact, parse_redacted, regularise

    hint = 'Give a text file, or "-" for standard input.'
    text = sys.stdin.read() if options.file == "-" else read_text(Path(options.file), MAX_FILE_BYTES, hint=hint)
    marked = parse_redacted(text, param=options.file)
    if options.auto_redact:
        from cloister.detection.redaction import shipped_redaction
        from cloister.obfuscation.candidates.medications import known_medications

        marked = auto_redact(marked, shipped_redaction(known_medications())(marked.text))
    if not marked.spans:
        none, look = (", and none are found", "") if options.auto_redact else ("", " --auto-redact looks for some.")
        hint = f"Write <redacted>…</redacted> around them.{look}"
        raise InvalidRequest(f"The text marks no secrets{none}.", hint=hint)
    marked = regularise(marked) if options.regularise else marked
    made = _variants(marked, options)
    report = made.report() | (_by_other(options.other_model, made) if options.other_model else {})
    if options.as_json:
        prompts = [text for (text,) in made.texts]
        found = {"prompts": prompts, "authentic": 0, "substitutes": made.substitutes.values}
        typer.echo(json.dumps({**found, **report}, indent=2, ensure_ascii=False))
    else:
        _print(made, report)


def _variants(marked: "TaggedText", options: ObfuscateOptions) -> "Variants":
    from cloister.obfuscation.goal import SamplingGoal
    from cloister.obfuscation.gqs import Quantization
    from cloister.obfuscation.variants import make_variants

    quantization = Quantization(options.epsilon, options.candidates, options.temperature, options.distance)
    goal = SamplingGoal(options.fakes, options.fewest, quantization, options.method)
    if options.substitutes is not None:
        return make_variants([marked], _given(options.substitutes))
    from cloister.local_sampling import LocalModel, open_store

    store = open_store(options.store)
    sampler = LocalModel(options.sampling_model, lambda_max=options.candidates).sampler(goal)
    return make_variants([marked], sampler, store, goal)


def _given(file: Path) -> "GivenSubstitutes":
    from cloister.obfuscation.variants import GivenSubstitutes

    try:
        return GivenSubstitutes(msgspec.json.decode(read_text(file, MAX_FILE_BYTES), type=list[list[Any]]))
    except msgspec.DecodeError:
        hint = 'Like: [["Ann", "Boston"], ["Jo", "Denver"]]'
        raise SetupError(f"{file} is no JSON list of lists.", hint=hint) from None


def _by_other(model: str, made: "Variants") -> dict[str, float]:
    """What an adversary with another model believes of the λ+1 prompts."""
    from cloister.local_sampling import LocalModel

    found = made.substitutes.posterior_by(LocalModel(model).likelihoods(["\n\n".join(texts) for texts in made.texts]))
    return {"other_posterior_of_likeliest": max(found), "other_posterior_of_real": found[0]} if found else {}


def _print(made: "Variants", report: dict[str, Any]) -> None:
    for number, (text,) in enumerate(made.texts):
        name = "real" if not number else f"fake {number}"
        typer.secho(f"{name:<9}", fg="green" if not number else "yellow", nl=False)
        typer.echo(without_control_characters(text).rstrip("\n").replace("\n", "\n" + " " * 9))
    typer.echo(f"λ = {report['lambda']}; by chance a guess is right with {1 / len(made):.1%}.", err=True)
    for who, likeliest, real in (
        ("sampling", report["posterior_of_likeliest"], report["posterior_of_real"]),
        ("other", report.get("other_posterior_of_likeliest"), report.get("other_posterior_of_real")),
    ):
        if likeliest is not None:
            typer.echo(f"By the {who} model: the likeliest {likeliest:.1%}, the real one {real:.1%}.", err=True)
    if kept := report["kept"]:
        typer.echo(f"{kept} of {len(made.entities)} secrets have the substitutes of an earlier run.", err=True)
    typer.echo("A larger model or a human reader may guess better: docs/obfuscation.md has what they got.", err=True)
