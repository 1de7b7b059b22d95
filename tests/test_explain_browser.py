"""The explain page in a browser: nothing is fetched, nothing overflows, and what moves is right."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from explaining import MEASURED, TEXT, random_model

from dragoman.inspection.explain_numbers import Explained, explain_sentence
from dragoman.inspection.explain_page import write_explain_page
from dragoman.inspection.explain_parts import LANGUAGES, Language
from dragoman.model.folder import LoadedModel

pytestmark = pytest.mark.slow

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return random_model()


@pytest.fixture(scope="module")
def explained(loaded: LoadedModel) -> Explained:
    return explain_sentence(loaded, TEXT)


@pytest.fixture(scope="module")
def paths(
    loaded: LoadedModel, explained: Explained, tmp_path_factory: pytest.TempPathFactory
) -> dict[Language, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {language: folder / f"{language}.html" for language in LANGUAGES}
    for language, path in found.items():
        write_explain_page(path, loaded, explained, MEASURED, language)
    return found


def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """A page that fails when its script does, or when it asks for anything but itself."""
    context = browser.new_context(**options)
    page, asked, failures = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda message: failures.append(message.text))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert failures == []
    assert asked == [path.as_uri()]


@pytest.fixture(
    params=[
        (language, size, scheme)
        for language in LANGUAGES
        for size, scheme in ((PHONE, "light"), (DESK, "dark"))
    ],
    ids=lambda choice: f"{choice[0]}-{choice[1]['width']}",
)
def any_page(
    request: pytest.FixtureRequest, browser: Any, paths: dict[Language, Path]
) -> Iterator[Any]:
    language, size, scheme = request.param
    yield from opened(browser, paths[language], viewport=size, color_scheme=scheme)


@pytest.fixture
def page(browser: Any, paths: dict[Language, Path]) -> Iterator[Any]:
    yield from opened(browser, paths["en"], viewport=DESK)


def test_nothing_is_wider_than_the_screen(any_page: Any) -> None:
    widths = any_page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]


def test_steps_are_shown_one_at_a_time(any_page: Any, explained: Explained) -> None:
    stepper = any_page.locator("#search .stepper")
    steps = explained.numbers["search"]["steps"]
    assert stepper.locator(".panel:visible").count() == 1
    back, forward = stepper.locator("button").all()
    assert back.is_disabled()
    for _ in steps[1:]:
        forward.click()
    assert forward.is_disabled()
    visible = stepper.locator(".panel:visible tbody tr")
    assert visible.count() == len(steps[-1]["hypotheses"]) + len(steps[-1]["finished"])
    back.focus()
    any_page.keyboard.press("Enter")
    assert str(len(steps) - 1) in stepper.locator("output").inner_text()


def test_a_hovered_word_shows_its_weights(page: Any, explained: Explained) -> None:
    reader = page.locator(".reader[data-kind=encoder]")
    for layer, head, row in ((0, 0, 0), (1, 3, 2), (1, -1, 4)):
        reader.locator("select[name=layer]").select_option(index=layer)
        reader.locator("select[name=head]").select_option(index=head + 1)
        reader.locator(".queries button").nth(row).hover()
        weights = explained.attention.encoder[layer]
        expected = weights.mean(0)[row] if head < 0 else weights[head, row]
        check_shares(reader.locator(".keys small").all_inner_texts(), expected.tolist())
        assert reader.locator(".ring").get_attribute("y") == str(row)


def check_shares(shown: list[str], expected: list[float]) -> None:
    assert len(shown) == len(expected)
    for text, weight in zip(shown, expected, strict=True):
        assert float(text.strip("<>%")) == pytest.approx(100 * weight, abs=1.01)


def test_a_word_can_be_reached_with_the_keyboard(page: Any, explained: Explained) -> None:
    reader = page.locator(".reader[data-kind=cross]")
    buttons = reader.locator(".queries button")
    reader.locator("select[name=head]").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert buttons.nth(1).evaluate("node => node === document.activeElement")
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    weights = explained.attention.cross[-1].mean(0)[1]
    check_shares(reader.locator(".keys small").all_inner_texts(), weights.tolist())


def test_a_layer_changes_the_picture(page: Any) -> None:
    cells = page.locator(".reader[data-kind=decoder] .cells")
    before = cells.inner_html()
    page.locator(".reader[data-kind=decoder] select[name=layer]").select_option(index=0)
    assert cells.inner_html() != before


def test_the_bench_computes_what_the_model_does(
    page: Any, loaded: LoadedModel, explained: Explained
) -> None:
    bench = page.locator(".workbench")
    first, root = explained.numbers["first_layer"], math.sqrt(loaded.config.model.key_width)
    for piece, head in ((0, 1), (3, 2)):
        bench.locator("select[name=piece]").select_option(index=piece)
        bench.locator("select[name=head]").select_option(index=head)
        scores = torch.tensor(first["scores"][head][piece])
        rows = [row.locator("td").all_inner_texts() for row in bench.locator("tbody tr").all()]
        shown = [float(row[0].replace("−", "-")) for row in rows]
        assert shown == pytest.approx(scores.tolist(), abs=0.006)
        check_shares([row[2] for row in rows], (scores / root).softmax(0).tolist())
        check_shares([row[3] for row in rows], scores.softmax(0).tolist())


def test_the_slider_reads_a_fingerprint(page: Any, explained: Explained) -> None:
    page.locator(".waves input").fill("6")
    shown = page.locator(".waves .legend output").all_inner_texts()
    expected = [wave[5] for wave in explained.numbers["positions"]["values"]]
    found = [float(text.replace("−", "-")) for text in shown]
    assert found == pytest.approx(expected, abs=0.006)


def test_without_a_script_everything_is_there(
    browser: Any, paths: dict[Language, Path], explained: Explained
) -> None:
    for page in opened(browser, paths["en"], viewport=PHONE, java_script_enabled=False):
        assert page.locator(".js:visible").count() == 0
        steps = len(explained.numbers["search"]["steps"]) + len(explained.numbers["next"])
        assert page.locator(".panel:visible").count() == steps
        assert page.locator("svg.heat:visible").count() == 3 + len(explained.attention.encoder[0])
