"""Settings: frozen, strict, typed; presets; TOML in and out; every mistake named.

Precedence, weakest first: preset, TOML file, command-line flags, ``--set section.name=value``.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dragoman.errors import UserError
from dragoman.presets import PRESETS, TASKS, is_read, preset_of_kind


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


_NO_MULTIPLE = "d_model is no multiple of heads"


class ModelConfig(_Settings):
    """The sizes of Table 3 and the parts of section 3 that can differ; widths in features."""

    kind: Literal["transformer", "lstm", "gru", "convolutional"] = "transformer"
    d_model: int = Field(256, ge=2, le=16384)
    d_ff: int = Field(1024, ge=1, le=65536)
    heads: int = Field(4, ge=1, le=256, description="h, of every attention")
    d_k: int | None = Field(None, ge=1, le=16384, description="None: d_model / heads")
    d_v: int | None = Field(None, ge=1, le=16384, description="None: d_model / heads")
    encoder_layers: int = Field(3, ge=1, le=256, description="N of the encoder")
    decoder_layers: int = Field(3, ge=1, le=256, description="N of the decoder")
    dropout: float = Field(0.1, ge=0, lt=1, description="after sublayers and embeddings")
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    feed_forward: Literal["relu", "gated"] = Field(
        "relu", description="gated: SwiGLU, three matrices; as many numbers at 2/3 of d_ff"
    )
    norm: Literal["post", "pre"] = Field("pre", description="post: as the paper")
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = Field(1024, ge=8, le=65_536)
    window: int | None = Field(
        None, ge=1, le=65_536, description="neighbors each side that self-attention sees; None: all"
    )

    kernel_width: int = Field(3, ge=1, le=255, description="tokens that a convolution sees")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, field in type(self).model_fields.items():
            if not is_read(name, self.kind) and getattr(self, name) != field.default:
                raise ValueError(f"a model of kind {self.kind} has no {name}")
        if self.d_model % 2:
            raise ValueError("d_model must be even: positions are pairs of sine and cosine")
        if self.kind != "transformer":
            return self
        if (self.d_k is None or self.d_v is None) and self.d_model % self.heads:
            raise ValueError(f"{self.d_model} features and {self.heads} heads: {_NO_MULTIPLE}")
        return self

    @property
    def key_width(self) -> int:
        """d_k, the width of a head's queries and keys (section 3.2.2)."""
        return self.d_k or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """d_v, the width of a head's values (section 3.2.2)."""
        return self.d_v or self.d_model // self.heads


class DataConfig(_Settings):
    """How pairs become tokens. Lengths in subwords where not said otherwise."""

    vocabulary_size: int = Field(8000, ge=300, le=1_000_000, description="both languages")
    character_coverage: float = Field(0.9999, ge=0.98, le=1, description="others: as bytes")
    max_tokens: int = Field(256, ge=8, le=100_000, description="longest side of a training pair")
    max_length_ratio: float = Field(4.0, gt=1, description="in characters, around the median")
    context_sentences: int = Field(
        0, ge=0, le=16, description="before a sentence that translation reads too; 0: none"
    )
    validation_size: int = Field(1000, ge=1, le=100_000, description="5% of pairs at most")
    texts: Literal["lines", "paragraphs"] = Field(
        "lines", description="of --text: one a line; or of several, up to a blank one"
    )
    seed: int = Field(1, ge=0, lt=2**32)


class TrainingConfig(_Settings):
    """Section 5 of the paper, and what was found since. Steps are optimizer updates."""

    batch_tokens: int = Field(
        2000, ge=16, le=10**9, description="of a forward pass over all processes, either side"
    )
    accumulation: int = Field(1, ge=1, le=10_000, description="forward passes an update")
    schedule: Literal["paper", "linear", "cosine"] = "linear"
    learning_rate: float = Field(2e-3, gt=0, lt=1, description="peak; Eq. 3 has its own")
    warmup_steps: int = Field(400, ge=1, le=10**12, description="a sixth of a shorter run")
    epochs: int = Field(30, ge=1, le=1_000_000, description="when nothing else limits the run")
    max_steps: int | None = Field(None, ge=1, le=10**12)
    budget_seconds: float | None = Field(None, gt=0, le=1e9, description="--budget sets it")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    adam_epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    r_drop: float = Field(0.0, ge=0, le=1000, description="alpha of R-Drop; a step takes twice")
    bpe_dropout: float = Field(
        0.0, ge=0, le=0.5, description="share of merges left out when training reads a side"
    )
    ema_decay: float = Field(0.0, ge=0, lt=1, description="of the moving average; 0 = none")
    lora_rank: int = Field(0, ge=0, le=4096, description="of adapters, with --init-from; 0 = none")
    lora_alpha: float = Field(16.0, gt=0, le=10_000, description="an adapter counts alpha / rank")
    gradient_clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 = no clipping")
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    compile: Literal["auto", "never"] = Field("auto", description="torch.compile, on a GPU only")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="ddp: each process holds the model; fsdp: a share of it, for large ones"
    )
    validations: int = Field(20, ge=1, le=10_000, description="validations, evenly over the run")
    patience: int = Field(
        6, ge=1, le=10**9, description="validations without a better loss before the end"
    )
    average_checkpoints: int = Field(5, ge=1, le=100, description="of the last validations")
    checkpoint_minutes: float = Field(10.0, gt=0, description="between others")
    tensorboard: bool = Field(False, description="also write DIR/training/tensorboard")
    seed: int = Field(1, ge=0, lt=2**32)


