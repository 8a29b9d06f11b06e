"""Architectures that no table knows: found by structure where that is clear, else refused with what to pass."""

from itertools import chain, repeat

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, Starcoder2Config, Starcoder2ForCausalLM

from helpers.families import FAMILIES, WIDTH, reads, small
from helpers.nearly import assert_same_outputs
from helpers.reference import r2_by_hooks
from howlinear.errors import InputError
from howlinear.instrument.capture import capture
from howlinear.instrument.measure import measure
from howlinear.models.calls import maps_alone
from howlinear.models.ffn_sites import FAMILIES as TABLE
from howlinear.models.ffn_sites import pattern_of, sites
from howlinear.models.layers import stack_of
from howlinear.models.load import load_model, untrained
from howlinear.models.pairs import ffn_module
from howlinear.models.replace import replace
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows

INNER = 2 * WIDTH


class HouseConfig(PreTrainedConfig):
    model_type = "house"

    def __init__(self, hidden_size=WIDTH, **rest):
        self.hidden_size = hidden_size
        super().__init__(**rest)


class Mixer(nn.Module):
    """Attention under another name, its matrix wider than the FFN's."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class SelfAttention(Mixer):
    """The same under its usual name."""


class PreNormAttention(Mixer):
    """Of a family whose name speaks of norms, as RoBERTa-PreLayerNorm's does; it has none itself."""


class MambaMixer(Mixer):
    """And under that of a state space in its place."""


class FeedForward(nn.Module):
    """Two layers in a list of their own."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, INNER), nn.GELU(), nn.Dropout(0.5), nn.Linear(INNER, width))

    def forward(self, x):
        return self.net(x)


class NormInside(FeedForward):
    """The norm of the residual stream in front of the two layers."""

    def __init__(self, width):
        super().__init__(width)
        self.net.insert(0, nn.LayerNorm(width))


class Skip(nn.Module):
    """The residual around an FFN."""

    def __init__(self, width):
        super().__init__()
        self.fn = FeedForward(width)

    def forward(self, x):
        return x + self.fn(x)


class Shared(nn.Module):
    """A wide expert for all tokens beside a narrow one."""

    def __init__(self, width):
        super().__init__()
        self.shared, self.narrow = FeedForward(width), nn.Linear(width, width)

    def forward(self, x):
        return self.shared(x) + self.narrow(x)


class Named(nn.Module):
    """Passes x on by its name."""

    def __init__(self, width):
        super().__init__()
        self.inner = FeedForward(width)

    def forward(self, x):
        return self.inner(x=x)


class Pair(FeedForward):
    """Returns more than y."""

    def forward(self, x):
        return self.net(x), None


class FlatPair(FeedForward):
    """Returns y without the axis of sequences, and more."""

    def forward(self, x):
        return self.net(x).reshape(-1, WIDTH), None


class Block(nn.Module):
    def __init__(self, width, attention, ffn):
        super().__init__()
        self.norm, self.mix, self.ffn_norm = nn.LayerNorm(width), attention(width), nn.LayerNorm(width)
        self.ff = ffn(width)

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        return x + self.ff(self.ffn_norm(x))


class TwoHalves(Block):
    """A narrow FFN for all tokens beside the wide one, as some mixtures keep their shared expert."""

    def __init__(self, width, attention, ffn):
        super().__init__(width, attention, ffn)
        self.shared = nn.ModuleList([nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))])

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        normed = self.ffn_norm(x)
        return x + self.ff(normed) + self.shared[0](normed)


class Apart(Block):
    """An FFN's two layers in the layer itself, without a module around them."""

    def __init__(self, width, attention, ffn):
        super().__init__(width, attention, nn.Identity)
        self.first, self.last = nn.Linear(width, INNER), nn.Linear(INNER, width)

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        return x + self.last(self.first(self.ffn_norm(x)).relu())


