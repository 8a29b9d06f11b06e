import pandas as pd

from howlinear.files import paths
from howlinear.files.tables import describe_column
from tools.book.data import page


def test_every_column_on_record_is_explained_in_the_section_of_its_notebook():
    sections = dict(part.split("\n\n", 1) for part in page().removeprefix("## ").split("\n## "))
    common = sections["In several notebooks"]
    for file in sorted(paths.results("minis").glob("*/*.csv")):
        explained = sections.get(file.parent.name, "") + common
        for name in pd.read_csv(file, nrows=0).columns:
            meaning = describe_column(file.parent.name, file.stem, name).meaning
            assert meaning.replace("|", "\\|") in explained, (file.parent.name, file.stem, name)
