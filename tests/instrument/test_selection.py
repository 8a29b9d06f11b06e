"""Which blocks are looked at: some that are spread over the depth, or listed ones of models that have them."""

import pytest

from helpers.reference import normal
from howlinear.core.moments import Moments
from howlinear.errors import InputError
from howlinear.instrument.capture import BlockCapture
from howlinear.instrument.selection import selected, spaced


@pytest.fixture
def models():
    def block(seed):
        moments = Moments(3, 2).update(normal(9, 3, seed=seed), normal(9, 2, seed=seed))
        return BlockCapture([moments], [moments], Moments(2), None)

    return {"bent": {number: block(number) for number in (0, 3, 7)}, "straight": {0: block(9)}}


@pytest.mark.parametrize(("count", "expected"), [(1, [2]), (2, [2, 9]), (3, [2, 5, 9]), (5, [2, 3, 5, 7, 9])])
def test_spaced_blocks_span_the_depth(count, expected):
    assert spaced([2, 3, 5, 7, 9], count) == expected


def test_of_three_blocks_the_middle_one_is_half_the_depth():
    for depth in (6, 12, 30):
        assert spaced(range(depth), 3) == [0, depth // 2, depth - 1]
    assert spaced([4, 9], 5) == [4, 9]  # no more than there are


def test_blocks_are_selected_of_models_that_have_them_and_others_are_whole(models):
    some = selected(models, [7, 0])
    assert {name: list(blocks) for name, blocks in some.items()} == {"bent": [0, 7], "straight": [0]}
    assert some["bent"][7] is models["bent"][7]
    assert len(some["bent"]) == 2
    with pytest.raises(KeyError):
        some["bent"][3]
    assert {name: list(blocks) for name, blocks in selected(models, None).items()} == {
        name: list(blocks) for name, blocks in models.items()
    }
    for blocks in ([0, 99], []):
        with pytest.raises(InputError, match="no model has all of blocks"):
            selected(models, blocks)
