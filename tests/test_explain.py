"""The explain page: every number on it is the model's, found here in another way."""

import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from explaining import MEASURED, SETTINGS, TEXT, random_model
from torch import Tensor

from dragoman.config import config_from_toml, resolve_config
from dragoman.corpus.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.inspection.attention_maps import KINDS
from dragoman.inspection.explain_costs import parameter_rows
from dragoman.inspection.explain_numbers import LONGEST, Explained, explain_sentence
from dragoman.inspection.explain_page import explain_page
from dragoman.inspection.explain_parts import (
    LANGUAGES,
    Language,
    Texts,
    decimal,
    percent,
    piece_labels,
)
from dragoman.inspection.self_contained import page_part
from dragoman.model.folder import LoadedModel
from dragoman.model.sequence_model import parameter_count
from dragoman.model.transformer import Transformer

Dragoman = Callable[..., Any]
VOID = {"meta", "input", "br"}


def page_of(loaded: LoadedModel, explained: Explained, language: Language = "en") -> str:
    return explain_page(loaded, explained, MEASURED, language).decode()


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module", params=[("pre", "sinusoidal", 8), ("post", "learned", 6)])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return random_model(*request.param)


@pytest.fixture(scope="module")
def explained(loaded: LoadedModel) -> Explained:
    return explain_sentence(loaded, TEXT)


@pytest.fixture(scope="module")
def data(loaded: LoadedModel, explained: Explained) -> Any:
    return data_of(page_of(loaded, explained))


class Watched:
    """One run of the model, watched from outside: what its modules gave."""

    def __init__(self, loaded: LoadedModel, data: Any) -> None:
        self.model, self.outputs = loaded.model, dict[str, Tensor]()
        self.source = torch.tensor([[*data["source_ids"], Tokenizer.eos_id]])
        self.target_in = torch.tensor([[Tokenizer.bos_id, *data["target_ids"]]])
        handles = [
            module.register_forward_hook(
                lambda _, given, output, name=name: self.outputs.__setitem__(name, output)
            )
            for name, module in self.model.named_modules()
        ]
        with torch.inference_mode():
            self.logits = self.model(self.source, self.target_in)
        for handle in handles:
            handle.remove()


@pytest.fixture(scope="module")
def watched(loaded: LoadedModel, data: Any) -> Watched:
    return Watched(loaded, data)


def close(found: Any, expected: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, rtol=tolerance, atol=tolerance)


def test_the_embedding_and_the_fingerprint(data: Any, watched: Watched) -> None:
    model, numbers, focus = watched.model, data["embedding"], data["focus"]
    width = model.config.d_model
    close(numbers["row"], model.embedding.weight[watched.source[0, focus]])
    expected = [
        math.sin(focus / 10000 ** (place / width))
        if place % 2 == 0
        else math.cos(focus / 10000 ** ((place - 1) / width))
        for place in range(width)
    ]
    if model.config.positions == "sinusoidal":
        close(numbers["position"], torch.tensor(expected))
    row, position = torch.tensor(numbers["row"]), torch.tensor(numbers["position"])
    close(numbers["sum"], row * math.sqrt(width) + position, 1e-3)


def test_queries_keys_values_and_scores(data: Any, watched: Watched) -> None:
    sizes, first = watched.model.config, data["first_layer"]
    projected = watched.outputs["encoder.0.self_attention.in_projection"][0]
    keys = sizes.heads * sizes.key_width
    parts = projected.split([keys, keys, sizes.heads * sizes.value_width], dim=1)
    heads = [part.unflatten(1, (sizes.heads, -1)).transpose(0, 1) for part in parts]
    for name, expected in zip(("query", "key", "value"), heads, strict=True):
        close(first[name], expected, 5e-3)
    close(first["scores"], torch.einsum("hqk,hmk->hqm", heads[0], heads[1]))


