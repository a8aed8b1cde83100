"""The frame of every HTML page that ddpctl writes: it needs nothing else, no script and no request."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ddpctl.render.clean import clean
from ddpctl.render.style import CSS


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document around these parts, which are markup already; the title is escaped here."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(clean(title))}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + clean("\n".join(parts))
        + "\n</main>\n</body>\n</html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "hosts") -> str:
    """A table of plain texts, which are escaped here."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
