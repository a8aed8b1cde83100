"""Who is notified when a run ends or restarts: a command on a node, or a webhook. The address of one is often a secret.

What may be shown of it is its scheme and host; the whole travels with the secrets, and is written nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from ddpctl.spec.command import REDACTED
from ddpctl.spec.values import ENV_NAME_PATTERN, AsTuple, LiteralText, Strict, bad, says

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"
_URL = rf"https?://{_HOST}([/?][!-~]*)?"
_REFERENCE = rf"\$\{{({ENV_NAME_PATTERN})\}}"
URL_RULE = "must be an http:// or https:// address of printable ASCII characters, without a user name"


def _webhook(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"{_URL}|{_REFERENCE}", value):
        raise bad(URL_RULE, "or write ${NAME}, with the address in the job's env_file")
    return value


Webhook = Annotated[str, Field(pattern=f"^({_URL}|{_REFERENCE})$"), BeforeValidator(_webhook)]
Argv = Annotated[
    tuple[LiteralText, ...],
    AsTuple,
    Field(min_length=1),
    says("must be a list", "write the program and its arguments: [mail, -s, done, me@example.org]"),
]


class Notifier(Strict):
    """One of the two."""

    command: Argv | None = Field(default=None, description="A program on the node and its arguments; no shell.")
    webhook: Webhook | None = Field(
        default=None,
        description="An address that gets the outcome as JSON by POST; ${NAME} is taken from env_file.",
        repr=False,
    )

    @model_validator(mode="after")
    def _one(self) -> Notifier:
        if (self.command is None) == (self.webhook is None):
            raise bad("must have either command or webhook", "write {command: [mail, ...]} or {webhook: URL}")
        return self

    def resolved(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        """What the node is given: with every ``${NAME}`` of a webhook replaced by its value.

        Raises:
            ValueError: there is no such secret, or what comes out is no address. Its words hold no secret.
        """
        if self.webhook is None:
            return {"command": list(self.command or ())}
        names = re.findall(_REFERENCE, self.webhook)
        if missing := sorted(set(names) - secrets.keys()):
            raise ValueError(f"the job's env_file lacks {', '.join(missing)}")
        address = re.sub(_REFERENCE, lambda match: secrets[match[1]], self.webhook)
        if not re.fullmatch(_URL, address):
            raise ValueError(f"with the values of env_file it {URL_RULE}")
        return {"webhook": address}


def shown(notifier: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved notifier as a plan, a record or a log may show it."""
    if "webhook" not in notifier:
        return dict(notifier)
    place = urlsplit(notifier["webhook"])
    return {"webhook": f"{place.scheme}://{place.netloc}/{REDACTED}"}
