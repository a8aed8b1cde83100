"""Removes control characters from foreign text, so that it cannot steer a terminal or a page."""

from __future__ import annotations

import re

# Control characters: C0 except line feed and tab, DEL, C1 (ESC begins every escape sequence). All format characters of
# Unicode, which are invisible or change the direction of writing. Lone surrogates, which no stream accepts.
_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

# What a job's own line may do to a terminal is set colours (SGR). It may also hold any visible or joining character.
_STEERS_TERMINAL = re.compile("(\x1b\\[[0-9;:]*m)|[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Return the text with such characters written out: ``\x1b``, ``\u202e``. Cleaning twice changes nothing."""
    return _STEERS.sub(lambda found: _written(ord(found[0])), text)


def clean_output(text: str) -> str:
    r"""Return a line of a job for a terminal: colours pass, any other control character is written out (``\x1b``)."""
    return _STEERS_TERMINAL.sub(lambda found: found[1] or _written(ord(found[0])), text)


def _written(number: int) -> str:
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
