"""Where packages come from: the inventory, then uv's variables, then pip's configuration; and no password shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.environment.origins import Origins, origins, pip_settings, without_login
from ddpctl.environment.resolve import explain_failure, resolve_error
from ddpctl.spec.inventory import Environment

PIP = {"index-url": ["https://pip/simple"], "extra-index-url": ["https://pip/extra"], "find-links": ["/pip"]}


def test_the_inventory_comes_first_then_uv_then_pip_each_on_its_own() -> None:
    said = Environment(packages=("a",), index_url="https://mine/simple")
    found = origins(said, {"UV_FIND_LINKS": "/uv"}, PIP)
    assert (found.index, found.extra, found.find_links) == ("https://mine/simple", ("https://pip/extra",), ("/uv",))
    assert origins(Environment(), {}, PIP).find_links == ("/pip",)
    assert not origins(Environment(), {}, {}).own


def test_pips_files_and_variables(tmp_path: Path) -> None:
    one, two = tmp_path / "one.conf", tmp_path / "two.conf"
    one.write_text("[global]\nindex-url = https://one\nfind-links = /a\n  /b\n")
    two.write_text("[global]\nindex-url = https://two\n[install]\nextra-index-url = https://x https://y\n")
    found = pip_settings({"PIP_FIND_LINKS": "/env"}, [one, two, tmp_path / "missing"])
    assert found == {
        "index-url": ["https://two"],
        "find-links": ["/env"],
        "extra-index-url": ["https://x", "https://y"],
    }


def test_no_index_of_pip_holds_unless_an_index_is_named() -> None:
    assert origins(Environment(), {}, {"no-index": ["true"]}).no_index
    assert not origins(Environment(index_url="https://i"), {}, {"no-index": ["true"]}).no_index
    assert not origins(Environment(), {"UV_DEFAULT_INDEX": "https://i"}, {"no-index": ["true"]}).no_index
    assert not origins(Environment(), {"UV_INDEX": "https://i"}, {"no-index": ["true"]}).no_index


def test_uvs_indexes_may_have_names() -> None:
    found = origins(Environment(), {"UV_INDEX": "mine=https://i/a=b https://j/c=d"}, PIP)
    assert (found.index, found.extra) == ("https://pip/simple", ("https://i/a=b", "https://j/c=d"))


def test_sources_reach_uv_by_variables_not_by_arguments() -> None:
    env = Origins("https://u:p@i/s", ("https://e",), ("/f", "https://g")).uv_env()
    assert env == {"UV_DEFAULT_INDEX": "https://u:p@i/s", "UV_INDEX": "https://e", "UV_FIND_LINKS": "/f,https://g"}


def test_no_password_shows() -> None:
    sources = Origins("https://bob:s3cr%40t@index/simple")
    assert "s3cr" not in repr(sources)
    assert sources.secrets() == ["s3cr%40t", "s3cr@t"]
    said = explain_failure("error: cannot fetch https://bob:s3cr%40t@index/simple/torch or s3cr@t\n", sources)
    assert "s3cr" not in said
    assert without_login("https://bob:pw@index:8080/x?y#z") == "https://index:8080/x?y#z"


@pytest.mark.parametrize(
    ("address", "login"),
    [
        ("https://index/files/a.whl", ("bob", "s3cr@t")),
        ("http://index/files/a.whl", None),
        ("https://elsewhere/files/a.whl", None),
    ],
)
def test_a_login_goes_to_its_own_server_alone(address: str, login: tuple[str, str] | None) -> None:
    assert Origins("https://bob:s3cr%40t@index/simple").login(address) == login


OFFLINE = """error: Failed to fetch: https://bob:pw@nosuch.invalid/simple/torch/
  cause: error sending request for url (https://nosuch.invalid/simple/torch/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known
"""


def test_an_index_that_cannot_be_reached_is_called_that() -> None:
    error = resolve_error(explain_failure(OFFLINE, Origins("https://bob:pw@nosuch.invalid/simple")))
    assert error.message == (
        "the package index https://nosuch.invalid cannot be reached from this machine: "
        "failed to lookup address information: Name or service not known"
    )
    assert "check the network" in (error.hint or "")
    assert "environment.packages" not in (error.hint or "")
    assert "environment.packages" in (resolve_error("error: no version of torch fits").hint or "")
