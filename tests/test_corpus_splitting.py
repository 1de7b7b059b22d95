import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.pairs import Pair
from dragoman.corpus.splitting import split_pairs
from dragoman.text.normalize import normalize_key

# Few words, so that chains of shared keys of every length come up.
SIDE = st.builds(
    lambda word, form: form.format(word),
    st.sampled_from("abcdefghijklmnop"),
    st.sampled_from(["{}", "{}.", "  {} ", "{} 1", "{} 23"]),
)
PAIRS = st.lists(st.builds(Pair, SIDE, SIDE), max_size=40)


def keys(pairs: list[Pair]) -> tuple[set[str], set[str]]:
    return {normalize_key(p.source) for p in pairs}, {normalize_key(p.target) for p in pairs}


def letter_words(count: int) -> list[str]:
    """Distinct words without digits, which a key would collapse."""
    return ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(count)]


def corpus(count: int, seed: int = 0) -> list[Pair]:
    """Pairs of Zipf-like words: many near-duplicates, some texts with several translations."""
    rng = random.Random(seed)
    words = letter_words(5000)

    def word() -> str:
        return words[min(int(rng.paretovariate(0.5)), len(words) - 1)]

    pairs = []
    for _ in range(count):
        source = " ".join(word() for _ in range(rng.randint(1, 4)))
        target = source.upper() if rng.random() < 0.8 else word()
        pairs.append(Pair(source + rng.choice(["", ".", " 7"]), target))
    return pairs


@given(pairs=PAIRS, size=st.integers(0, 30), seed=st.integers(0, 2**70))
def test_no_key_is_on_both_sides_and_nothing_is_lost(
    pairs: list[Pair], size: int, seed: int
) -> None:
    held_out, training = split_pairs(pairs, size, seed)
    assert sorted(held_out + training) == list(range(len(pairs)))
    assert held_out == sorted(held_out)
    assert training == sorted(training)
    assert len(held_out) <= size
    held_keys, training_keys = (keys([pairs[i] for i in part]) for part in (held_out, training))
    assert not held_keys[0] & training_keys[0]
    assert not held_keys[1] & training_keys[1]


@given(pairs=PAIRS, seed=st.integers(0, 5))
def test_training_pairs_were_all_needed_in_training(pairs: list[Pair], seed: int) -> None:
    """With a size nothing exceeds, all is held out: no pair is withheld without a reason."""
    held_out, training = split_pairs(pairs, 5 * len(pairs), seed)
    assert len(held_out) == len(pairs)
    assert training == []


def test_the_wanted_size_is_reached_and_the_same_again() -> None:
    pairs = corpus(5000)
    held_out, _ = split_pairs(pairs, 500, seed=1)
    assert len(held_out) == 500
    assert split_pairs(pairs, 500, seed=1)[0] == held_out
    assert split_pairs(pairs, 500, seed=2)[0] != held_out


def test_the_choice_does_not_depend_on_the_order_of_the_pairs() -> None:
    pairs = list(dict.fromkeys(corpus(2000)))
    shuffled = random.Random(7).sample(pairs, len(pairs))
    chosen = {pairs[i] for i in split_pairs(pairs, 200, seed=3)[0]}
    assert {shuffled[i] for i in split_pairs(shuffled, 200, seed=3)[0]} == chosen


def test_added_pairs_leave_most_of_the_choice() -> None:
    pairs = [Pair(f"source {word}", f"target {word}") for word in letter_words(2000)]
    before = set(split_pairs(pairs[:1900], 100, seed=0)[0])
    after = set(split_pairs(pairs, 100, seed=0)[0])
    assert len(before & after) >= 80


def test_a_family_of_near_duplicates_stays_in_training() -> None:
    family = [Pair(f"Channel {number}", f"Kanal {number}") for number in range(30)]
    others = [Pair(f"alone {a}{b}", f"allein {a}{b}") for a in "abcdefghij" for b in "abcdefghij"]
    for seed in range(20):
        held_out, _ = split_pairs(family + others, 50, seed)
        assert len(held_out) == 50
        assert min(held_out) >= len(family)


def test_a_long_chain_of_shared_texts_is_one_component() -> None:
    words = letter_words(20_001)
    order = random.Random(0).sample(range(20_000), 20_000)
    chain = [Pair(words[i + i % 2], words[i + 1 - i % 2]) for i in order]
    held_out, training = split_pairs([*chain, Pair("free", "frei")], 1000, seed=0)
    assert held_out == [20_000]
    assert len(training) == 20_000


def test_held_out_pairs_are_typical() -> None:
    """Every pair of a small component has the same chance, whatever its component's size."""
    pairs = []
    for kind, size in (("single", 1), ("double", 2), ("five", 5)):
        for word in letter_words(800):
            pairs += [Pair(f"{kind} {word}", f"{kind} {word} {'x' * i}") for i in range(size)]
    chosen: Counter[str] = Counter()
    for seed in range(10):
        chosen.update(pairs[i].source.split()[0] for i in split_pairs(pairs, 640, seed)[0])
    shares = np.array([chosen["single"], chosen["double"], chosen["five"]]) / 6400
    assert shares == pytest.approx(np.array([1, 2, 5]) / 8, abs=0.04)


def test_small_and_empty_inputs() -> None:
    assert split_pairs([], 10, seed=0) == ([], [])
    assert split_pairs([Pair("a", "b")], 0, seed=0) == ([], [0])
    assert split_pairs([Pair("a", "b")], 1, seed=0) == ([0], [])
