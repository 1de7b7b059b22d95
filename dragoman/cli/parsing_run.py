"""A parser in training: measured by labelled F1 and by how many outputs are trees by themselves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dragoman.cli.validation import Results, TaskRun, spread
from dragoman.config import Config, SearchConfig
from dragoman.corpus.pairs import Pair
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.decoding.parser import Parse, Parser
from dragoman.decoding.perplexity import perplexity
from dragoman.evaluation.parseval import TreeScore, score_trees
from dragoman.model.encoder_decoder import EncoderDecoder
from dragoman.model.folder import LoadedModel
from dragoman.model.sequence_model import SequenceModel
from dragoman.text.trees import rebuild
from dragoman.training.progress import stage

# Sentences parsed at every validation, and once at the end; fewer when the time is short.
_DURING, _AT_END = 100, 200
# Seconds of a time budget for each of them.
_SECONDS_DURING, _SECONDS_AT_END = 5.0, 3.0
# Symbols more than subwords that a greedy parse may have: a beginner goes on to the limit.
_EXTRA = 60
# A flat tree has a lower F1 than this on any treebank.
_NOTHING_LEARNED = 20.0


class ParsingRun(TaskRun):
    """Labelled F1 of greedy parses; at the end of the search as configured."""

    purpose = "parses sentences into constituency trees"
    usage = """```sh
dragoman parse --model DIR "The cat sleeps ."      # DIR: this folder
dragoman parse --model DIR < sentences.txt > trees.ptb
```"""
    measure = "parse --gold"
    rows, tokens = "trees", "tree symbols"

    def __init__(self, config: Config, tokenizer: Tokenizer, corpus: Path) -> None:
        super().__init__(config, tokenizer, corpus)
        budget = config.training.budget_seconds or math.inf
        self._during = spread(self.pairs, int(min(_DURING, max(20, budget / _SECONDS_DURING))))
        self._at_end = spread(self.pairs, int(min(_AT_END, max(20, budget / _SECONDS_AT_END))))

    def scores(self, model: SequenceModel) -> dict[str, Any]:
        """Labelled F1 of greedy parses, and one of those."""
        greedy = self.config.search.model_copy(update={"beam": 1, "max_extra_tokens": _EXTRA})
        parses = self._parser(model, greedy).parse(_sentences(self._during))
        shown = len(self._during) // 2
        return {
            "f1": _score(self._during, parses).f1,
            "samples": [
                {
                    "source": self._during[shown].source,
                    "reference": self._during[shown].target,
                    "tree": " ".join(parses[shown].tree.symbols()),
                }
            ],
        }

    def results(self, model: SequenceModel, nll: float) -> Results:
        """F1 with the grammar, and the share of trees that the same search finds without it."""
        parser, beam = self._parser(model, self.config.search), self.config.search.beam
        sentences = _sentences(self._at_end)
        with stage(f"parsing {len(sentences)} validation sentences", 2) as advance:
            score = _score(self._at_end, parser.parse(sentences))
            advance(1)
            free = parser.parse(sentences, constrained=False)
            advance(1)
        share = 100 * sum(parse.score is not None for parse in free) / len(free)
        f1 = f"labelled F1 {score.f1:.2f} (recall {score.recall:.2f}, "
        f1 += f"precision {score.precision:.2f})"
        formed = f"well-formed without the grammar {share:.1f}%"
        loss = f"perplexity {perplexity(nll):.3f} a symbol"
        head = f"{len(sentences)} validation sentences, beam {beam}"
        return Results(
            {"beam": beam, "sentences": len(sentences), "f1": score.f1, "well_formed": share},
            f"{head}:\n{f1}\n{formed}\n{loss}",
            f"On {head}:\n\n- {f1}\n- {formed}\n- {loss}",
            learned=score.f1 >= _NOTHING_LEARNED,
        )

    def _parser(self, model: SequenceModel, search: SearchConfig) -> Parser:
        loaded = LoadedModel(self.config, self.tokenizer, cast(EncoderDecoder, model))
        return Parser(loaded, search)


def _sentences(pairs: Sequence[Pair]) -> list[list[str]]:
    return [pair.source.split(" ") for pair in pairs]


def _score(pairs: Sequence[Pair], parses: Sequence[Parse]) -> TreeScore:
    gold = [rebuild(pair.target.split(" "), pair.source.split(" ")) for pair in pairs]
    return score_trees(gold, [parse.tree for parse in parses])
