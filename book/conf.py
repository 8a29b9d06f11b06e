"""Settings of the book: no page executes anything, and none asks a network for anything."""

import re

project = "howlinear"
author = "The howlinear authors"
copyright = "The howlinear authors, MIT licence"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "tools.book.glossary",  # Sphinx runs in the project's folder
]
exclude_patterns = ["*.txt"]
nitpicky = False
suppress_warnings = ["ref.python"]  # several modules have a `fit`, and prose names it without its module

nb_execution_mode = "off"  # the pipeline has executed them
nb_ipywidgets_js = {}  # no notebook has a widget; the default would load it from elsewhere
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath", "tasklist"]
myst_heading_anchors = 3

mathjax_path = "mathjax.js"  # copied into _static: one file, with its glyphs as paths
mathjax3_config = {
    "options": {"enableMenu": False, "enableExplorer": False},
    "svg": {"fontCache": "local"},
}

autodoc_default_options = {"exclude-members": "set_score_request"}  # scikit-learn's own
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as written, no path of the machine
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = "How linear is a feed-forward block?"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = ["glossary.js"]
html_copy_source = True
html_show_sphinx = False
html_last_updated_fmt = None
html_context = {"default_mode": "auto"}  # the reader's; figures, drawn for white paper, keep a white box
html_theme_options = {
    "article_header_end": ["article-header-buttons"],
    "navbar_persistent": [],
    "navigation_with_keys": True,
    "secondary_sidebar_items": {"index": [], "explore": [], "ledger": [], "**": ["page-toc"]},
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "use_repository_button": False,
}


def setup(app):
    """Let |x| in a docstring mean an absolute value, not reStructuredText's substitution."""

    def escape(_app, _what, _name, _object, _options, lines):
        lines[:] = [re.sub(r"(?<!`)\|([^|`]+)\|", r"\\|\1\\|", line) for line in lines]

    app.connect("autodoc-process-docstring", escape)
