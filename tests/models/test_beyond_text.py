"""Sound, images, places that a model adds, layers that run again: rows are those of the model's input, or refused."""

import pytest
import torch
from transformers import (
    BigBirdConfig,
    BigBirdModel,
    CLIPConfig,
    CLIPModel,
    ConvBertConfig,
    ConvBertModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    FNetConfig,
    FNetModel,
    Idefics3VisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    LongformerConfig,
    LongformerModel,
    Siglip2VisionConfig,
    Siglip2VisionModel,
    ViTMAEConfig,
    ViTMAEModel,
    Wav2Vec2Config,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperModel,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionTransformer

import howlinear as hl
from helpers.reference import held_out_r2, r2_by_hooks
from howlinear.errors import InputError
from howlinear.ideas.compression.calibration import Calibration
from howlinear.ideas.compression.compressors.lines import lines_of
from howlinear.ideas.compression.signals import cca_bounds, stream
from howlinear.ideas.protocol.groups import measure_loudness
from howlinear.ideas.protocol.layout import Layout
from howlinear.ideas.sinks.measure import first_rows
from howlinear.instrument.as_rows import rows_of

N = 120
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.randint(3, 100, (N, 17), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(N, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def mask_of(places, full):
    """Every third of N sequences ends after `full` of its places."""
    mask = torch.ones(N, places, dtype=torch.long)
    mask[::3, full:] = 0
    return mask


def by_hand(model, inputs, mask=None):
    """R²_lin of the first block's module, on the rows that a mask leaves."""
    (site,) = hl.sites(model, 0)
    return r2_by_hooks(model, site.output, site.output, inputs, mask)[0]


def wav2vec2():
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    model = Wav2Vec2Model(Wav2Vec2Config(vocab_size=40, **SMALL, **convolutions, **positions)).eval()
    return model, {"input_values": torch.randn(N, 160)}, 160


def whisper():
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8, "max_source_positions": 20}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = WhisperModel(WhisperConfig(vocab_size=100, d_model=16, **heads, **sizes, **tokens)).eval().get_encoder()
    return model, {"input_features": torch.randn(N, 8, 40)}, 40


@pytest.mark.parametrize("kind", [wav2vec2, whisper])
def test_a_mask_of_sound_is_not_taken_for_one_of_rows(kind):
    model, inputs, places = kind()
    expected = hl.measure(model, inputs)[0].r2
    assert hl.measure(model, inputs | {"attention_mask": mask_of(places, places)})[0].r2 == expected
    with pytest.raises(InputError, match="describes, so which are padding"):
        hl.measure(model, inputs | {"attention_mask": mask_of(places, 24)})


def test_padded_patches_are_left_out():
    model = Siglip2VisionModel(Siglip2VisionConfig(**SMALL, num_channels=3, num_patches=16, patch_size=2)).eval()
    mask = mask_of(16, 12).int()
    shapes = torch.tensor([[4, 4]] * N)
    shapes[::3] = torch.tensor([3, 4])
    inputs = {"pixel_values": torch.randn(N, 16, 12), "pixel_attention_mask": mask, "spatial_shapes": shapes}
    found = hl.measure(model, inputs)
    assert found.rows_used == int(mask.sum())
    assert found[0].r2 == pytest.approx(by_hand(model, inputs, mask), abs=1e-5)


def test_of_a_model_of_text_and_images_each_half_has_its_own_rows():
    text = {"vocab_size": 100, **SMALL, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
    images = {**SMALL, "image_size": 16, "patch_size": 4}
    config = CLIPConfig(text_config=text, vision_config=images, projection_dim=8)
    mask = mask_of(17, 9)  # as many places as an image has: they are told apart by what each half reads
    both = {"input_ids": IDS, "pixel_values": IMAGES, "attention_mask": mask}
    for half, kept in (("text_model", mask), ("vision_model", None)):
        model = hl.load_model(CLIPModel(config), sites=f"{half}.encoder.layers.*.mlp")
        assert hl.measure(model, both)[0].r2 == pytest.approx(by_hand(model, both, kept), abs=1e-5)
    with pytest.raises(InputError, match="a sample is of tokens of the text"):
        hl.capture(model, both, sample=64)
    with pytest.raises(InputError, match="fails at these rows"):
        hl.measure(model, both | {"input_ids": IDS + 100})


def test_a_tower_that_is_measured_alone_is_given_what_it_reads():
    """Its class names the keyword of text, which it does not take."""
    model = Idefics3VisionTransformer(Idefics3VisionConfig(**SMALL, image_size=16, patch_size=8)).eval()
    assert model.main_input_name == "input_ids"
    assert hl.measure(model, IMAGES)[0].r2 == pytest.approx(by_hand(model, {"pixel_values": IMAGES}), abs=1e-6)
    with pytest.raises(InputError, match="reads pixel_values, not input_ids"):
        hl.measure(model, IDS)


def test_maps_of_a_tower_are_as_wide_as_the_tower():
    vision = {"hidden_size": 24, "image_size": 16, "patch_size": 8}
    config = CLIPConfig(text_config=SMALL, vision_config=SMALL | vision, projection_dim=16)
    model = hl.load_model(CLIPModel(config).eval(), sites="vision_model.encoder.layers.*.mlp")
    inputs = {"input_ids": IDS, "pixel_values": IMAGES}
    profile = hl.measure(model, inputs)
    assert profile[0].map.weight.shape == (24, 24)
    with torch.no_grad():
        before = model(**inputs)
        with hl.swap(model, profile):
            after = model(**inputs)
    assert not torch.allclose(before.image_embeds, after.image_embeds)
    torch.testing.assert_close(before.text_embeds, after.text_embeds)
    for width in (16, 32):
        with pytest.raises(InputError, match="of width 24"), hl.swap(model, {0: torch.nn.Linear(width, width)}):
            pass
    with torch.no_grad():
        replaced = hl.replace(model, profile)(**inputs)
    torch.testing.assert_close(replaced.image_embeds, after.image_embeds)


def test_a_base_model_that_reads_no_images_is_run_by_the_whole():
    model = DINOv3ViTModel(DINOv3ViTConfig(**SMALL, image_size=16, patch_size=4, num_register_tokens=2)).eval()
    expected = by_hand(model, {"pixel_values": IMAGES})
    for given in ({"pixel_values": IMAGES}, IMAGES, IMAGES.numpy()):
        assert hl.measure(model, given)[0].r2 == pytest.approx(expected, abs=1e-5)
    grey = (50 * IMAGES + 128).clamp(0, 255).to(torch.uint8)  # as a camera gives them
    for given in ({"pixel_values": grey}, grey, grey.numpy()):
        with pytest.raises(InputError, match="pixel_values holds whole numbers"):
            hl.measure(model, given)


@pytest.mark.parametrize("made", [
    lambda sizes: LongformerModel(LongformerConfig(attention_window=8, max_position_embeddings=128, **sizes)),
    lambda sizes: BigBirdModel(BigBirdConfig(
        attention_type="block_sparse", block_size=4, num_random_blocks=1, max_position_embeddings=128, **sizes
    )),
])  # fmt: skip
@pytest.mark.parametrize("call", [
    lambda model, ids: hl.measure(model, ids),
    lambda model, ids: hl.token_errors(model, {0: torch.nn.Identity()}, ids),
])  # fmt: skip
def test_places_that_fill_up_a_window_are_no_rows(made, call):
    model = made({"vocab_size": 100, "pad_token_id": 0, **SMALL}).eval()
    call(model, torch.randint(3, 100, (40, 64)))
    with pytest.raises(InputError, match="give sequences of a multiple"):
        call(model, torch.randint(3, 100, (40, 62)))


class Looping(LlamaModel):
    """Goes through its layers twice."""

    def forward(self, input_ids=None, **_):
        stream = self.embed_tokens(input_ids)
        positions = self.rotary_emb(stream, torch.arange(stream.shape[1])[None])
        for layer in [*self.layers, *self.layers]:
            stream = layer(stream, position_embeddings=positions, attention_mask=None)
        return BaseModelOutputWithPast(last_hidden_state=stream)


@pytest.mark.parametrize("blocks", [[0], [1], None])
def test_a_layer_that_runs_again_is_not_measured_at_its_first_run(blocks):
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    model = Looping(LlamaConfig(vocab_size=100, **SMALL, **tokens)).eval()
    maps = dict.fromkeys(blocks or [0, 1], torch.nn.Identity())
    for call in (lambda: hl.measure(model, IDS, blocks=blocks), lambda: hl.token_errors(model, maps, IDS)):
        with pytest.raises(InputError, match="more than once in a pass"):
            call()


@pytest.mark.parametrize("look", [
    lambda model, rows: first_rows(model, rows),
    lambda model, rows: measure_loudness(model, Layout(rows, torch.zeros(N, dtype=torch.long), [1]), hl.sites(model)),
    lambda model, rows: lines_of(Calibration(model, rows)),
    lambda model, rows: cca_bounds(model, rows.ids),
    lambda model, rows: stream(model, rows.ids),
])  # fmt: skip
def test_nobody_who_listens_takes_a_layer_that_runs_again_for_one_depth(look):
    model = Looping(LlamaConfig(vocab_size=100, **SMALL, bos_token_id=1, eos_token_id=2)).eval()
    with pytest.raises(InputError, match="more than once in a pass"):
        look(model, hl.TokenRows.from_ids(IDS))


def test_a_model_whose_layers_run_again_is_not_made_smaller():
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **SMALL, bos_token_id=1, eos_token_id=2))
    model.model = Looping(model.config)
    for made in ({"max_parameters": 0.9}, {"max_dppl": 30.0}):
        with pytest.raises(InputError, match="more than once in a pass"):
            (hl.compress_to if "max_dppl" in made else hl.compress)(model.eval(), IDS.repeat(4, 1), **made)


def test_masks_that_are_drawn_in_each_pass_are_the_same_in_each_and_nobody_elses_numbers_change():
    sizes = {"image_size": 16, "patch_size": 4, "decoder_hidden_size": 16, "decoder_num_attention_heads": 2}
    model = ViTMAEModel(ViTMAEConfig(**SMALL, **sizes, decoder_num_hidden_layers=1)).eval()
    torch.manual_seed(5)
    expected = torch.rand(9)
    torch.manual_seed(5)
    first, second = (hl.measure(model, {"pixel_values": IMAGES}, batch_size=N) for _ in range(2))
    assert torch.equal(torch.rand(9), expected)
    assert first.to_frame().equals(second.to_frame())
    # every batch is of one fold of one side, and draws as the seed has it
    sides = []
    for start in ("train", "test"):
        indices = [place for place in range(N) if (place % 4 == 3) == (start == "test")]
        folds = [indices[fold::8] for fold in range(8)]
        seen = []
        hook = hl.sites(model)[1].output.register_forward_hook(lambda _, args, y, seen=seen: seen.append((args[0], y)))
        for fold in folds:
            torch.manual_seed(0)
            with torch.no_grad():
                model(IMAGES[fold])
        hook.remove()
        sides.append([torch.cat([pair[part].flatten(0, 1) for pair in seen]).double().numpy() for part in (0, 1)])
    assert first[1].r2 == pytest.approx(held_out_r2(*sides), abs=1e-5)


@pytest.mark.parametrize("site", ["layer", "attention"])
def test_layers_that_read_positions_of_sequences_are_refused(site):
    xlnet = XLNetLMHeadModel(XLNetConfig(vocab_size=100, d_model=16, n_layer=2, n_head=2, d_inner=32)).eval()
    with pytest.raises(InputError, match="positions of sequences"):
        hl.measure(xlnet, IDS, site=site)


def fnet():
    sizes = {name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    return FNetModel(FNetConfig(vocab_size=100, max_position_embeddings=32, type_vocab_size=2, **sizes)).eval()


def convbert():
    return ConvBertModel(ConvBertConfig(vocab_size=100, embedding_size=16, **SMALL, head_ratio=1)).eval()


def one_by_one(model, lengths):
    """R²_lin of the first block of sequences that ran alone; every fourth is held out."""
    (site,) = hl.sites(model, 0)
    seen = []
    hooks = [
        site.input.register_forward_pre_hook(lambda _, args: seen.append([args[0][0]])),
        site.output.register_forward_hook(lambda _, __, y: seen[-1].append(y[0])),
    ]
    with torch.no_grad():
        for sequence, length in zip(IDS, lengths, strict=True):
            model(input_ids=sequence[None, :length])
    for hook in hooks:
        hook.remove()
    train, test = ([seen[place] for place in range(N) if (place % 4 == 3) == held_out] for held_out in (False, True))
    return held_out_r2(*(map(torch.cat, zip(*side, strict=True)) for side in (train, test)))


@pytest.mark.parametrize("make", [fnet, convbert])
@pytest.mark.parametrize("layerwise", [False, True])
def test_a_model_that_does_not_mask_padding_reads_none(make, layerwise):
    """Padding may stand anywhere behind a sequence, and other inputs of each token are cut along with the ids."""
    torch.manual_seed(0)
    model, lengths = make(), torch.arange(N) % 5 + 9
    mask = (torch.arange(17) < lengths[:, None]).long()
    inputs = {"input_ids": IDS * mask, "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    found = hl.measure(model, inputs, layerwise=layerwise)
    assert found.rows_used == int(mask.sum())
    assert found[0].r2 == pytest.approx(one_by_one(model, lengths), abs=1e-6)
    assert "does not mask padding" in found.rows.note
    # token by token the same rows, in the order of the text
    errors = hl.token_errors(model, found, blocks=0, tokens=10**6)
    assert errors["token"].tolist() == IDS[found.rows.test][mask[found.rows.test].bool()].tolist()
    assert 1 - ((1 - errors["r2"]) * errors["output"]).mean() == pytest.approx(found[0].r2, abs=1e-6)


def test_a_model_that_masks_padding_reads_it_at_once():
    mask = (torch.arange(17) < torch.arange(N)[:, None] % 5 + 9).long()
    model = BigBirdModel(BigBirdConfig(vocab_size=100, **SMALL, max_position_embeddings=32, block_size=4)).eval()
    for each in (model, LlamaModel(LlamaConfig(vocab_size=100, **SMALL)).eval()):
        rows = rows_of({"input_ids": IDS * mask, "attention_mask": mask}, each)
        assert (rows.by_length, rows.note) == (False, "")
    assert model.attention_type == "block_sparse"  # left as it was
