"""Questions are read from whatever table a person has; a row that is none is refused by its number."""

import json

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from howlinear.errors import HowlinearError, InputError
from howlinear.text.questions import Question, read_questions

ROWS = [
    {"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1},
    {"question": "Water is", "choices": ["wet", "dry", "blue"], "answer": 0},
]
EXPECTED = [Question("2 + 2 =", ["3", "4"], 1), Question("Water is", ["wet", "dry", "blue"], 0)]


def written(folder, ending):
    path = folder / f"questions{ending}"
    if ending == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif ending == ".json":
        path.write_text(json.dumps(ROWS))
    elif ending == ".csv":
        pd.DataFrame(ROWS).assign(choices=[json.dumps(row["choices"]) for row in ROWS]).to_csv(path, index=False)
    else:
        pd.DataFrame(ROWS).to_parquet(path)
    return path


KINDS = {
    **{ending: lambda folder, ending=ending: written(folder, ending) for ending in (".jsonl", ".json", ".parquet")},
    "csv as a string": lambda folder: str(written(folder, ".csv")),
    "dicts": lambda folder: ROWS,
    "data set": lambda folder: datasets.Dataset.from_list(ROWS),
    "frame": lambda folder: pd.DataFrame(ROWS),
    "table of Arrow": lambda folder: pa.Table.from_pylist(ROWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_is_read_as_the_same(tmp_path, kind):
    assert read_questions(KINDS[kind](tmp_path)) == EXPECTED


@pytest.mark.parametrize("name", ["context", "query"])
def test_columns_have_the_usual_names(name):
    renamed = [{name: row["question"], "choices": row["choices"], "answerKey": row["answer"]} for row in ROWS]
    assert read_questions(renamed) == EXPECTED


@pytest.mark.parametrize(
    ("choices", "answer", "index"),
    [
        (["x", "y", "z"], "C", 2),
        (["x", "y", "z"], "2", 2),
        (np.array(["x", "y"]), np.int64(1), 1),
        ([f"{i}" for i in range(30)], 29, 29),
        ({"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "B", 1),
        ({"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "1", 0),  # a label, not an index
        ({"text": ["x", "y", "z"], "label": [1, 2, 3]}, 3, 2),
        ({"text": ["2", "1"], "label": ["1", "2"]}, "1", 0),
        (["1", "2"], 1, 1),  # a number is an index
        (["A", "B"], "B", 1),
    ],
)
def test_the_answer_is_a_label_or_else_an_index_or_a_letter(choices, answer, index):
    (found,) = read_questions([{"question": "q", "choices": choices, "answer": answer}])
    assert found.answer == index


@pytest.mark.parametrize(("choices", "answer"), [(["1", "2"], "1"), (["B", "A"], "B"), ([" 1", " 2"], "1")])
def test_an_answer_that_is_another_choice_than_it_stands_for_is_refused(choices, answer):
    with pytest.raises(InputError, match=r"row 0: .*number.*label"):
        read_questions([{"question": "q", "choices": choices, "answer": answer}])


BAD_CELLS = {
    "question": [None, 3, " ", "half \ud83d"],
    "choices": [
        *(None, 3, "x or y", '"x"', "[]", ["x"], ["x", 2], ["x", ""], {"x": 1, "y": 2}, {"text": ["x", "y"]}),
        *({"text": ["x", "y"], "label": ["A"]}, {"text": ["x", "y"], "label": ["A", "A"]}),
        {"text": ["x", "y"], "label": ["A", "A", "B"]},
    ],
    "answer": [None, -1, 2, "C", "x", "", True, 1.0, [0]],
}


@pytest.mark.parametrize(("column", "cell"), [(column, cell) for column, cells in BAD_CELLS.items() for cell in cells])
def test_a_row_that_is_no_question_is_named(column, cell):
    rows = [*ROWS, {"question": "q", "choices": ["x", "y"], "answer": "A"} | {column: cell}]
    with pytest.raises(InputError, match=r"(row|place) 2\b|choices of row 2\b"):
        read_questions(rows)


def test_of_two_columns_of_a_name_none_is_taken():
    table = pd.DataFrame(ROWS)
    with pytest.raises(InputError, match="one 'question'"):
        read_questions(pd.concat([table, table["question"]], axis=1))


def test_beside_a_gap_the_row_without_an_answer_is_named():
    table = pd.DataFrame({"question": "q", "choices": [["x", "y"]] * 3, "answer": [0, None, 1]})
    with pytest.raises(InputError, match=r"row 1\b"):
        read_questions(table)


@pytest.mark.parametrize("answer", ["0", "C", 0])
def test_of_labels_no_index_and_no_other_letter_is_taken(answer):
    with pytest.raises(InputError, match="row 0"):
        read_questions([{"question": "q", "choices": {"text": ["x", "y"], "label": ["k", "l"]}, "answer": answer}])


@pytest.mark.parametrize(
    "brought",
    [
        *(None, 3, [], ["q"], {"question": ["q"]}, "no/such.jsonl", "no-such-name", [{"question": "q"}]),
        *(pd.DataFrame({"question": [], "choices": [], "answer": []}), pd.DataFrame()),
    ],
)
def test_what_is_no_table_of_questions_is_one_line(brought):
    with pytest.raises(HowlinearError):
        read_questions(brought)


def test_of_splits_one_is_to_be_given():
    with pytest.raises(InputError, match=r"\['test'\]"):
        read_questions(datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)))


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.jsonl"):
        read_questions(written(tmp_path, ".jsonl").rename(tmp_path / "questions.txt"))
