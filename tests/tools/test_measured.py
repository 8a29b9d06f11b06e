"""The book's tables of what benchmarks measured: each number is in the line that it belongs to."""

import re

from tools.book import measured


def lines(page):
    """The lines of a page with single spaces."""
    return re.sub(" +", " ", page).splitlines()


def test_time_and_memory_beside_those_of_others():
    memory = {"65536": {"howlinear": {"megabytes": 310.4, "times_ours": 1.0}}}
    memory["16384"] = {"howlinear": {"megabytes": 300.2, "times_ours": 1.0}}
    found = {
        "goals": {"capture": {"goal": 1.15, "measured": 1.2, "met": False}},
        "machine": {"processor": "a processor", "cores": 2, "threads": 1},
        "tokens": {"compared": 16_384, "judged": 4_096},
        "memory": memory,
        "ways": {"howlinear": {"seconds": 4.44, "times_ours": 1.0, "error": 2e-13}},
        "versions": {"torch": "2.13.0"},
    }
    page = lines(measured.benchmarks(found))
    assert "| howlinear | 4.4 | 1.0 | 300 | 1.0 | 310 | 1.0 | 2e-13 |" in page
    assert "| capture | 1.20 | 1.15 | not met |" in page


def test_the_papers_code_beside_ours():
    ids = {"model": "m", "quantity": "token ids", "ours": 14_976, "theirs": 14_976, "difference": 0}
    line = {"model": "m", "quantity": "ΔPPL", "block": 3, "blocks": 12, "ours": 2.25, "theirs": 1.25, "difference": 1.0}
    page = lines(measured.paper_code({"commit": "0123456789abcdef", "rows": [ids, line]}))
    assert "| m | token ids | | 14976 | 14976 | 0.0e+00 | |" in page
    assert "| m | ΔPPL | 3 | 2.25 | 1.25 | 1.0e+00 | 12 |" in page


def test_what_llama_cpp_makes_of_compressed_models():
    run = {"difference": 2.34e-5, "spread": 3.456, "before": 14.1, "after": 14.2, "same_tokens": True}
    rows = [
        run | {"model": "a", "form": "alike", "read_back": 0.0},
        run | {"model": "a", "form": "alike", "rounded": "Q8_0", "after": 14.567},
        {"model": "a", "form": "decilm", "refused": "FileNotFoundError: no"},
        run | {"model": "b", "form": "decilm", "read_back": "refused", "same_tokens": False},
        run | {"model": "c", "form": "alike", "read_back": 2e-6},
    ]
    found = {"commit": "0123456789abcdef", "llama_cpp_python": "1.2", "tokens": 200, "rows": rows}
    page = lines(measured.llama_cpp(found | {"machine": {"processor": "a processor"}}))
    assert "commit 012345678, in llama-cpp-python 1.2; 200 tokens" in page[0]
    assert page[4:8] == [
        "| a | alike | 2.3e-05 | 3.46 | yes | equal |",
        "| a | decilm | not converted: FileNotFoundError: no | | | |",
        "| b | decilm | 2.3e-05 | 3.46 | no | refused |",
        "| c | alike | 2.3e-05 | 3.46 | yes | 2e-06 apart |",
    ]
    assert page[-1] == "| a | alike | Q8_0 | 14.10 | 14.57 | 2.3e-05 |"


def test_a_measurement_beside_the_models_own_work():
    real = {
        "rows": 16_000,
        "ratios": {"measure": 1.881, "measure, own": 2.021, "capture": 1.302, "ceilings": 0.331, "all swaps": 18.3},
        "errors": {"r2": 3e-15, "interval": 2e-13, "perplexity": 1e-9},
    }
    random = {"rows": 8_192, "ratios": {work: 2.5 for work in real["ratios"]}, "errors": real["errors"]}
    found = {
        "machine": {"processor": "a processor", "load": 1.26},
        "smollm2-135m": real,
        "gpt2": random,
        "memory": {"16000": 3.21e9, "300000": 3.3e9},
        "start": {"seconds": {"python": 0.012, "howlinear --help": 0.224}, "ratios": {"howlinear --help": 18.67}},
    }
    page = lines(measured.ratios(found))
    assert "| the same | 2.50 (1.62) | 2.02 (1.47) | bare passes run its way |" in page
    assert "| swap costs of all blocks | 2.50 (8.53) | 18.30 (18.76) | plain evaluations |" in page
    assert "| perplexity, as a share | 1e-09 | 1e-09 |" in page
    assert "| howlinear --help | 0.22 | 18.7 |" in page
    assert "3.21 GB for 16,000 rows, 3.30 GB for 300,000 rows" in "\n".join(page)


def test_how_often_intervals_hold_the_truth():
    rows = [
        {"interval": "ΔPPL", "of": "these rows", "case": "iid", "coverage": 0.951},
        {"interval": "ΔPPL", "of": "these rows", "case": "heavy", "coverage": 0.91},
        {"interval": "R²", "of": "limit", "case": "iid", "coverage": 0.962},
    ]
    page = measured.coverage({"rows": [row | {"error": 0.013, "replicates": 300} for row in rows]})
    head, _, *cells = lines(page)
    assert head == "| interval | of | iid | heavy | replicates |"
    assert cells == [
        "| ΔPPL | these rows | 0.95 ± 0.01 | **0.91 ± 0.01** | 300 |",
        "| R² | limit | 0.96 ± 0.01 | – | 300 |",
    ]
