"""The alignment error rate beside figures worked out by hand; the gold set of the benchmark."""

from pathlib import Path

import pytest

from dragoman.corpus.pairs import read_parallel
from dragoman.errors import UserError
from dragoman.inspection.word_alignment_gold import (
    GoldAlignment,
    alignment_error,
    check_gold,
    parse_gold,
    read_gold,
)

FOLDER = Path(__file__).parents[1] / "benchmarks" / "alignment_gold"


def links(text: str) -> frozenset[tuple[int, int]]:
    return parse_gold(text, "line").possible


@pytest.mark.parametrize(
    ("found", "gold", "rate", "precision", "recall"),
    [
        ("0-0 1-1", "0-0 1-1", 0, 1, 1),
        ("0-0 1-1", "0-0 1p1", 0, 1, 1),  # a possible link may be there,
        ("0-0", "0-0 1p1", 0, 1, 1),  # and may not
        ("0-1", "0-0", 1, 0, 0),
        # 2 of 3 sure ones, and 3 of 4 that are at least possible: 1 - (2 + 3) / (4 + 3)
        ("0-0 1-1 2-2 4-4", "0-0 1-1 3-3 2p2", 2 / 7, 3 / 4, 2 / 3),
        ("", "0-0 1-1", 1, 1, 0),
        ("0-0", "", 1, 0, 1),
        ("", "", 0, 1, 1),
    ],
)
def test_the_error_rate_is_that_of_the_formula(
    found: str, gold: str, rate: float, precision: float, recall: float
) -> None:
    error = alignment_error([links(found)], [parse_gold(gold, "line")])
    assert error == pytest.approx((rate, precision, recall))


def test_links_are_counted_over_all_pairs() -> None:
    gold = [parse_gold("0-0 1-1 2-2", "line"), parse_gold("0-0", "line")]
    error = alignment_error([links("0-0 1-1 2-2"), links("0-1")], gold)
    assert error.rate == pytest.approx(1 - (3 + 3) / (4 + 4))  # not (0 + 1) / 2
    with pytest.raises(ValueError, match="zip"):
        alignment_error([links("0-0")], gold)


def test_a_line_of_gold_links() -> None:
    assert parse_gold(" 0-0  12p3 ", "line") == GoldAlignment(
        frozenset({(0, 0)}), frozenset({(0, 0), (12, 3)})
    )


@pytest.mark.parametrize("wrong", ["0", "0:0", "0-0-0", "a-b", "-1-0", "0–0", "٣-٣", "0-1234567"])
def test_what_is_no_link_is_named_with_its_place(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "gold"
    path.write_text(f"0-0\n0p0 {wrong}\n", "utf-8")
    with pytest.raises(UserError) as caught:
        read_gold(path)
    assert caught.value.message == f"{path}:2: '{wrong}' is no link"


def test_links_of_words_that_are_not_there() -> None:
    check_gold([parse_gold("1-2", "line")], [(2, 3)])
    for size in ((1, 3), (2, 2)):
        with pytest.raises(UserError, match="gold alignment 1 links word 1 to word 2"):
            check_gold([parse_gold("1-2", "line")], [size])
    check_gold([parse_gold("1-2", "line")], [None])
    with pytest.raises(UserError, match="1 gold alignments for 2 pairs"):
        check_gold([parse_gold("1-2", "line")], [None, None])


def test_the_gold_set_fits_its_sentences() -> None:
    pairs = list(read_parallel(FOLDER / "gold.en", FOLDER / "gold.de"))
    gold = read_gold(FOLDER / "gold.align")
    assert len(pairs) >= 30
    check_gold(gold, [(len(pair.source.split()), len(pair.target.split())) for pair in pairs])
    for pair, wanted in zip(pairs, gold, strict=True):
        assert wanted.sure, pair
        linked = {target for _, target in wanted.possible}
        assert linked == set(range(len(pair.target.split()))), pair
