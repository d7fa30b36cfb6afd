"""Settings of the documentation's site, which `make docs` builds without a network.

The pages of benchmarks/results are part of it: they are copied to docs/results, which git ignores, before each build.
Formulas become MathML when the site is built, so a reader's browser needs neither scripts nor fonts from elsewhere.
"""

from __future__ import annotations

import posixpath
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import jocor_fast  # noqa: E402

RESULTS = "../benchmarks/results"  # as pages of docs/ link to it

project = "jocor_fast"
author = "The jocor_fast authors"
copyright = author
version = release = jocor_fast.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_options",
]
root_doc = "index"
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
default_role = "py:obj"  # `jocor_loss` in a docstring links to it; what is no object is shown as code
nitpicky = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
# Files of results are written by scripts, some of which begin below a first heading.
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"exclude-members": "extra_repr, set_fit_request, set_score_request"}
napoleon_use_rtype = False
napoleon_preprocess_types = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"jocor_fast {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7db7dd", "color-brand-content": "#7db7dd"},
}
pygments_style = "default"
pygments_dark_style = "github-dark"


def copy_results() -> None:
    """Make the pages of benchmarks/results part of the site."""
    target = DOCS / "results"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS / RESULTS, target)


def adapt_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to benchmarks/results lead to the copies, which no table of contents lists."""
    if docname.startswith("results/") and docname != "results/README":
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"
    else:
        up = posixpath.relpath(".", posixpath.dirname(docname))
        source[0] = source[0].replace(f"]({posixpath.normpath(f'{up}/{RESULTS}')}/", f"]({up}/results/")


def write_mathml(translator: Any, node: nodes.Element) -> None:
    """Write a formula as MathML."""
    block = isinstance(node, nodes.math_block)
    translator.body.append(convert(node.astext().strip(), display="block" if block else "inline"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    copy_results()
    app.add_html_math_renderer("mathml", inline_renderers=(write_mathml, None), block_renderers=(write_mathml, None))
    app.connect("source-read", adapt_pages)
