import ast
import sys
from itertools import islice

import pytest

from howlinear.text import documents
from howlinear.text.documents import OFFLINE, offline_documents, seeded_hash

BODY = "\n".join(f"    total = total + {i}  # a line of some length" for i in range(12))
PROSE = "What it is for, at some length. " * 10


def read(name, source):
    return list(OFFLINE[name][1](source))


def has_docstring(source):
    kinds = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(ast.get_docstring(node) is not None for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))


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


@pytest.mark.parametrize(("length", "count"), [(199, 0), (200, 1)])
def test_the_shortest_docstring(length, count):
    assert len(read("docs", f'"""{"x" * length}"""')) == count


# --- code


def test_functions_lose_their_docstring_and_nothing_else():
    source = f'def f(total):\n    """{PROSE}"""\n{BODY}\n    return total\n'
    assert read("code", source) == [f"def f(total):\n{BODY}\n    return total"]


def test_methods_are_dedented():
    method = f"def m(self, total):\n{BODY}\n    return total"
    source = "class C:\n" + "\n".join(f"    {line}" for line in method.splitlines())
    assert read("code", source) == [method]


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


def test_short_functions_are_left_out():
    assert read("code", "def f():\n    return 1\n") == []


def test_real_functions_carry_no_docstrings_of_their_own():
    functions = list(islice(offline_documents("code"), 1_000))
    assert [text for text in functions if ast.get_docstring(ast.parse(text).body[0])] == []
    assert all(text.startswith(("def ", "async def ")) and len(text) >= 200 for text in functions)


# --- cpp


def test_headers_come_in_runs_of_whole_paragraphs():
    paragraphs = [f"// paragraph {i}\n" + "int f(int);\n" * 20 for i in range(12)]
    blocks = read("cpp", "\n".join(paragraphs))
    assert all(800 <= len(block) < 1_200 for block in blocks)
    assert len(blocks) == 3
    assert blocks[0].startswith("// paragraph 0\n")
    assert blocks[1].startswith("// paragraph 4\n")


def test_headers_with_line_ends_of_windows_are_the_same():
    source = ("// paragraph\nint f(int);\n\n") * 100
    assert read("cpp", source.replace("\n", "\r\n")) == read("cpp", source)


# --- offline documents


def test_offline_documents_are_those_of_the_fixed_packages(package):
    found = list(offline_documents("docs"))
    assert sorted(text.split(":")[0] for text in found) == ["a", "b", "c"]
    assert sorted(text[:5] for text in offline_documents("code")) == ["def a", "def b", "def c"]
    assert all("int f(int);" in text for text in offline_documents("cpp"))


def test_the_seed_decides_the_order_of_files_and_nothing_else(package):
    orders = {tuple(offline_documents("docs", seed)) for seed in range(20)}
    assert len(orders) > 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert list(offline_documents("docs", 3)) == list(offline_documents("docs", 3))


def test_a_file_that_does_not_parse_is_passed_over(package):
    (package / "template.py").write_text("def {{ name }}(:\n")
    assert len(list(offline_documents("docs"))) == 3
    assert len(list(offline_documents("code"))) == 3


def test_a_parser_that_miscounts_its_depth_is_asked_again(package, monkeypatch):
    parse, asked = ast.parse, []

    def miscounting(source):
        asked.append(source)
        if asked.count(source) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=192, after=243)")
        return parse(source)

    wanted = list(offline_documents("docs"))
    monkeypatch.setattr(ast, "parse", miscounting)
    assert list(offline_documents("docs")) == wanted


def test_an_escape_that_warns_is_silent(package):
    (package / "d.py").write_text(f'def d(total):\n    """\\d {PROSE}"""\n{BODY}\n')
    assert len(list(offline_documents("docs"))) == 4


def test_a_seeded_hash_is_the_same_everywhere():
    assert seeded_hash(0, "a").hex()[:8] == "0d3b8411"  # printf '0\na' | sha256sum
    assert len({seeded_hash(seed, text) for seed in range(3) for text in "abc"}) == 9
