"""`cloister obfuscate`: the prompts that a prompt with secrets would be sent among, sampled on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cloister.cli.options import AsJson
from cloister.errors import InvalidRequest, SetupError
from cloister.files import needed

if TYPE_CHECKING:
    from cloister.obfuscation.requests import Obfuscation
    from cloister.obfuscation.variants import Substituting, Variants

Fakes = Annotated[int, typer.Option(min=1, max=512, help="λ: how many made-up prompts go with the real one.")]
Epsilon = Annotated[
    float, typer.Option(min=1e-6, help="ε: how far a made-up prompt's probability may be from the real one's.")
]
SamplingModel = Annotated[
    str | None,
    typer.Option(help="Model of this machine that samples, as for `serve`.", show_default="SmolLM2-135M-Instruct"),
]


AutoRedact = Annotated[
    bool,
    typer.Option("--auto-redact", help="Look for secrets on this machine, too: names, dates, places, numbers."),
]


def local_obfuscation_of(model: str | None, fakes: int, epsilon: float, auto_redact: bool) -> Obfuscation:
    from cloister.local_sampling import local_obfuscation

    return local_obfuscation(model, fakes=fakes, epsilon=epsilon, auto_redact=auto_redact)


def obfuscate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help='A text with <redacted>secrets</redacted>; "-" is standard input.')
    ],
    fakes: Fakes = 7,
    at_least: Annotated[
        int | None, typer.Option(min=1, help="λ_min: with fewer, none are shown.", show_default="as many as --fakes")
    ] = None,
    epsilon: Epsilon = 0.1,
    distance: Annotated[
        Literal["absolute", "relative"],
        typer.Option(help="Of probabilities, as in the paper, or of their logarithms, which is stricter."),
    ] = "absolute",
    candidates: Annotated[int, typer.Option(min=1, max=4096, help="λ_max: candidates kept at every token.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.05, max=10, help="Flattens what the model finds likely.")] = 1.0,
    regularise: Annotated[
        bool, typer.Option("--regularise", help="Spell secrets with usual capitals and spaces first.")
    ] = False,
    auto_redact: AutoRedact = False,
    sampling_model: SamplingModel = None,
    substitutes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sample nothing: a JSON list of variants, each a list of substitutes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the prompts that a prompt would be hidden among, ε and λ reached, and how well a guess can do.

    Nothing is sent anywhere. The real prompt is the first one shown; sent, they would be shuffled.

    Examples:

      cloister obfuscate letter.txt

      echo 'I live in <redacted category="place">Ghent</redacted>.' | cloister obfuscate - --fakes 5 --epsilon 0.2

      cloister obfuscate letter.txt --distance relative --epsilon 2 --json

      cloister obfuscate letter.txt --auto-redact
    """
    from cloister.obfuscation.quantization import Quantization
    from cloister.obfuscation.regularise import regularise as regular
    from cloister.obfuscation.sampler import SamplingGoal
    from cloister.obfuscation.tags import auto_redact as add_found
    from cloister.obfuscation.tags import parse_redacted
    from cloister.obfuscation.variants import make_variants

    wish = SamplingGoal(fakes, at_least, Quantization(epsilon, candidates, temperature, distance))
    marked = parse_redacted(_text_of(file), param=file)
    if auto_redact:
        from cloister.detection.redaction import shipped_redaction

        marked = add_found(marked, shipped_redaction()(marked.text))
    if not marked.spans:
        raise InvalidRequest(
            f"The text marks no secrets{', and none are found' if auto_redact else ''}.",
            hint="Write <redacted>…</redacted> around them."
            + ("" if auto_redact else " --auto-redact looks for some."),
        )
    marked = regular(marked) if regularise else marked
    made = make_variants([marked], _substituting(substitutes, sampling_model, wish))
    if as_json:
        prompts = [text for (text,) in made.texts]
        found = {"prompts": prompts, "authentic": 0, "substitutes": made.substitutes.values}
        typer.echo(json.dumps({**found, **made.report()}, indent=2, ensure_ascii=False))
    else:
        _print(made)


def _substituting(given: Path | None, model: str | None, wish: Any) -> Substituting:
    if given is None:
        from cloister.local_sampling import LocalModel

        return LocalModel(model, lambda_max=wish.quantization.lambda_max).sampler(wish)
    from cloister.obfuscation.variants import GivenSubstitutes

    try:
        values = json.loads(_read(given, "Give a JSON file."))
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(variant, list) for variant in values):
        raise SetupError(f"{given} is no JSON list of lists.", hint='Like: [["Ann", "Ghent"], ["Jo", "Lund"]]')
    return GivenSubstitutes(values)


def _text_of(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    return _read(Path(file), 'Give a text file, or "-" for standard input.')


def _read(path: Path, hint: str) -> str:
    with needed(f"{path} cannot be read", hint):
        content = path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SetupError(f"{path} is no UTF-8 text.", hint=hint) from None


def _print(made: Variants) -> None:
    from cloister.cli.chat import without_control_characters

    for number, (text,) in enumerate(made.texts):
        name = "real" if not number else f"fake {number}"
        typer.secho(f"{name:<9}", fg="green" if not number else "yellow", nl=False)
        typer.echo(without_control_characters(text).rstrip("\n").replace("\n", "\n" + " " * 9))
    report = made.report()
    typer.echo(f"λ = {report['lambda']}", err=True)
    if report["epsilon"] is not None:
        gap = report["largest_gap"]
        typer.echo(f"ε = {report['epsilon']:g} ({report['distance']}); largest difference {gap:.3g}", err=True)
        typer.echo(
            f"By the sampling model the likeliest prompt is the real one with {report['posterior_of_likeliest']:.1%} "
            f"(by chance {1 / len(made):.1%}). A better model, or a person who reads them, may guess better.",
            err=True,
        )
