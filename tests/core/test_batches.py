import torch

from howlinear.core.batches import shuffled_batches


def test_a_pass_takes_every_row_once_and_leaves_out_a_last_part_that_is_no_batch():
    steps = list(shuffled_batches(10, 4, 6, seed=0))
    assert [len(batch) for batch in steps] == [4] * 6
    passes = [torch.cat(steps[i : i + 2]) for i in range(0, 6, 2)]
    for rows in passes:
        assert len(set(rows.tolist())) == 8
        assert set(rows.tolist()) <= set(range(10))
    assert not torch.equal(passes[0], passes[1])


def test_the_seed_decides_the_order():
    one, again, other = (torch.stack(list(shuffled_batches(50, 5, 10, seed))) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_fewer_rows_than_a_batch_are_all_taken():
    assert [sorted(batch.tolist()) for batch in shuffled_batches(3, 8, 2, seed=0)] == [[0, 1, 2]] * 2
