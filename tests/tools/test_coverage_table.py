from tools.book.coverage import table


def row(interval, case, held, of="these rows"):
    return {"interval": interval, "case": case, "of": of, "coverage": held, "error": 0.013, "replicates": 300}


def test_a_row_a_kind_and_truth_and_a_column_a_case():
    rows = [row("ΔPPL", "iid", 0.951), row("ΔPPL", "heavy", 0.91), row("R²", "iid", 0.962, of="limit")]
    head, _, *lines = table({"rows": rows}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    assert cells == [
        ["interval", "of", "iid", "heavy", "replicates"],
        ["ΔPPL", "these rows", "0.95 ± 0.01", "**0.91 ± 0.01**", "300"],
        ["R²", "limit", "0.96 ± 0.01", "–", "300"],
    ]
