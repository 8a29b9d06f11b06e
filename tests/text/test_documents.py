import ast
import gc
import sys
import textwrap

import pytest

from howlinear.text import documents
from howlinear.text.documents import OFFLINE, Document, offline_documents, seeded_hash

BODY = "\n".join(f"    total = total + {i}  # a line of some length" for i in range(12))
PROSE = "What it is for, at some length. " * 10


def read(name, source):
    return list(OFFLINE[name][1](source))


def offline_texts(name, seed=0):
    return [document.text for document in offline_documents(name, seed)]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of three modules, a header and tests, and nothing else installed."""
    root = tmp_path / "toypackage"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    for name in ("a", "b", "c"):
        (root / f"{name}.py").write_text(f'def {name}(total):\n    """{name}: {PROSE}"""\n{BODY}\n')
    (root / "tests" / "test_a.py").write_text(f'def never(total):\n    """never: {PROSE}"""\n{BODY}\n')
    (root / "x.h").write_text("// a header\nint f(int);\n\n" * 60)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(documents, "PACKAGES", ("toypackage",))
    yield root
    sys.modules.pop("toypackage", None)


# --- docs


def test_docstrings_of_modules_classes_and_functions_are_read_in_order():
    source = (
        f'"""module {PROSE}"""\nclass C:\n    """class {PROSE}"""\n    def m(self):\n        """method {PROSE}"""\n'
    )
    source += f'async def f():\n    """function {PROSE}"""\n    def inner():\n        """inner {PROSE}"""\n'
    assert [text.split()[0] for text in read("docs", source)] == ["module", "class", "method", "function"]


def test_docstrings_are_dedented_and_short_ones_left_out():
    source = f'def f():\n    """First.\n\n    {PROSE}\n    Last.\n    """\ndef g():\n    """Short."""\n'
    (text,) = read("docs", source)
    assert text == ast.get_docstring(ast.parse(source).body[0])
    assert text.splitlines()[-1] == "Last."
    assert [len(read("docs", f'"""{"x" * length}"""')) for length in (199, 200)] == [0, 1]


# --- code


FUNCTION = f"def f(total):\n{BODY}\n    return total"


@pytest.mark.parametrize(
    ("source", "functions"),
    [
        (FUNCTION.replace("\n", f'\n    """{PROSE}"""\n', 1), [FUNCTION]),  # they lose their docstring and nothing else
        (f"class C:\n{textwrap.indent(FUNCTION, '    ')}", [FUNCTION]),  # methods are dedented
        ("def f():\n    return 1\n", []),  # short ones are left out
    ],
)
def test_functions_without_their_docstrings(source, functions):
    assert read("code", source) == functions


def test_docstrings_inside_a_function_stay_with_it_and_are_no_docs():
    """What is inside a function is part of it: `docs` does not hold it, so the two domains share no text."""
    inner = f'    def inner():\n        """{PROSE}"""\n        return 1'
    source = f"def f(total):\n{BODY}\n{inner}\n    return total\n"
    (text,) = read("code", source)
    assert PROSE in text
    assert read("docs", source) == []


@pytest.mark.parametrize("separator", ["\x0c", "\x1c", "\x85", "\u2028", "\x0b"])
def test_files_whose_lines_can_be_counted_two_ways_are_left_out(separator):
    source = f'# before {separator} after\ndef f(total):\n    """{PROSE}"""\n{BODY}\n    return total\n'
    assert read("code", source) == []
    assert len(read("code", source.replace(separator, " "))) == 1


# --- cpp


def test_headers_come_in_runs_of_whole_paragraphs():
    paragraphs = [f"// paragraph {i}\n" + "int f(int);\n" * 20 for i in range(12)]
    source = "\n".join(paragraphs)
    blocks = read("cpp", source)
    assert read("cpp", source.replace("\n", "\r\n")) == blocks
    assert all(800 <= len(block) < 1_200 for block in blocks)
    assert len(blocks) == 3
    assert blocks[0].startswith("// paragraph 0\n")
    assert blocks[1].startswith("// paragraph 4\n")


# --- offline documents


def test_offline_documents_are_those_of_the_fixed_packages(package):
    found = offline_texts("docs")
    assert sorted(text.split(":")[0] for text in found) == ["a", "b", "c"]
    assert sorted(text[:5] for text in offline_texts("code")) == ["def a", "def b", "def c"]
    assert all("int f(int);" in text for text in offline_texts("cpp"))


def test_documents_know_their_file_and_are_one_group_with_those_of_its_folder(package):
    (package / "deep").mkdir()
    (package / "deep" / "d.py").write_text(f'def d(total):\n    """d: {PROSE}"""\n{BODY}\n')
    found = {document.text[0]: document for document in offline_documents("docs")}
    assert {name: document.file for name, document in found.items()} == {
        "a": "toypackage/a.py",
        "b": "toypackage/b.py",
        "c": "toypackage/c.py",
        "d": "toypackage/deep/d.py",
    }
    assert [found[name].group for name in "abcd"] == ["toypackage"] * 3 + ["toypackage/deep"]
    assert Document("one").group != Document("two").group  # of no file


def test_a_file_is_parsed_once_in_a_process(package, monkeypatch):
    first = offline_texts("docs", 0)
    monkeypatch.setattr(ast, "parse", lambda source: pytest.fail("parsed again"))
    assert sorted(offline_texts("docs", 1)) == sorted(first)


def test_the_seed_decides_the_order_of_files_and_nothing_else(package):
    orders = {tuple(offline_texts("docs", seed)) for seed in range(20)}
    assert len(orders) > 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert offline_texts("docs", 3) == offline_texts("docs", 3)


def test_a_file_that_does_not_parse_is_passed_over(package):
    (package / "template.py").write_text("def {{ name }}(:\n")
    assert len(offline_texts("docs")) == 3
    assert len(offline_texts("code")) == 3


def test_a_parser_that_miscounts_its_depth_is_asked_again(package, monkeypatch):
    parse, asked = ast.parse, []

    def miscounting(source):
        asked.append(source)
        if asked.count(source) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=192, after=243)")
        return parse(source)

    wanted = offline_texts("docs")
    documents._texts_of.cache_clear()
    monkeypatch.setattr(ast, "parse", miscounting)
    assert offline_texts("docs") == wanted
    assert asked


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_a_file_is_parsed_and_then_again(package, monkeypatch, collects):
    parse, collected = ast.parse, []

    def watched(source):
        collected.append(gc.isenabled())
        return parse(source)

    monkeypatch.setattr(ast, "parse", watched)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        offline_texts("docs")
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert collected
    assert not any(collected)


def test_an_escape_that_warns_is_silent(package):
    (package / "d.py").write_text(f'def d(total):\n    """\\d {PROSE}"""\n{BODY}\n')
    assert len(offline_texts("docs")) == 4


def test_a_seeded_hash_is_the_same_everywhere():
    assert seeded_hash(0, "a").hex()[:8] == "0d3b8411"  # printf '0\na' | sha256sum
    assert len({seeded_hash(seed, text) for seed in range(3) for text in "abc"}) == 9
