"""One command that begins a training or goes on with it, as a scheduler runs it again."""

from dragoman.cli.stages import SETTINGS, Choices, TrainingRequest, is_finished
from dragoman.config import Config, read_config, resolve_config
from dragoman.errors import UserError


def is_begun(request: TrainingRequest) -> bool:
    """Whether there is something to go on with, and it is what was asked for now.

    Raises UserError naming a setting that was given and is another one now.
    """
    settings = request.out / "training" / SETTINGS
    if is_finished(request.out):
        return True
    if not settings.is_file():
        return False
    _check_unchanged(request, read_config(settings))
    return True


def _check_unchanged(request: TrainingRequest, saved: Config) -> None:
    choices = request.choices
    if choices.task != saved.task:
        raise _changed("--task", choices.task, saved.task)
    if choices.preset not in (None, saved.preset):
        raise _changed("preset", choices.preset, saved.preset)
    given = resolve_config(saved.preset, choices.file, {}, choices.assignments)
    for name in _names_given(choices):
        section, _, field = name.partition(".")
        new, old = getattr(given, section), getattr(saved, section)
        if field:
            new, old = getattr(new, field), getattr(old, field)
        if new != old:
            raise _changed(name, new, old)
    steps, seconds = saved.training.max_steps, saved.training.budget_seconds
    if request.budget_steps not in (None, steps):
        raise _changed("--budget", f"{request.budget_steps}-steps", steps)
    # What is saved is what preparation left of the budget.
    if request.budget_seconds and not (seconds and seconds <= request.budget_seconds):
        raise _changed("--budget", f"{request.budget_seconds:.0f} seconds", seconds)


def _names_given(choices: Choices) -> list[str]:
    names = [text.partition("=")[0].strip() for text in choices.assignments]
    for section, value in choices.file.items():
        fields = value if isinstance(value, dict) else [""]
        names += [f"{section}.{field}".rstrip(".") for field in fields]
    return names


def _changed(name: str, new: object, old: object) -> UserError:
    return UserError(
        f"--resume: {name} is {new} now, and {old} in the training to go on with",
        "give what was given first, or train into another --out",
    )