class Channels(Block):
    """An FFN that reads channels before places."""

    def __init__(self, width, attention, ffn):
        super().__init__(width, attention, lambda width: nn.Conv1d(width, width, 1))

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        return x + self.ff(self.ffn_norm(x).mT).mT


class Unpacking(Block):
    """A layer whose FFN returns something beside y."""

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        y, _ = self.ff(self.ffn_norm(x))
        return x + y.reshape(x.shape)


class House(PreTrainedModel):
    """A model with a config class of its own."""

    config_class = HouseConfig
    base_model_prefix = "house"

    def __init__(self, config, attention=SelfAttention, ffn=FeedForward, depth=3, block=Block, **stacks):
        super().__init__(config)
        self.embed = nn.Embedding(60, config.hidden_size)
        self.trunk = nn.ModuleDict({"rooms": nn.ModuleList([block(WIDTH, attention, ffn) for _ in range(depth)])})
        for name, stack in stacks.items():
            setattr(self, name, stack)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def passed(self, input_ids):
        """The layers that a text passes, in turn."""
        return self.trunk["rooms"]

    def forward(self, input_ids, use_cache=None):
        x = self.embed(input_ids)
        for room in self.passed(input_ids):
            x = room(x)
        return x


def house(**parts):
    torch.manual_seed(0)
    return House(HouseConfig(), **parts).eval()


def first_alone():
    """An FFN in the first block, none in the others."""
    kinds = chain([FeedForward], repeat(nn.Identity))
    return lambda width: next(kinds)(width)


class Backwards(House):
    """Runs its layers from the last to the first."""

    def passed(self, input_ids):
        return reversed(self.trunk["rooms"])


class Leaving(House):
    """Leaves before its last layer if the first token says so."""

    def passed(self, input_ids):
        return self.trunk["rooms"][: 2 + int(input_ids[0, 0]) % 2]


class Fused(House):
    """Torch's own layers, which are fused in evaluation mode, and read nested tensors where there is padding."""

    def __init__(self, config):
        super().__init__(config, depth=1)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, INNER, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, input_ids, attention_mask, use_cache=None):
        return self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)


class Corridor(House):
    """Layers with names, in no list."""

    def __init__(self, config, name):
        super().__init__(config, depth=1)
        self.rooms = nn.ModuleDict({name.format(number): Block(WIDTH, SelfAttention, FeedForward) for number in (0, 1)})

    def passed(self, input_ids):
        return self.rooms.values()


@pytest.fixture
def rows():
    return TokenRows.from_ids(reads("gpt2", n=32)["input_ids"], folds=2)


def test_a_model_of_ones_own_is_measured_swapped_and_left_as_it_was(rows):
    model = house()
    assert pattern_of(model) == "trunk.rooms.*.ff"
    profile = measure(model, rows)
    assert list(profile) == [0, 1, 2]
    assert profile.perplexity is None
    with torch.no_grad():
        before = model(rows.ids)
        with swap(model, {1: profile[1].map}):  # an affine block has other widths, and is found all the same
            assert [site.name for site in sites(model)] == [f"trunk.rooms.{i}.ff" for i in range(3)]
            assert not torch.equal(model(rows.ids), before)
            assert capture(model, rows)[1].train
        assert torch.equal(model(rows.ids), before)


def test_looking_for_the_ffns_changes_nothing():
    model = house().train()
    model.trunk["rooms"][0].ff.net[2].eval()
    modes, state = [part.training for part in model.modules()], torch.get_rng_state()
    assert pattern_of(model) == "trunk.rooms.*.ff"  # dropout does not hide it
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", FAMILIES)
def test_structure_agrees_with_the_table_or_says_which_pair_it_may_be(name, monkeypatch):
    model = small(name)
    pattern = TABLE[model.config.model_type]
    monkeypatch.delitem(TABLE, model.config.model_type)
    if name.split(",")[0] not in ("bloom", "mpt", "xlm"):  # pairs whose names say less
        assert pattern_of(model) == pattern
        return
    with pytest.raises(InputError, match=r"keeps its FFNs: no module of .* holds the FFN alone") as error:
        pattern_of(model)
    assert f'sites="{pattern}"' in str(error.value)
    assert pattern_of(load_model(model, sites=pattern)) == pattern


