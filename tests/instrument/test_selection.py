"""Which blocks are looked at: some that are spread over the depth, or listed ones of models that have them."""

import pytest

from helpers.reference import normal
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.selection import choose_blocks, selected, spaced


@pytest.fixture
def models():
    def block(seed):
        moments = Moments(3, 2).update(normal(9, 3, seed=seed), normal(9, 2, seed=seed))
        return BlockCapture([moments], [moments], Moments(2), None)

    return {"bent": {number: block(number) for number in (0, 3, 7)}, "straight": {0: block(9)}}


@pytest.mark.parametrize(("count", "expected"), [(1, [2]), (2, [2, 9]), (3, [2, 5, 9]), (5, [2, 3, 5, 7, 9])])
def test_spaced_blocks_span_the_depth(count, expected):
    assert spaced([2, 3, 5, 7, 9], count) == expected
    for depth in (6, 12, 30):
        assert spaced(range(depth), 3) == [0, depth // 2, depth - 1]
    assert spaced([4, 9], 5) == [4, 9]  # no more than there are


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("all", [0, 1, 2, 3, 4]),
        ("ends", [0, 4]),
        ("spaced 3", [0, 2, 4]),
        ("spaced 9", [0, 1, 2, 3, 4]),
        ("spaced 0", []),
        ("depth 0.5", [2]),
        ("depth 1 0.25 0.3", [1, 4]),
        ([4, 0], [0, 4]),
        ([], []),
    ],
)
def test_a_rule_picks_blocks_in_order_of_depth(rule, expected, capsys):
    assert choose_blocks(rule, range(5)) == expected
    assert capsys.readouterr().out == ""


def test_numbers_that_a_model_does_not_have_are_left_out_with_one_line(capsys):
    assert choose_blocks([10, 1, 5], range(4)) == [1]
    assert capsys.readouterr().out.endswith("0 to 3: 5 10\n")
    assert choose_blocks([10], range(4)) == []


@pytest.mark.parametrize("rule", ["", "some", "spaced", "spaced x", "depth", "depth 2", "depth x", "most linear 2"])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(InputError, match="give all, ends, spaced 4"):
        choose_blocks(rule, range(4))


def test_a_rule_selects_of_every_model_what_it_has(models):
    some = selected(models, [7, 0])
    assert {name: list(blocks) for name, blocks in some.items()} == {"bent": [0, 7], "straight": [0]}
    assert some["bent"][7] is models["bent"][7]
    assert len(some["bent"]) == 2
    with pytest.raises(KeyError):
        some["bent"][3]
    assert {name: list(blocks) for name, blocks in selected(models, None).items()} == {
        name: list(blocks) for name, blocks in models.items()
    }
    assert {name: list(blocks) for name, blocks in selected(models, [3]).items()} == {"bent": [3]}
    of_its_own = selected(models, {"bent": "ends"})
    assert {name: list(blocks) for name, blocks in of_its_own.items()} == {"bent": [0, 7], "straight": [0]}
    for rule in ([99], []):
        with pytest.raises(InputError, match="none of any model"):
            selected(models, rule)
