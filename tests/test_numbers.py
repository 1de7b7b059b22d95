import pytest

from dragoman.decoding.numbers import lost_numbers


def test_a_changed_number_names_what_stands_instead() -> None:
    assert lost_numbers("It weighs 37 kilos, not 50.", "Es wiegt 73 Kilo, nicht 50.") == (
        ["37"],
        ["73"],
    )


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("1,234.5", "1.234,5"),
        ("1,234.5", "1 234,5"),
        ("1'234.50", "1\u202f234,5"),
        ("1,234", "1234"),
        ("12.5", "12,50"),
        ("2024-12-24", "24.12.2024"),
        ("37", "३७"),
        ("٣٧", "37"),
        ("1.2 million", "1200000"),
        ("35万", "350,000"),
        ("3 billion", "3 Milliarden"),
        ("3,000,000,000", "3 billion"),
        ("2:30", "14.30"),
        ("no digits", "keine"),
    ],
)
def test_notations_of_one_number(source: str, translation: str) -> None:
    assert lost_numbers(source, translation) == ([], [])