def test_a_tower_is_not_taken_for_the_text_beside_it():
    """Of a text whose FFNs are pairs, and a tower of the same width that has modules for them."""
    tower = nn.ModuleList([Block(WIDTH, SelfAttention, FeedForward) for _ in range(2)])
    model = house(block=Apart, tower=tower)
    with pytest.raises(InputError, match=r"tower\.\*\.ff and trunk\.rooms\.\*\.first,trunk\.rooms\.\*\.last all fit"):
        sites(model)
    assert len(sites(load_model(model, sites="tower.*.ff"))) == 2
    narrow = nn.ModuleList([Block(8, SelfAttention, FeedForward) for _ in range(2)])
    assert pattern_of(house(tower=narrow)) == "trunk.rooms.*.ff"
    of_images = nn.ModuleList([Apart(WIDTH, SelfAttention, FeedForward) for _ in range(2)])
    beside = house(vision_tower=of_images)
    assert pattern_of(beside) == "trunk.rooms.*.ff"
    for layer in of_images:  # as in BART, whose pairs are taken for FFNs
        layer.fc1, layer.fc2 = layer.first, layer.last
        del layer.first, layer.last
    assert pattern_of(house(vision_tower=of_images)) == "trunk.rooms.*.ff"
    for kind, path in (("layer", "trunk.rooms.2"), ("attention", "trunk.rooms.2.mix")):
        assert sites(beside, site=kind)[-1].name == path
    with pytest.raises(InputError, match=r"several modules of trunk\.rooms\.0 could be the FFN"):
        sites(house(ffn=Skip, vision_tower=tower))


@pytest.mark.parametrize("blocks", [[0], [0, 1], [0, 2]])
def test_layers_may_run_in_another_order_than_they_are_listed(rows, blocks):
    model = Backwards(HouseConfig()).eval()
    of_some, of_all = measure(model, rows, blocks=blocks), measure(model, rows)
    assert [of_some[block].r2 for block in blocks] == [of_all[block].r2 for block in blocks]


def test_a_block_that_only_some_batches_pass_is_refused(rows):
    model = Leaving(HouseConfig()).eval()
    with pytest.raises(InputError, match=r"batches pass block 2 "):
        measure(model, rows, batch_size=1)
    assert list(measure(model, rows, blocks=[0, 1], batch_size=1)) == [0, 1]