def test_the_weights_of_every_head(data: Any, watched: Watched, explained: Explained) -> None:
    maps = watched.model.attention_maps(watched.source, watched.target_in)
    for kind in KINDS:
        found = torch.tensor(data["weights"][kind]) / data["weight_unit"]
        expected = torch.cat(getattr(maps, kind))
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 0.51 / data["weight_unit"]
    scaled = torch.tensor(data["first_layer"]["scores"]) / math.sqrt(watched.model.config.key_width)
    close(scaled.softmax(-1).tolist(), maps.encoder[0][0])


def test_what_every_layer_adds(data: Any, watched: Watched) -> None:
    focus = data["focus"]
    for place, numbers in enumerate(data["encoder_layers"]):
        layer = f"encoder.{place}"
        for key, name in (
            ("attention", f"{layer}.self_attention.out_projection"),
            ("feed_forward", f"{layer}.feed_forward"),
            ("after", layer),
        ):
            assert numbers[key] == pytest.approx(
                float(watched.outputs[name][0, focus].norm()), rel=1e-4
            )
        hidden = watched.outputs[f"{layer}.feed_forward.inner"][0, focus]
        assert numbers["active"] == int((hidden > 0).sum())
        normed = watched.outputs[f"{layer}.self_residual.norm"][0, focus]
        mean, spread = float(normed.mean()), float(normed.std(correction=0))
        assert numbers["normed"] == pytest.approx([mean, spread], abs=1e-4)
    sums = [numbers["before"] for numbers in data["encoder_layers"][1:]]
    assert sums == [numbers["after"] for numbers in data["encoder_layers"][:-1]]


def test_the_next_subwords_and_the_search(
    loaded: LoadedModel, data: Any, watched: Watched, explained: Explained
) -> None:
    none = [Tokenizer.pad_id, Tokenizer.unk_id, Tokenizer.bos_id]  # in no translation
    probabilities = watched.logits[0].index_fill(1, torch.tensor(none), -math.inf).softmax(-1)
    steps, search = data["next"], data["search"]
    assert len(steps) == len(data["target_ids"]) + 1
    for step, row in zip(steps, probabilities, strict=True):
        close(step["probabilities"], row.sort(descending=True).values[:10])
        assert step["candidates"] == loaded.tokenizer.pieces(row.topk(10).indices.tolist())
    total = sum(math.log(step["chosen"]) for step in steps)
    assert search["log_prob"] == pytest.approx(total, abs=1e-3)
    penalty = ((5 + len(steps)) / 6) ** search["length_penalty"]
    assert search["score"] == pytest.approx(total / penalty, abs=1e-3)
    ends = [end for step in search["steps"] for end in step["finished"] if end["kept"]]
    best = max(ends, key=lambda end: end["score"])
    assert best["tokens"] == loaded.tokenizer.pieces(data["target_ids"])
    assert best["score"] == pytest.approx(search["score"])


def test_masked_scores_give_the_weights_of_the_decoder(data: Any) -> None:
    scores = torch.tensor(data["masked_scores"])
    later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    shown = torch.tensor(data["weights"]["decoder"][0][0]) / data["weight_unit"]
    assert (weights - shown).abs().max() <= 0.51 / data["weight_unit"]


def test_without_positions_order_makes_no_difference(data: Any) -> None:
    example, own = data["order"]
    assert "".join(example["forwards"]) == "▁I▁love▁you"
    assert "".join(example["backwards"]) == "▁you▁love▁I"
    assert sorted(own["forwards"]) == sorted(own["backwards"])
    for order in data["order"]:
        assert max(order["without_positions"]) < 1e-4
        assert min(order["with_positions"]) > 1e-2


def test_only_without_the_mask_does_a_later_word_matter(data: Any) -> None:
    numbers = data["look_ahead"]
    assert numbers["word"] != numbers["replacement"]
    assert numbers["masked"][:-1] == [0.0] * (len(data["labels"]["target_in"]) - 1)
    assert min(numbers["unmasked"]) > 1e-3


