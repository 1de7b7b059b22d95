"""Settings of the search: what the page says of them, and what a command line may set."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from dragoman.config import Config, SearchConfig, resolve_search
from dragoman.decoding.engine import Request, output_limit, output_minimum
from dragoman.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "search.md"


def test_every_setting_is_explained() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))
    assert SearchConfig.model_fields.keys() - named == set()


def test_flags_and_assignments_change_the_models_settings() -> None:
    base = SearchConfig(beam=6, seed=3)
    found = resolve_search(base, {"beam": 8}, ["search.groups=4", "search.top_p=0.9"])
    assert found == SearchConfig(beam=8, seed=3, groups=4, top_p=0.9)
    assert resolve_search(base, {"beam": 8}, ["search.beam=2"]).beam == 2
    assert resolve_search(base, {}) == base


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("search.top_q=1", "unknown setting 'search.top_q'"),
        ("training.seed=3", "a model that is trained has only settings of search"),
        ("search=3", "a model that is trained has only settings of search"),
        ("search.beam=0", "setting search.beam"),
        ("search.sample=maybe", "setting search.sample"),
        ("search.groups=3", "a beam of 4 cannot be cut into 3 equal groups"),
        ("search.beam", "no '='"),
    ],
)
def test_a_wrong_setting_is_named(assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        resolve_search(SearchConfig(), {}, [assignment])


def test_settings_that_exclude_each_other() -> None:
    for wrong in (
        {"sample": True, "mbr_samples": 4},
        {"sample": True, "groups": 2},
        {"mbr_samples": 4, "groups": 2},
    ):
        with pytest.raises(ValidationError):
            SearchConfig(**wrong)


def test_limits_of_the_length() -> None:
    config, source = Config(), list(range(10, 20))

    def lengths(prefix: int = 0, **settings: float) -> tuple[int, int]:
        search = SearchConfig.model_validate(settings)
        limit = output_limit(source, search, config, [[1]] * prefix)
        return output_minimum(source, search, limit), limit

    assert lengths() == (1, 61)
    assert lengths(max_length_ratio=1.25, min_length_ratio=0.55) == (6, 13)
    assert lengths(max_length_ratio=0.5, min_length_ratio=2.0) == (5, 5)
    assert lengths(prefix=30, max_extra_tokens=5) == (1, 35)
    assert lengths(max_extra_tokens=10_000) == (1, config.model.max_positions - 1)


def test_what_needs_the_native_engine_is_named() -> None:
    assert Request(SearchConfig()).native_only() is None
    assert Request(SearchConfig(sample=True)).native_only() == "sample"
    assert Request(SearchConfig(), prefixes=[(), [[4]]]).native_only() == "a prefix"
    assert Request(SearchConfig(), prefixes=[(), ()]).native_only() is None
    assert Request(SearchConfig(coverage_penalty=0.1)).native_only() == "coverage_penalty"
