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
            return f"fast engine: none, CTranslate2 cannot run this model: {reason}"
        quality = Quality(native_bleu, lambda engine: validation.quality(engine).bleu)
        _, form = make_form(description, "int8", quality=quality)
    except (UserError, RuntimeError, ValueError) as error:  # the latter two are CTranslate2's
        return f"warning: fast engine: {error.message if isinstance(error, UserError) else error}"
    if form.refused is not None:
        return f"fast engine: int8 is refused: {form.refused}; float32 will be used"
    return f"fast engine: int8, BLEU {form.bleu:.2f} ({form.native_bleu:.2f} natively)"
