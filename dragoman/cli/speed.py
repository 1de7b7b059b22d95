"""The model of a finished training, made ready for the fast engine."""

from pathlib import Path

from dragoman.cli.validation import Validation
from dragoman.decoding.converted import Quality, make_form, refusal
from dragoman.errors import UserError
from dragoman.model.description import describe


def convert_trained(folder: Path, validation: Validation, native_bleu: float) -> str:
    """Convert a model folder in int8, checked on validation text; what came of it, in a line.

    Nothing that goes wrong here is an error: the folder is a whole model without it.
    """
    try:
        description = describe(folder)
        reason = refusal(description.config.model)
        if reason is not None:
            return f"translation uses PyTorch: CTranslate2 cannot run this model: {reason}"
        quality = Quality(native_bleu, lambda engine: validation.quality(engine).bleu)
        _, form = make_form(description, "int8", quality=quality)
    except (UserError, RuntimeError, ValueError) as error:  # the latter two are CTranslate2's
        message = error.message if isinstance(error, UserError) else error
        return f"warning: not converted for CTranslate2: {message}"
    if form.refused is not None:
        return f"translation uses float32, not int8: {form.refused}"
    return (
        f"translation uses int8: BLEU {form.bleu:.2f} on the validation text, "
        f"{form.native_bleu:.2f} in float32"
    )
