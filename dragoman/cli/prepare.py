"""dragoman prepare"""

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.errors import UserError


@app.command(short_help="Clean, split and store a corpus.")
def prepare(
    out: options.OutFolder,
    source: options.SourceFile = None,
    target: options.TargetFile = None,
    data: options.TableFile = None,
    text: options.TextFile = None,
    task: options.Task = None,
    valid_source: options.ValidSource = None,
    valid_target: options.ValidTarget = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Assignments = None,
    errors: options.ErrorsOption = options.Errors.STRICT,
    tokenizer: options.TokenizerFile = None,
    workers: options.Workers = None,
    ray: options.RayAddress = None,
) -> None:
    """Clean, split and store a corpus for train --prepared, which can do all of it itself.

    Prints what was dropped and why. With the same files and settings again nothing is done. Stopped
    or killed, the same command goes on where it was: what is finished is kept in DIR/work. The
    result is the same to the byte for any number of --workers and on --ray.

    \b
    dragoman prepare --source train.en --target train.de --out corpora/en-de
    dragoman train --prepared corpora/en-de --out models/en-de
    dragoman prepare --text train.en --out corpora/text
    """
    from dragoman.cli import stages
    from dragoman.training.checkpoints import folder_lock

    if ray is not None and workers is not None:
        raise UserError("--ray and --workers exclude each other", "the cluster has its own cores")
    likely = "lm" if text else None
    choices = stages.Choices.of(preset, config, assignments).for_task(task, likely)
    paths = (source, target, data)
    languages = options.languages(source_language, target_language, choices.file, paths, text)
    valid = valid_source, valid_target
    files = options.corpus_files(languages, paths, valid, tokenizer, errors, choices.task, text)
    choices.resolve(0)
    stages.check_prepared_output(out)
    stages.check_files(files)
    with folder_lock(out):
        corpus = stages.prepare(files, out, choices, workers, ray)
    print(corpus.report)
    rows = "rows of text" if text else "pairs"  # a long text has several
    print(f"{corpus.training_pairs:,} training {rows}, {corpus.validation_pairs:,} for validation")
