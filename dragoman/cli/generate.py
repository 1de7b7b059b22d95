"""dragoman generate"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import options
from dragoman.cli.application import app
from dragoman.text.display import printable

if TYPE_CHECKING:
    from dragoman.decoding.generation import Wish, Writer, Writing

# Prompts of a file that are gone on with together.
_PROMPTS = 32

_HELP = """\
Write text: what follows a prompt, or whole texts where there is none.

What is printed is the prompt and what follows it. A single text appears as it is made. The same
options give the same texts, whatever other prompts there are; another --seed gives others. With
--temperature 0 every token is the likeliest one. A prompt that ends with a space is seldom what
you want: words begin with theirs.

With --json every line is an object: prompt, text (what follows it), ended ("end" by the model,
"stop" before a stop string, "length" by --max-tokens), tokens and log_prob (of the model, in
nats).

\b
dragoman generate --model models/lm --prompt "Yesterday I"
dragoman generate --model models/lm --samples 5 --temperature 0.8 --stop .
dragoman generate --model models/lm < new.en
"""

_Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="What to go on with. [default: each line of stdin, if not a terminal]"
    ),
]
_MaxTokens = Annotated[
    int, typer.Option(metavar="N", min=1, max=65_536, help="The most tokens to write.")
]
_Samples = Annotated[
    int, typer.Option(metavar="N", min=1, max=1000, help="So many texts for each prompt.")
]
_Temperature = Annotated[
    float,
    typer.Option(metavar="T", min=0, max=100, help="Below 1 likelier tokens; 0: the likeliest."),
]
_TopK = Annotated[
    int, typer.Option(metavar="K", min=0, help="Draw from the K likeliest tokens; 0: from all.")
]
_TopP = Annotated[
    float,
    typer.Option(metavar="P", min=0.001, max=1, help="Draw from the likeliest that reach P."),
]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Another one draws other texts.")]
_Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A text ends before this; may be repeated."),
]


@app.command(short_help="Write text with a language model.", help=_HELP)
def generate(
    model: options.ModelFolder,
    prompt: _Prompt = None,
    max_tokens: _MaxTokens = 200,
    samples: _Samples = 1,
    temperature: _Temperature = 1.0,
    top_k: _TopK = 0,
    top_p: _TopP = 0.95,
    seed: _Seed = 1,
    stop: _Stop = None,
    as_json: options.AsJson = False,
    device: options.Device = "auto",
) -> None:
    """Read the options and write; what they mean is in the help above."""
    from dragoman.decoding.generation import Wish, Writer

    wish = Wish(
        max_tokens, samples, temperature, top_k, top_p, seed, tuple(filter(None, stop or ()))
    )
    writer = Writer.load(model, device)
    if prompt is None and sys.stdin is not None and not sys.stdin.isatty():
        prompts = _lines()
    else:
        prompts = iter([prompt or ""])
    # Only one text can appear while it is made.
    if samples == 1 and not as_json:
        for one in prompts:
            _show_growing(writer, one, wish)
        return
    while window := list(islice(prompts, _PROMPTS)):
        for texts in writer.write(window, wish):
            for text in texts:
                print(_json_line(text) if as_json else _shown(text.prompt + text.text))


def _lines() -> Iterator[str]:
    from dragoman.text.lines import read_lines

    return read_lines("-")


def _show_growing(writer: "Writer", prompt: str, wish: "Wish") -> None:
    from dragoman.decoding.generation import unsettled

    done = 0

    def show(writing: "Writing") -> None:
        nonlocal done
        settled = writing.settled
        until = len(settled)
        if writing.ended is None:
            until -= unsettled(settled, wish.stop)
        if until > done:
            sys.stdout.write(_shown(settled[done:until]))
            sys.stdout.flush()
            done = until

    sys.stdout.write(_shown(prompt))
    sys.stdout.flush()
    writer.write([prompt], wish, show)
    print()


def _shown(text: str) -> str:
    """A model may write anything; a terminal obeys some of it."""
    if not sys.stdout.isatty():
        return text
    return "\n".join(map(printable, text.split("\n")))


def _json_line(writing: "Writing") -> str:
    record = {
        "prompt": writing.prompt,
        "text": writing.text,
        "ended": writing.ended,
        "tokens": len(writing.tokens),
        "log_prob": writing.log_prob,
    }
    return json.dumps(record, ensure_ascii=False)