class SearchConfig(_Settings):
    """Section 6.1 and what was found since: docs/search.md has the formulas."""

    beam: int = Field(4, ge=1, le=1000, description="1: greedy")
    length_penalty: float = Field(0.6, ge=0, le=10, description="α of ((5 + n) / 6)^α")
    coverage_penalty: float = Field(0.0, ge=0, le=10, description="β of GNMT; in the last ranking")
    max_extra_tokens: int = Field(50, ge=0, le=10_000, description="output limit: input + this")
    min_length_ratio: float = Field(0.0, ge=0, le=10, description="least tokens a source token")
    max_length_ratio: float | None = Field(None, gt=0, le=100, description="most, within the limit")
    groups: int = Field(1, ge=1, le=1000, description="equal parts of the beam that must differ")
    diversity: float = Field(0.5, ge=0, le=100, description="λ between the groups")
    sample: bool = Field(False, description="draw translations; do not search the best")
    mbr_samples: int = Field(0, ge=0, le=1000, description="minimum Bayes risk over so many; 0: no")
    temperature: float = Field(1.0, gt=0, le=100, description="of a sample")
    top_k: int = Field(0, ge=0, le=1_000_000, description="likeliest symbols drawn from; 0: all")
    top_p: float = Field(1.0, gt=0, le=1, description="least probability of those drawn from")
    epsilon: float = Field(0.02, ge=0, lt=1, description="less probable symbols are not drawn")
    seed: int = Field(1, ge=0, lt=2**32, description="of a sample")
    batch_tokens: int = Field(16000, ge=16, description="padded source tokens x beam of a batch")
    shortlist: bool = Field(False, description="only subwords that training saw with the source's")
    precision: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto", description="int8: ctranslate2 only; bfloat16: native only"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.beam % self.groups:
            raise ValueError(f"a beam of {self.beam} cannot be cut into {self.groups} equal groups")
        if self.groups > 1 and (self.sample or self.mbr_samples):
            raise ValueError("groups are for beam search: neither sample nor mbr_samples has any")
        if self.sample and self.mbr_samples:
            raise ValueError("give either sample or mbr_samples, which draws samples of its own")
        return self

    @property
    def most_results(self) -> int:
        """The most translations of a line that a search can give: samples have no end."""
        if self.sample:
            return 1000
        return self.beam + self.mbr_samples


class Checksums(_Settings):
    """SHA-256 of the other files of a model folder and of its section model, written with them."""

    model: str | None = None
    weights: str | None = None
    tokenizer: str | None = None


class Parent(_Settings):
    """The model that training went on from (--init-from): its name, and its weights' SHA-256."""

    name: str | None = None
    weights: str | None = None


class Distillation(_Settings):
    """The teachers of dragoman distill: their names, and SHA-256 of their weights."""

    teachers: list[str] = []
    weights: list[str] = []


class Coverage(_Settings):
    """Subwords a character of the validation data: what the vocabulary fits best."""

    source: float | None = None
    target: float | None = None


class Config(_Settings):
    """Everything that determines a model; written beside it as ``config.toml``."""

    task: Literal["translation", "lm", "mlm", "classification", "parsing"] = "translation"
    preset: str = "small"
    source_language: str = "source"
    target_language: str = "target"
    labels: list[str] = []  # of classification, in the order of the model's outputs
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    search: SearchConfig = SearchConfig()
    parent: Parent = Parent()
    distillation: Distillation = Distillation()
    coverage: Coverage = Coverage()
    checksums: Checksums = Checksums()

    @model_validator(mode="after")
    def _has_stacks(self) -> Self:
        if self.model.kind != "transformer" and self.task not in ("translation", "parsing"):
            raise ValueError(f"a model of kind {self.model.kind} is not for the task {self.task}")
        return self


# What code calls a setting, and its name.
_OTHER_NAMES = {"key_width": "d_k", "value_width": "d_v"}


