from howlinear.notebook import settings


def test_a_class_still_races_what_its_predictions_ask_about():
    """The lesson asks for the first prediction, layers or own units; the third is about the readout."""
    methods = settings.read("lesson").parameters["14_compress"]["methods"]
    assert methods[0] == "own units"
    assert {"own units", "ShortGPT", "Wanda", "GRAIL on Wanda"} <= {*methods}
