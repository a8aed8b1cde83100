"""Sphinx's settings: `make docs` builds the site, and every warning is an error there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate

from ddpctl import __version__

project = "ddpctl"
version = release = __version__
copyright = "the ddpctl authors, Apache-2.0"
html_title = "ddpctl"

extensions = ["myst_parser", "sphinxcontrib.asciinema"]
exclude_patterns = ["build"]
nitpicky = True

smartquotes = False  # -- stays --
myst_heading_anchors = 4  # links to headings work as they do on a code host

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}

# Nothing on the site asks another host for anything: fonts, scripts and pictures are its own.
html_css_files: list[str] = []

generate.write(Path(__file__).parent / "reference")