def _nearest(name: str, names: list[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{found[0]}'?" if found else f"known: {', '.join(names)}"


def resolve_config(
    preset: str,
    file: dict[str, Any] | None = None,
    flags: dict[str, Any] | None = None,
    assignments: list[str] | None = None,
) -> Config:
    """Join preset, TOML values, flags and ``section.name=value`` strings, weakest first.

    Weaker than all of them is what the task wants, where values or flags name one. Raises UserError
    for an unknown preset or setting (naming the nearest) and for a bad value.
    """
    if str(preset) not in PRESETS:  # from a file it may be anything
        raise UserError(f"unknown preset '{preset}'", _nearest(str(preset), list(PRESETS)))
    values: dict[str, Any] = {"preset": preset}
    assigned = [_parse_assignment(assignment) for assignment in assignments or []]
    given = (file or {}) | (flags or {})
    stronger = [file or {}, flags or {}, *assigned]
    models = [layer["model"] for layer in stronger if isinstance(layer.get("model"), dict)]
    kind = next((str(model["kind"]) for model in reversed(models) if "kind" in model), "")
    layers = [TASKS.get(str(given.get("task")), {}), preset_of_kind(preset, kind), *stronger]
    for layer in layers:
        for name, value in layer.items():
            if isinstance(value, dict):
                section = values.setdefault(name, {})
                if not isinstance(section, dict):
                    raise UserError(
                        f"setting '{name}' is not a section", f"write {name}.NAME=VALUE"
                    )
                section.update(value)
            else:
                values[name] = value
    values["preset"] = preset
    return _validate(values)


def resolve_search(
    base: SearchConfig, flags: dict[str, Any], assignments: Sequence[str] = ()
) -> SearchConfig:
    """A model's search settings with flags and then ``search.name=value`` strings over them.

    Raises UserError for an unknown setting, one of another section, and a bad value.
    """
    values = base.model_dump() | flags
    for assignment in assignments:
        parsed = _parse_assignment(assignment)
        _check_names(parsed)
        ((section, changes),) = parsed.items()
        if section != "search" or not isinstance(changes, dict):
            raise UserError(
                f"--set {assignment}: a model that is trained has only settings of search",
                "write --set search.NAME=VALUE",
            )
        values |= changes
    return _validate({"search": values}).search


def _parse_assignment(assignment: str) -> dict[str, Any]:
    name, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"--set {assignment}: no '='", "write --set training.warmup_steps=8000")
    section, dot, field = name.strip().partition(".")
    if section == "preset":
        raise UserError(f"--set {assignment}: the preset has its own option", "use --preset NAME")
    value = _parse_value(text.strip())
    return {section: {field: value} if dot else value}


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number or nesting beyond reason
        return text


def _validate(values: dict[str, Any]) -> Config:
    _check_names(values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        value = "" if isinstance(first["input"], dict) else f" = {str(first['input'])[:80]!r}"
        hint = "its kind and range are in docs/settings.md"
        if message.endswith(_NO_MULTIPLE):
            hint = "choose a number of heads that divides d_model, or set model.d_k and model.d_v"
        raise UserError(f"setting {place or 'task'}{value}: {message}", hint) from None


def _check_names(values: dict[str, Any]) -> None:
    sections = Config.model_fields
    known = [f"{s}.{f}" for s in sections for f in _fields(s)]
    for section, value in values.items():
        if section not in sections:
            candidates = [*sections, *known]
            wanted = _OTHER_NAMES.get(section, section)
            matches = [name for name in known if name.endswith(f".{wanted}")]
            hint = f"did you mean '{matches[0]}'?" if matches else _nearest(section, candidates)
            raise UserError(f"unknown setting '{section}'", hint)
        if isinstance(value, dict):
            for name in value:
                if name not in _fields(section):
                    wanted = f"{section}.{_OTHER_NAMES.get(name, name)}"
                    raise UserError(f"unknown setting '{section}.{name}'", _nearest(wanted, known))


def _fields(section: str) -> list[str]:
    kind = Config.model_fields[section].annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return []


# A settings file is a few kilobytes; parsing hostile TOML takes the square of its size.
_LARGEST_SETTINGS = 64 * 1024


def read_settings(path: Path) -> dict[str, Any]:
    """The values of a TOML settings file. Raises UserError with file and line."""
    return _parse(_read(path), str(path))


def read_config(path: Path) -> Config:
    """A resolved configuration back from its TOML file. Raises UserError."""
    return config_from_toml(_read(path), str(path))


def config_from_toml(text: str, name: str) -> Config:
    """A resolved configuration back from its TOML; name is used in errors."""
    values = _parse(text, name)
    if "model" not in values:
        raise UserError(f"{name}: no section [model]", "it must be as 'dragoman train' wrote it")
    try:
        return _validate(values)
    except UserError as error:
        raise UserError(f"{name}: {error.message}", error.hint) from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(_LARGEST_SETTINGS + 1)
        if len(content) > _LARGEST_SETTINGS:
            raise UserError(f"{path}: too large for a settings file", "it may have 64 KiB")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}", "check it") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # beside bad TOML: endless numbers and nesting
        raise UserError(f"{name}: not valid TOML: {error}", "see https://toml.io") from None


def config_to_toml(config: Config) -> str:
    """The resolved configuration as TOML (a setting that is None is left out)."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True))
