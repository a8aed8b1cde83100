"""What a plain (unquoted) YAML scalar means: text, a plain number, ``true``, ``false`` or nothing; whatever readers
disagree on is refused.

``no`` is False to a YAML 1.1 reader and text to a YAML 1.2 one, ``010`` is 8, 10 or text, ``22:22`` is 1342 or text.
Nobody who writes such a thing can know what they get, so they are asked to quote it.
"""

from __future__ import annotations

import re

from ddpctl.spec.values import Number

Scalar = str | int | bool | Number | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {"true": True, "false": False}  # so to every reader
_INT = re.compile(r"-?[1-9][0-9]{0,17}|0")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BOOLEAN = re.compile(r"(?i:y|yes|n|no|on|off|true|false)")
_LOOKALIKES = (
    ("a boolean", _BOOLEAN),
    ("a number", re.compile(r"[-+]?0[0-7_]+|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[oO][0-7_]+|[-+]?0[bB][01_]+")),
    ("a number", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")),
    ("a number", re.compile(r"[-+]?\.[0-9_]+([eE][-+]?[0-9]+)?")),
    ("a number", re.compile(r"(?i:[-+]?\.(inf|nan))")),
    ("a number in base 60", re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt\s].*)?")),
    ("a null", re.compile(r"(?i:null)")),
    ("a default value", re.compile(r"=")),
    ("a merge key", re.compile(r"<<")),
)


class LookAlike(ValueError):
    """A plain scalar that YAML readers disagree on; the message says what else it could be, ``hint`` what to write."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"reads as {kind} in some YAML readers and as text in others")
        number = "number" in kind
        self.hint = "quote it to make it text, or write a plain decimal number" if number else "quote it"


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar; a number remembers how it was written.

    Raises:
        LookAlike: some reader would take it for something else.
    """
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _INT.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Number(text)
    for kind, pattern in _LOOKALIKES:
        if pattern.fullmatch(text):
            raise LookAlike(kind)
    return text
