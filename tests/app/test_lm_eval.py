"""The harness's log-likelihoods of a model with maps are those of the swapped model, by hand."""

import pytest
import torch

import howlinear as hl
from howlinear.errors import InputError

lm_eval = pytest.importorskip("lm_eval")


@pytest.fixture
def profile(tmp_path):
    found = hl.measure("mini-gpt2", "docs", blocks=[3, 5], rows=4096)
    found.save(tmp_path / "p.safetensors")
    return found


@pytest.mark.parametrize(("blocks", "chosen"), [("5", [5]), (None, [3, 5]), ("3+5", [3, 5])])
def test_log_likelihoods_are_those_of_the_swapped_model(profile, tmp_path, blocks, chosen):
    from lm_eval.api.instance import Instance

    from howlinear.app.lm_eval import HowlinearLM

    ours = HowlinearLM("mini-gpt2", profile=str(tmp_path / "p.safetensors"), blocks=blocks)
    pair = ("Return the number", " of elements in the list")
    ((found, _),) = ours.loglikelihood([Instance("loglikelihood", {}, pair, 0)], disable_tqdm=True)
    model = hl.load_model("mini-gpt2")
    before, whole = (ours.tokenizer(text)["input_ids"] for text in (pair[0], pair[0] + pair[1]))
    ids = torch.tensor([whole])
    with torch.no_grad(), hl.swap(model, {block: profile[block].map for block in chosen}):
        log_p = model(ids).logits.log_softmax(-1)[0, :-1]
    by_hand = log_p.gather(1, ids[0, 1:, None])[len(before) - 1 :].sum().item()
    assert found == pytest.approx(by_hand, abs=1e-3)


def test_blocks_without_maps_are_refused(profile, tmp_path):
    from howlinear.app.lm_eval import HowlinearLM

    with pytest.raises(InputError, match=r"no maps of blocks \[3, 4\]"):
        HowlinearLM("mini-gpt2", profile=str(tmp_path / "p.safetensors"), blocks="3+4")
