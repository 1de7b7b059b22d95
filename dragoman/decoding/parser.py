"""Constituency parsing (section 6.3): words in, a tree out that holds exactly those words.

The search keeps to the grammar of `dragoman.decoding.tree_grammar`, so its output is well-formed
without repair. A sentence too long for the model is a flat tree, which is said.

Shapes: B sentences, N beams, R = B * N rows, S source, K symbols of trees, D d_model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from dragoman.config import SearchConfig
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.corpus.treebank import END, TreeSymbols
from dragoman.decoding.engine import output_limit
from dragoman.decoding.log_probs import LogProbs
from dragoman.decoding.search import Limits, State, beam_search
from dragoman.decoding.step import Cache, pad_rows, start, states
from dragoman.decoding.tree_grammar import TreeGrammar
from dragoman.model.encoder_decoder import EncoderDecoder
from dragoman.model.folder import LoadedModel, load_model
from dragoman.text.trees import Tree, flat, rebuild


@dataclass(frozen=True)
class Parse:
    """The tree of a sentence and its score: log-probability divided by the length penalty.

    score is None where there is none: the tree is flat and says nothing.
    """

    tree: Tree
    score: float | None


class SymbolStep:
    """step(ids (R,), cache) -> (log_probs (R, K), cache) among the symbols of trees only.

    Ids are the symbols' own numbers, and K is the beginning. Nothing else of the vocabulary is
    computed: the probabilities are those among the symbols.
    """

    def __init__(self, model: EncoderDecoder, ids: Sequence[int]) -> None:
        weight = model.embedding.weight
        self._model = model
        self._ids = torch.tensor([*ids, Tokenizer.bos_id], device=weight.device)  # (K + 1,)
        self._weight = weight[self._ids[:-1]]  # (K, D)

    def start(self, source: Tensor, beams: int) -> Cache:
        """Encode (B, S) and make the cache of N beams a sentence."""
        return start(self._model, source, beams)

    def __call__(self, ids: Tensor, state: State) -> tuple[LogProbs, State]:
        """One step of all rows."""
        assert isinstance(state, Cache)
        hidden = states(self._model, self._ids[ids.to(self._ids.device)], state)
        logits = functional.linear(hidden, self._weight.to(hidden.dtype))[: len(ids)]
        return LogProbs.of(logits.float()), state


class Parser:
    """Parses sentences with a model of the task parsing. No tree depends on its neighbors."""

    def __init__(self, loaded: LoadedModel, search: SearchConfig | None = None) -> None:
        self.config, self.tokenizer = loaded.config, loaded.tokenizer
        self.search = search or loaded.config.search
        self.symbols = TreeSymbols.of(loaded.tokenizer)
        self.model = loaded.model

    @classmethod
    def load(
        cls, folder: Path, device: torch.device | None = None, search: SearchConfig | None = None
    ) -> "Parser":
        """Open a model folder. Raises UserError, also for a model of another task."""
        return cls(load_model(folder, device, "parsing"), search)

    def parse(self, sentences: Sequence[Sequence[str]], constrained: bool = True) -> list[Parse]:
        """The trees of sentences of at least one word each.

        Flat ones where a sentence is too long for the model and, where the search is not
        constrained by the grammar, where it comes to anything but a tree over the words.
        """
        parses = [Parse(flat(words), None) for words in sentences]
        for number, symbols, score in self._search(sentences, constrained):
            try:
                parses[number] = Parse(rebuild(symbols, sentences[number]), score)
            except ValueError:
                assert not constrained, "the grammar allows trees only"
        return parses

    def _search(
        self, sentences: Sequence[Sequence[str]], constrained: bool
    ) -> Iterator[tuple[int, list[str], float]]:
        """Number, symbols and score of the sentences that are short enough."""
        encoded = self.tokenizer.encode_sources([" ".join(words) for words in sentences])
        sources = [ids for ids, _ in encoded]
        most = [output_limit(ids, self.search, self.config) for ids in sources]
        longest = self.config.model.max_positions - 1
        order = [
            number
            for number in sorted(range(len(sources)), key=lambda number: -len(sources[number]))
            if len(sources[number]) <= longest and len(sentences[number]) + 2 <= most[number]
        ]
        step = SymbolStep(self.model, self.symbols.ids)
        first = 0
        while first < len(order):
            width = (len(sources[order[first]]) + 1) * self.search.beam
            numbers = order[first : first + max(1, self.search.batch_tokens // width)]
            first += len(numbers)
            limits = Limits(
                self.search.beam,
                self.search.length_penalty,
                [most[number] for number in numbers],
                bos=len(self.symbols.ids),
                eos=END,
                grammar=TreeGrammar(self.symbols, [len(sentences[number]) for number in numbers])
                if constrained
                else None,
            )
            batch = pad_rows([[*sources[number], Tokenizer.eos_id] for number in numbers])
            with torch.inference_mode():
                results = beam_search(step, step.start(batch, self.search.beam), limits)
            for number, hypotheses in zip(numbers, results, strict=True):
                best = hypotheses[0]
                yield number, [self.symbols.texts[token] for token in best.tokens], best.score
