"""The notifiers of a job: commands on a node, or webhooks, that learn when a run ends or restarts.

The address of a webhook is often a secret. Only its scheme and host may be shown. The whole address goes to the nodes
together with the secrets, and is in no plan, record or log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from ddpctl.spec.command import REDACTED
from ddpctl.spec.values import ENV_NAME_PATTERN, AsTuple, LiteralText, Strict, make_fault, with_message

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"
_URL = rf"https?://{_HOST}([/?][!-~]*)?"
_REFERENCE = rf"\$\{{({ENV_NAME_PATTERN})\}}"
URL_RULE = "must be an http:// or https:// address of printable ASCII characters, without a user name"


def _webhook(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"{_URL}|{_REFERENCE}", value):
        raise make_fault(URL_RULE, "or write ${NAME}, with the address in the job's env_file")
    return value


Webhook = Annotated[str, Field(pattern=f"^({_URL}|{_REFERENCE})$"), BeforeValidator(_webhook)]
Argv = Annotated[
    tuple[LiteralText, ...],
    AsTuple,
    Field(min_length=1),
    with_message("must be a list", "write the program and its arguments: [mail, -s, done, me@example.org]"),
]


class Notifier(Strict):
    """A command or a webhook."""

    command: Argv | None = Field(default=None, description="A program on the node and its arguments; no shell.")
    webhook: Webhook | None = Field(
        default=None,
        description="An address that gets the outcome as JSON by POST; ${NAME} is taken from env_file.",
        repr=False,
    )

    @model_validator(mode="after")
    def _one(self) -> Notifier:
        if (self.command is None) == (self.webhook is None):
            raise make_fault("must have either command or webhook", "write {command: [mail, ...]} or {webhook: URL}")
        return self

    def resolved(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Return the notifier for the node, with every ``${NAME}`` of a webhook replaced by its value.

        Raises:
            ValueError: a secret is missing, or the result is not an address. The message holds no secret.
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


def shown_target(notifier: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved notifier without its secret part, for plans, records and logs."""
    if "webhook" not in notifier:
        return dict(notifier)
    place = urlsplit(notifier["webhook"])
    return {"webhook": f"{place.scheme}://{place.netloc}/{REDACTED}"}
