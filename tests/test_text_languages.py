import pytest

from dragoman.text.languages import UNSPACED, base_code, plain_code


@pytest.mark.parametrize(
    ("code", "plain", "base"),
    [
        ("de", "de", "de"),
        ("pt_BR", "pt-br", "pt"),
        ("zh-Hans-CN", "zh-hans-cn", "zh"),
        ("ZH", "zh", "zh"),
        ("", "", ""),
    ],
)
def test_codes(code: str, plain: str, base: str) -> None:
    assert (plain_code(code), base_code(code)) == (plain, base)


def test_unspaced_languages_are_base_codes() -> None:
    assert {"zh", "ja", "th"} < UNSPACED
    assert {base_code(code) for code in UNSPACED} == UNSPACED
    assert "ko" not in UNSPACED
