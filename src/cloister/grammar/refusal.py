"""Why a form is refused, in our words alone."""

from cloister.errors import FormRefused

PARAM = "response_format"


def malformed(hint: str | None = None) -> FormRefused:
    return FormRefused("The answer's form is malformed, or has what is not supported.", param=PARAM, hint=hint)


def too_large(bound: str = "") -> FormRefused:
    message = f"The answer's form is too large or too complex. {bound}".strip()
    return FormRefused(message, param=PARAM, hint="Simplify it.")
