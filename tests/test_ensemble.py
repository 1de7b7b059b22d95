"""Several models as one: on invented step functions, and with models from folders."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.engine import Request
from dragoman.decoding.ensemble import EnsembleState, EnsembleStep, mean_probability
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.native import NativeEngine
from dragoman.decoding.search import Limits, State, beam_search
from dragoman.decoding.translator import Translator
from dragoman.errors import UserError

LINES = ["the red cat sees the dog", "the old house", "", "bird"]


def other_model(model: Path, folder: Path, **changes: str) -> Path:
    """A copy with other weights, and with some words of its settings changed."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for name, weight in weights.items():
        weights[name] = weight + 0.3 * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors")
    settings = (folder / "config.toml").read_text("utf-8").split("[checksums]")[0]
    for old, new in changes.items():
        assert f'"{old}"' in settings
        settings = settings.replace(f'"{old}"', f'"{new}"')
    (folder / "config.toml").write_text(settings, "utf-8")
    return folder


def test_the_mean_of_probabilities_by_hand() -> None:
    one, two = torch.tensor([0.2, 0.8, 0.0]).log(), torch.tensor([0.6, 0.1, 0.3]).log()
    assert torch.allclose(mean_probability([one, two]).exp(), torch.tensor([0.4, 0.45, 0.15]))
    assert torch.equal(mean_probability([one]), one)


def test_every_state_is_reordered() -> None:
    """Two models, each right about half of the path: only if both follow it is it found."""
    path = [2, 3, 2, 2, 3]

    class Follows(State):
        def __init__(self) -> None:
            self.prefixes: list[list[int]] = [[], [], []]
            self.started = False

        def reorder(self, rows: Tensor) -> None:
            self.prefixes = [list(self.prefixes[row]) for row in rows.tolist()]

    def knows(parity: int) -> Callable[[Tensor, State], tuple[LogProbs, State]]:
        def step(ids: Tensor, state: State) -> tuple[LogProbs, State]:
            assert isinstance(state, Follows)
            if state.started:
                for prefix, symbol in zip(state.prefixes, ids.tolist(), strict=True):
                    prefix.append(symbol)
            state.started = True
            rows = torch.tensor([[0.33, 0.01, 0.33, 0.33]] * 3)
            for row, prefix in enumerate(state.prefixes):
                place = len(prefix)
                if prefix == path[:place] and (place % 2 == parity or place == len(path)):
                    rows[row] = 0.01
                    rows[row, path[place] if place < len(path) else 1] = 0.97
            return LogProbs(rows.log()), state

        return step

    step = EnsembleStep([knows(0), knows(1)])
    state = EnsembleState([Follows(), Follows()])
    ((best, *_),) = beam_search(step, state, Limits(3, 2.0, [6], 0, 1))
    assert best.tokens == path


@pytest.mark.parametrize("changes", [{}, {"groups": 2}, {"sample": True}, {"mbr_samples": 4}])
def test_a_model_with_itself_is_the_model(model: Path, changes: dict[str, Any]) -> None:
    search = SearchConfig(max_extra_tokens=3, **changes)
    alone = Translator(NativeEngine.load([model]), search).translate(LINES, 3, details=True)
    both = Translator(NativeEngine.load([model, model]), search).translate(LINES, 3, details=True)
    for one, two in zip(alone, both, strict=True):
        assert [c.text for c in one.candidates] == [c.text for c in two.candidates]
        for a, b in zip(one.candidates, two.candidates, strict=True):
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)
            assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-4)


def test_an_ensemble_reports_the_mean_probability(model: Path, tmp_path: Path) -> None:
    other = other_model(model, tmp_path / "other")
    engine = NativeEngine.load([model, other])
    singles = [NativeEngine.load([folder]) for folder in (model, other)]
    sources = [engine.tokenizer.encode(line) for line in LINES if line]
    found = engine.search(sources, Request(SearchConfig(max_extra_tokens=3), 2, details=True))
    differ = 0
    for source, hypotheses in zip(sources, found, strict=True):
        best = hypotheses[0]
        assert best.token_log_probs is not None and best.attention is not None
        assert sum(best.token_log_probs) == pytest.approx(best.log_prob, abs=1e-3)
        assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in best.attention)
        assert len(best.attention[0]) == len(source) + 1
        (alone,) = singles[0].search([source], Request(SearchConfig(max_extra_tokens=3)))
        differ += alone[0].tokens != best.tokens
    assert differ > 0


def test_models_that_do_not_go_together_are_refused(
    model: Path, tmp_path: Path, dragoman: Callable[..., Any]
) -> None:
    german = other_model(model, tmp_path / "de-fr", de="fr")
    with pytest.raises(UserError, match=r"is en->de and .*de-fr is en->fr"):
        NativeEngine.load([model, german])
    strange = other_model(model, tmp_path / "strange")
    texts = ["a language of other words", "nothing of this is known there"]
    tokenizer = Tokenizer.train(texts, 350)
    (strange / "tokenizer.model").write_bytes(tokenizer.to_bytes())
    weights = load_file(strange / "model.safetensors")
    rows = tokenizer.vocabulary_size
    weights["embedding.weight"] = weights["embedding.weight"][:1].repeat(rows, 1)
    save_file(weights, strange / "model.safetensors")
    refused = dragoman("translate", "--model", model, "--model", strange, "--text", "cat")
    assert refused.status == 2
    assert f"error: {model} and {strange} have different tokenizers" in refused.err


def test_several_models_on_the_command_line(
    model: Path, tmp_path: Path, dragoman: Callable[..., Any]
) -> None:
    other = other_model(model, tmp_path / "other")
    done = dragoman("translate", "--model", model, "--model", other, "--text", LINES[0])
    assert done.status == 0
    expected = Translator(NativeEngine.load([model, other])).translate(LINES[:1])
    assert done.lines == [expected[0].text]