@pytest.mark.parametrize("preset", ["tiny", "paper-big"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_parameters_add_up(preset: str, positions: str) -> None:
    sizes = resolve_config(preset).model.model_copy(update={"positions": positions})
    with torch.device("meta"):
        model = Transformer(sizes, 1000)
    rows = parameter_rows(model)
    assert sum(row.count for row in rows) == parameter_count(model)
    attentions = sizes.encoder_layers + 2 * sizes.decoder_layers
    query = sum(row.count for row in rows if row.name == "query")
    assert query == attentions * sizes.d_model * sizes.heads * sizes.key_width


class Reader(HTMLParser):
    """The tables of a page as rows of texts; complains of tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.links: list[str] = []
        self._table = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert "style" not in values and not any(name.startswith("on") for name in values)
        self.links += [values[name] or "" for name in ("src", "href") if name in values]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = values.get("class") or "plain"
        if tag == "tr":
            self.tables.setdefault(self._table, []).append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[self._table][-1][-1] += text


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_shows_these_numbers(
    loaded: LoadedModel, explained: Explained, data: Any, language: Language
) -> None:
    page = page_of(loaded, explained, language)
    reader = Reader(page)
    scores = data["first_layer"]["scores"][data["head"]][data["focus"]]
    root = math.sqrt(loaded.config.model.key_width)
    weights = torch.tensor(scores).div(root).softmax(0).tolist()
    unscaled = torch.tensor(scores).softmax(0).tolist()
    shown = reader.tables["scores"][1:]
    labels = data_of(page)["labels"]["source"]
    for row, *numbers in zip(shown, labels, scores, weights, unscaled, strict=True):
        label, score, weight, other = numbers
        assert row[:3] == [label, decimal(score), decimal(score / root)]
        assert abs(_number(row[3]) - 100 * weight) <= 1.01
        assert abs(_number(row[4]) - 100 * other) <= 1.01
    counts = [row[3] for row in reader.tables["parameters"][1:]]
    *parts, total = [int(count.replace(",", "")) for count in counts]
    assert sum(parts) == total == parameter_count(loaded.model)
    steps = data["search"]["steps"]
    found = [row for row in reader.tables["search"] if row[2].startswith("−")]
    assert len(found) == sum(len(step["hypotheses"]) + len(step["finished"]) for step in steps)
    assert len(reader.tables["next"]) == sum(len(step["candidates"]) + 1 for step in data["next"])


def _number(text: str) -> float:
    return float(text.strip("<>%"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_asks_nobody(
    loaded: LoadedModel, explained: Explained, language: Language
) -> None:
    page = page_of(loaded, explained, language)
    assert "default-src 'none'" in page
    links = Reader(page).links
    assert links and all(re.search(rf'id="{link[1:]}"', page) for link in links)
    assert not re.search(r"\{\w+\}", page.split('<script type="application/json"')[0])


def test_every_language_says_the_same() -> None:
    first, *others = (tomllib.loads(page_part(f"explain.{name}.toml")) for name in LANGUAGES)
    for other in others:
        assert {name: set(part) for name, part in first.items()} == {
            name: set(part) for name, part in other.items()
        }
        for name, part in first.items():
            for key, text in part.items():
                assert _places(text) == _places(other[name][key]), (name, key)


def _places(text: str) -> set[str]:
    return set(re.findall(r"\{\w+\}", text))


def test_every_text_is_used(loaded: LoadedModel, explained: Explained) -> None:
    used: set[tuple[str, str]] = set()
    call = Texts.__call__

    def noted(self: Texts, section: str, key: str, **values: object) -> str:
        used.add((section, key))
        return call(self, section, key, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Texts, "__call__", noted)
        gated = random_model("pre", "sinusoidal", feed_forward="gated")
        for model in (gated, random_model("post", "learned")):
            page_of(model, explain_sentence(model, TEXT))
        explain_page(loaded, explained, [], "en")
    texts = tomllib.loads(page_part("explain.en.toml"))
    spare = {(name, key) for name, part in texts.items() for key in part} - used
    assert spare <= {("next", "rank")}


def test_labels_say_where_words_begin() -> None:
    texts = Texts("en")
    pieces = ["<s>", "▁s", "at", ".", "▁", "ß", "</s>"]
    assert piece_labels(pieces, texts, False) == ["[start]", "s", "·at", ".", "␣", "ß", "[end]"]
    assert piece_labels(["▁我", "爱"], texts, True) == ["我", "爱"]
    assert piece_labels(["▁s", "<0xC3>", "ette"], texts, False) == ["s", "xC3", "·ette"]


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0%"), (0.001, "&lt;1%"), (0.426, "43%"), (0.999, "&gt;99%"), (1.0, "100%")],
)
def test_shares_that_are_not_quite_nothing_or_all_say_so(share: float, shown: str) -> None:
    assert percent(share) == shown


@pytest.mark.parametrize(("text", "message"), [("  ", "blank"), ("cat " * 99, str(LONGEST))])
def test_a_text_that_fits_no_page_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        explain_sentence(random_model(), text)


def test_a_sampling_model_is_searched_all_the_same() -> None:
    loaded = random_model()
    search = loaded.config.search.model_copy(update={"sample": True, "mbr_samples": 4})
    other = replace(loaded, config=loaded.config.model_copy(update={"search": search}))
    found = [explain_sentence(model, TEXT).target_ids for model in (loaded, other)]
    assert found[0] == found[1]


@pytest.mark.parametrize("text", ["cat", "<b>&\"' </script> {name} 😀 \u202e\ud800"])
def test_odd_texts_make_a_whole_page(text: str) -> None:
    loaded = random_model()
    if "\ud800" in text:
        text = text.replace("\ud800", "")
    page = page_of(loaded, explain_sentence(loaded, text))
    reader = Reader(page)
    assert reader.tables["scores"]
    assert "\u202e" not in page.split('<script type="application/json"')[0]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_command_writes_the_page(
    dragoman: Dragoman, model: Path, tmp_path: Path, language: Language
) -> None:
    path = tmp_path / "page.html"
    done = dragoman("explain", "--model", model, TEXT, "--out", path, "--lang", language)
    assert (done.status, done.lines, done.err) == (0, [str(path)], "")
    page = path.read_text("utf-8")
    assert Texts(language)("page", "title") in page
    times = data_of(page)["times"]
    assert set(times) == {"self-attention", "recurrent", "convolutional"}
    assert all(seconds > 0 for costs in times.values() for _, seconds in costs)


def test_a_page_is_not_written_over_a_model(dragoman: Dragoman, model: Path) -> None:
    done = dragoman("explain", "--model", model, TEXT, "--out", model / "model.safetensors")
    assert done.status == 2
    assert done.err.startswith("error: ")


@pytest.mark.slow
def test_thirty_subwords_of_the_largest_model_stay_below_3_megabytes() -> None:
    settings = SETTINGS.format(norm="post", positions="sinusoidal", d_k=64, feed_forward="relu")
    sizes = {"d_model": 1024, "heads": 16, "encoder_layers": 6, "decoder_layers": 6}
    config = config_from_toml(settings, "settings")
    config = config.model_copy(update={"model": config.model.model_copy(update=sizes)})
    tokenizer = random_model().tokenizer
    network = Transformer(config.model, tokenizer.vocabulary_size).eval()
    loaded = LoadedModel(config, tokenizer, network)
    words = itertools.cycle(TEXT.split())
    text = next(words)
    while len(tokenizer.encode(text)) < 30:
        text += f" {next(words)}"
    explained = explain_sentence(loaded, text)
    assert len(explained.source_ids) >= 30
    size = len(explain_page(loaded, explained, MEASURED, "en"))
    assert size < 3_000_000
