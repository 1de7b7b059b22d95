"""Words linked by attention."""

from dragoman.decoding.alignment import Link, align

SOURCE = ["▁the", "▁r", "ed", "▁cat"]
TARGET = ["▁ro", "te", "▁Kat", "ze"]
ATTENTION = [
    [0.1, 0.4, 0.4, 0.05, 0.05],
    [0.3, 0.2, 0.3, 0.1, 0.1],
    [0.2, 0.1, 0.1, 0.5, 0.1],
    [0.0, 0.1, 0.1, 0.1, 0.7],
    [0.0, 0.0, 0.0, 0.0, 1.0],
]


def test_words_are_linked_by_the_sum_of_their_subwords() -> None:
    assert align(SOURCE, TARGET, ATTENTION) == [
        Link("red", "rote", 1, 0),
        Link("cat", "Katze", 2, 1),
    ]


def test_where_no_spaces_are_written_a_subword_is_a_word() -> None:
    links = align(SOURCE, ["▁", "红", "猫"], ATTENTION, (False, True))
    assert [(link.source, link.target) for link in links] == [("red", "红"), ("cat", "猫")]
    assert [link.target_place for link in links] == [0, 1]


def test_a_text_that_does_not_begin_with_a_space() -> None:
    links = align(["x", "▁cat"], ["Kat", "ze"], [[0.1, 0.8, 0.1]] * 3)
    assert links == [Link("cat", "Katze", 1, 0)]


def test_nothing_to_link() -> None:
    assert align(SOURCE, [], [[1.0] * 5]) == []
    assert align([], TARGET, [[1.0]] * 5) == []
