import pytest

from howlinear.answers import words


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [
        (0.6849, 2, False, "0.68"),
        (-0.6849, 2, False, "−0.68"),
        (-0.001, 2, False, "0.00"),
        (-0.001, 2, True, "+0.00"),
        (3.0, 2, True, "+3.00"),
        (19_968, 0, False, "19,968"),
    ],
)
def test_a_number_has_a_printed_minus_and_no_minus_zero(value, digits, signed, text):
    assert words.number(value, digits, signed) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.0711, 2, "0.071"), (156_234.0, 3, "156,000"), (9.996, 3, "10.00"), (0.0, 2, "0.00")],
)
def test_significant_digits(value, digits, text):
    assert words.significant(value, digits) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.001, "less than 1 %"), (0.404, "40 %"), (0.999, "more than 99 %"), (1, "100 %")],
)
def test_a_share_reads_as_nothing_or_all_only_where_it_is(share, text):
    assert words.percent(share) == text


def test_a_range_of_one_number_is_that_number():
    assert words.span([0.601, 0.599]) == "0.60"
    assert words.span([0.9, -0.1, 0.3]) == "−0.10 to 0.90"
    assert words.percents([0.2, 0.204]) == "20 %"
    assert words.percents([0.2, 0.5]) == "20 % to 50 %"
    assert words.percents([0.9, 0.999]) == "at least 90 %"


def test_a_cost_has_as_many_digits_as_its_largest_end_bears():
    assert words.cost(3.0, 1.918, 4.082) == "+3.00 [1.92, 4.08]"
    assert words.cost(16.004, 9.214, 22.794) == "+16.0 [9.2, 22.8]"
    assert words.cost(361.0, 238.2, 483.9) == "+361 [238, 484]"
    assert words.cost(-0.0121, -0.03, 0.006) == "−0.0121 [−0.0300, 0.0060]"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a (b, c)", "d [1, 2]"], "a (b, c) and d [1, 2]"),
        (["a and b", "c", "d"], "a and b; c; and d"),
    ],
)
def test_a_list_in_words(parts, text):
    assert words.joined(parts) == text


def test_counts_and_blocks_are_singular_or_plural():
    assert [words.counted(n, "block") for n in (0, 1, 2, 30)] == ["no block", "one block", "two blocks", "30 blocks"]
    assert words.blocks([3]) == "block 3"
    assert words.blocks([0, 3, 11]) == "blocks 0, 3 and 11"
    assert words.no_loss(["a"]).startswith("a predicts no")
    assert words.no_loss(["a", "b"]).startswith("a and b predict no")


def test_models_that_share_a_clause_stand_together():
    assert words.per_model({"a": "1", "b": "2", "c": "1"}) == "1 in a and c; and 2 in b"
    assert words.per_model({"a": "1", "b": "2"}, "for") == "1 for a and 2 for b"
    assert words.per_model({"a": "1 of 12 blocks", "b": "1 of 12 blocks"}, "of") == "1 of 12 blocks of each of a and b"


def test_chance_is_that_of_a_rank_correlation():
    assert words.chance(12) == pytest.approx(0.59, abs=0.01)
    assert words.chance(1) == pytest.approx(1.96)