def test_fused_layers_with_padding_are_measured_as_they_run_unfused():
    model = load_model(Fused(HouseConfig()), sites="encoder.layers.*.linear1,encoder.layers.*.linear2")
    ids = torch.randint(60, (64, 16), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(16) < 8 + torch.arange(64)[:, None] % 9).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    profile = measure(model, inputs)
    for block, layer in enumerate(model.encoder.layers):
        expected, _ = r2_by_hooks(model.train(), layer.linear1, layer.linear2, inputs, mask)  # trains unfused
        assert profile[block].r2 == pytest.approx(expected, abs=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_and_layers_are_measured_where_layers_are_numbered_and_refused_where_they_are_named(rows):
    numbered = load_model(Corridor(HouseConfig(), "{}"), sites="rooms.*.ff")
    assert list(measure(numbered, rows, site="attention")) == list(measure(numbered, rows, site="layer")) == [0, 1]
    named = load_model(Corridor(HouseConfig(), "room{}"), sites="rooms.room*.ff")
    assert list(measure(named, rows)) == [0, 1]
    for kind in ("attention", "layer"):
        with pytest.raises(InputError, match="no modules of one list"):
            sites(named, site=kind)
    with pytest.raises(InputError, match="in no list of layers"):
        stack_of(named)


def test_a_norm_is_what_holds_its_weights_itself_whatever_its_family_is_called(rows):
    model = house(attention=PreNormAttention)
    mix = model.trunk["rooms"][1].mix
    expected, _ = r2_by_hooks(model, mix, mix, {"input_ids": rows.ids})
    assert measure(model, rows.ids, site="attention")[1].r2 == pytest.approx(expected, abs=1e-6)


def test_what_takes_more_than_its_config_cannot_be_built_anew():
    with pytest.raises(InputError, match="not built from its config alone"):
        untrained(Corridor(HouseConfig(), "{}"))


def test_without_weights_an_ffn_is_found_as_with_some_and_attention_is_none():
    with torch.device("meta"):
        model, mixing = House(HouseConfig()), House(HouseConfig(), attention=Mixer)
    assert [site.name for site in sites(model)] == [f"trunk.rooms.{number}.ff" for number in range(3)]
    assert all(parameter.is_meta for parameter in model.parameters())
    with pytest.raises(InputError, match=r"no module of trunk\.rooms\.0 holds the FFN alone"):
        sites(mixing)


def test_an_ffn_whose_weights_are_no_numbers_is_found_and_named(rows):
    model = house()
    model.trunk["rooms"][1].ff.net[0].weight.data[0] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinity .* at block 1 "):
        measure(model, rows)


def test_what_has_channels_before_places_is_refused(rows):
    model = load_model(house(block=Channels), sites="trunk.rooms.*.ff")
    with pytest.raises(InputError, match=r"trunk\.rooms\.0\.ff is a convolution"):
        measure(model, rows)


def test_x_may_come_by_its_name(rows):
    model = house(ffn=Named)
    assert pattern_of(model) == "trunk.rooms.*.ff"  # the outermost of two that are the same map
    one = capture(model, rows)[0].train[0]
    other = capture(load_model(model, sites="trunk.rooms.*.ff.inner"), rows)[0].train[0]
    torch.testing.assert_close(one.sxy, other.sxy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ffn", [Pair, FlatPair])
def test_y_is_the_first_of_what_an_ffn_returns(rows, ffn):
    """As of mixtures whose router gives its scores beside y, which the layer unpacks."""
    model = house(ffn=ffn, block=Unpacking)
    assert pattern_of(model) == "trunk.rooms.*.ff"
    (block,) = capture(model, rows, blocks=[0]).values()
    alone = house(ffn=FeedForward)
    alone.load_state_dict(model.state_dict())
    torch.testing.assert_close(block.train[0].sxy, capture(alone, rows)[0].train[0].sxy, rtol=0, atol=0)

    # a map in its place is unpacked as well; a batch of two would be, if it were y alone
    ids = rows.ids[:2]
    one_map = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad(), swap(model, {0: one_map}), swap(alone, {0: one_map}):
        assert torch.equal(model(ids), alone(ids))
    assert isinstance(model.trunk["rooms"][0].ff, ffn)
    x = torch.randn(3, WIDTH)
    assert torch.equal(ffn_module(model, sites(model)[0])(x), alone.trunk["rooms"][0].ff(x))


def test_what_makes_y_of_x_alone_is_tried_with_weights_and_without():
    for device in ("cpu", "meta"):
        with torch.device(device):
            assert [maps_alone(ffn(WIDTH), WIDTH) for ffn in (FeedForward, Pair)] == [True, False]
    assert not maps_alone(nn.Bilinear(WIDTH, WIDTH, WIDTH), WIDTH)


def test_an_ffn_that_reads_something_beside_x_runs_under_a_map(rows):
    """As of mixtures whose router reads that of the layer before: what it returns beside y goes on to the next one."""

    class Routed(FeedForward):
        def forward(self, x, scores):
            return super().forward(x) * (1 + scores), [scores + 1]

    class Handing(Block):
        def forward(self, x):
            x = x + self.mix(self.norm(x))
            y, scores[:] = self.ff(self.ffn_norm(x), *scores)
            return x + y

    scores = [0]
    model = load_model(house(ffn=Routed, block=Handing), sites="trunk.rooms.*.ff")
    scores[:] = [0]
    with torch.no_grad(), swap(model, {0: nn.Linear(WIDTH, WIDTH)}):
        model(rows.ids[:2])
    assert scores == [len(sites(model))]  # also of the block that the map stands for
    with pytest.raises(InputError, match="reads something beside x"):
        replace(model, {0: nn.Linear(WIDTH, WIDTH)})
    with pytest.raises(InputError, match="a Routed makes no y of x alone"):
        ffn_module(model, sites(model)[0])(torch.randn(3, WIDTH))


def test_what_returns_more_than_y_has_no_linear_layer_for_good():
    with pytest.raises(InputError, match=r"trunk\.rooms\.0\.ff returns something beside y"):
        replace(house(ffn=Pair, block=Unpacking), {0: nn.Linear(WIDTH, WIDTH)})


@pytest.mark.parametrize("returned", [dict, list])
def test_what_returns_no_tensor_is_refused_by_name(rows, returned):
    class Named(FeedForward):
        def forward(self, x):
            return returned()

    model = load_model(house(ffn=Named), sites="trunk.rooms.*.ff")
    with pytest.raises(InputError, match=r"trunk\.rooms\.0\.ff returns a .*, no tensor: give the modules inside"):
        capture(model, rows)


@pytest.mark.parametrize(
    "model",
    [
        lambda: house().half(),
        lambda: house().bfloat16(),
        lambda: house(ffn=lambda width: FeedForward(width).net),  # a list
        lambda: house(attention=MambaMixer),  # what stands in attention's place is not the FFN, however wide
        lambda: house(tail=nn.Sequential(nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, 2)))),  # a stack without FFNs
    ],
)
def test_the_ffn_is_found_all_the_same(model):
    assert pattern_of(model()) == "trunk.rooms.*.ff"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"attention": Mixer}, r"no module of trunk\.rooms\.0 holds the FFN alone"),
        ({"ffn": NormInside}, r'sites="trunk\.rooms\.\*\.ff\.net\.1,trunk\.rooms\.\*\.ff\.net\.4"'),
        ({"block": TwoHalves}, r"ff and shared\.0 of trunk\.rooms\.0 both act on each token by itself"),
        ({"ffn": Skip}, r"several modules of trunk\.rooms\.0 could be the FFN: ff, ff\.fn"),
        ({"ffn": Shared}, r"could be the FFN: ff, ff\.(net|shared)"),
        ({"depth": 0}, "it has no list of blocks"),
        ({"other": nn.ModuleList([Block(WIDTH, SelfAttention, FeedForward)])}, r"and other\.\*\.ff all fit"),
        ({"ffn": first_alone()}, r"no module of trunk\.rooms\.1 holds the FFN alone"),
    ],
)
def test_what_is_not_clear_is_refused_with_what_to_pass(parts, message):
    with pytest.raises(InputError, match=rf"House, a 'house' model, keeps its FFNs: .*{message}.*--sites \"model"):
        sites(house(**parts))


def test_a_width_that_is_not_the_hidden_size_is_refused():
    model = house()
    model.config.hidden_size = 2 * WIDTH
    with pytest.raises(InputError, match="holds the FFN alone"):
        sites(model)


def test_a_family_found_by_structure_is_compressed_saved_and_read_back(tmp_path, rows):
    config = Starcoder2Config(
        vocab_size=60, hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    model = Starcoder2ForCausalLM(config).eval()
    assert "starcoder2" not in TABLE
    smaller = replace(model, {block: found.map for block, found in measure(model, rows).items()})
    smaller.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert pattern_of(loaded) == "layers.*.mlp"
    assert not hasattr(model.config, "howlinear_sites")
    with torch.no_grad():
        assert_same_outputs(loaded(rows.ids).logits, smaller(rows.ids).logits)
    assert all(site.linear for site in sites(loaded))
