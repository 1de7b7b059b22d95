"""The forms of a model for the fast engine: made once, checked, found again; loads no torch.

A form is a folder `ct2/PRECISION` in the model folder, or where that cannot be written in the
user's cache folder. It is used only while its record names the weights it was made from, this
CTranslate2 and the checksums of its files; otherwise it is made anew.

The check, of token log-probabilities that both engines give to the same made-up sentences: float32
must agree within 1e-3 nats everywhere, int8 within 0.25 nats on average. Where validation text is
at hand, after training, int8 may lose 0.3 BLEU against the native engine and no more. A form that
fails is refused: its record says why, and holds no model.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dragoman import __version__
from dragoman.config import ModelConfig
from dragoman.decoding.engine import Engine
from dragoman.errors import UserError
from dragoman.model.description import ModelDescription, file_digest, model_digest
from dragoman.text.lines import atomic_write

if TYPE_CHECKING:
    from dragoman.model.folder import LoadedModel

FOLDER = "ct2"
_RECORD = "dragoman.json"
_FORMAT = 1  # of what `dragoman.decoding.conversion` writes
_LARGEST_RECORD = 64 * 1024
_FLOAT32_TOLERANCE = 1e-3
_INT8_TOLERANCE = 0.25
_BLEU_TOLERANCE = 0.3

Precision = Literal["int8", "float32"]


@dataclass(frozen=True)
class Identity:
    """What a converted form was made of and with."""

    format: int
    precision: str
    weights: str
    model: str
    ctranslate2: str

    @classmethod
    def of(cls, description: ModelDescription, precision: Precision) -> "Identity":
        """The identity of the form that this process would make."""
        import ctranslate2

        return cls(
            _FORMAT,
            precision,
            description.weights_digest(),
            model_digest(description.config),
            ctranslate2.__version__,
        )


@dataclass(frozen=True)
class Form:
    """A converted model, checked; refused says why it may not be used.

    largest and mean are differences of token log-probabilities from the native engine's, in nats;
    bleu and native_bleu are of validation text, where there was some.
    """

    identity: Identity
    refused: str | None = None
    largest: float | None = None
    mean: float | None = None
    bleu: float | None = None
    native_bleu: float | None = None
    files: dict[str, str] = field(default_factory=dict)  # name -> SHA-256
    dragoman: str = __version__


@dataclass(frozen=True)
class Quality:
    """The native engine's BLEU on validation text, and how to measure another engine's."""

    native: float
    measure: Callable[[Engine], float]


def refusal(config: ModelConfig) -> str | None:
    """Why CTranslate2 cannot run a model of these sizes; None if it can."""
    if config.kind != "transformer":
        return f"its kind is {config.kind}"
    if config.key_width != config.value_width:
        return f"d_k is {config.key_width} and d_v is {config.value_width}"
    if config.window is not None:
        return f"self-attention sees {config.window} neighbors only (model.window)"
    return None


def find_form(description: ModelDescription, precision: Precision) -> tuple[Path, Form] | None:
    """The folder and the record of a form that is up to date and whole, used or refused."""
    identity = Identity.of(description, precision)
    for place in _places(description):
        form = _read(place / precision, identity)
        if form is not None:
            return place / precision, form
    return None


def make_form(
    description: ModelDescription,
    precision: Precision,
    loaded: "LoadedModel | None" = None,
    quality: Quality | None = None,
) -> tuple[Path, Form]:
    """Convert and check, unless another process just has; loads torch.

    Raises UserError when the model cannot be read, or when no folder can be written.
    """
    identity = Identity.of(description, precision)
    problem: OSError | None = None
    for place in _places(description):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with _lock(place):
                form = _read(place / precision, identity)
                if form is None or quality is not None:
                    form = _make(description, place / precision, identity, loaded, quality)
                return place / precision, form
        except OSError as error:
            problem = error
    raise UserError(
        f"the model cannot be converted for the fast engine: {problem}",
        f"let {description.folder} be writable, or set DRAGOMAN_CACHE to a folder that is",
    )


def _places(description: ModelDescription) -> Iterator[Path]:
    from dragoman.corpus.samples import default_cache

    yield description.folder / FOLDER
    yield default_cache() / FOLDER / description.weights_digest()[:16]


def _read(folder: Path, identity: Identity) -> Form | None:
    """The record of a form, if it is the one sought and its files are as they were written."""
    if not (folder / _RECORD).is_file():  # opening a pipe would wait
        return None
    try:
        with (folder / _RECORD).open("rb") as stream:
            values = json.loads(stream.read(_LARGEST_RECORD))
        form = Form(**(values | {"identity": Identity(**values["identity"])}))
        if form.identity != identity:
            return None
        for name, digest in form.files.items():
            path = folder / name
            if Path(name).name != name or not path.is_file() or file_digest(path) != digest:
                return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError):
        return None
    return form if form.files or form.refused else None


def _make(
    description: ModelDescription,
    folder: Path,
    identity: Identity,
    loaded: "LoadedModel | None",
    quality: Quality | None,
) -> Form:
    from dragoman.model.folder import load_model

    loaded = loaded or load_model(description.folder)
    prefix = f".{folder.name}-"
    for left in folder.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        new = temporary / "new"
        new.mkdir()
        form = _convert(loaded, new, identity, quality)
        with atomic_write(new / _RECORD) as stream:
            stream.write(json.dumps(asdict(form), indent=1).encode() + b"\n")
        if folder.exists():
            folder.rename(temporary / "old")
        new.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return form


def _convert(
    loaded: "LoadedModel", folder: Path, identity: Identity, quality: Quality | None
) -> Form:
    """Write the form and check it; one that is refused leaves nothing."""
    from dragoman.decoding.conversion import differences, write_ctranslate2
    from dragoman.decoding.fast import CTranslate2Engine

    write_ctranslate2(loaded, folder, identity.precision)
    engine = CTranslate2Engine(loaded.config, loaded.tokenizer, folder, identity.precision)
    largest, mean = differences(loaded, engine)
    form = Form(identity, largest=largest, mean=mean)
    if identity.precision == "float32":
        if not largest <= _FLOAT32_TOLERANCE:
            reason = f"its log-probabilities differ from the native engine's by {largest:.2g} nats"
            form = replace(form, refused=reason)
    elif quality is not None:
        bleu = quality.measure(engine)
        form = replace(form, bleu=bleu, native_bleu=quality.native)
        if not quality.native - bleu <= _BLEU_TOLERANCE:
            reason = f"it would lose {quality.native - bleu:.2f} BLEU on the validation text"
            form = replace(form, refused=reason)
    elif not mean <= _INT8_TOLERANCE:
        reason = f"its log-probabilities differ from the native engine's by {mean:.2g} nats a token"
        form = replace(form, refused=reason)
    del engine  # it holds the files open
    if form.refused is not None:
        for path in folder.iterdir():
            path.unlink()
        return form
    return replace(form, files={path.name: file_digest(path) for path in folder.iterdir()})


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time convert; where locks do not exist two do the work twice."""
    with (folder / ".lock").open("w") as handle:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        except (ImportError, OSError):  # another system, or a file system without locks
            pass
        yield
