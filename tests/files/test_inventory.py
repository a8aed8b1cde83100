"""Reading inventory files: what is refused, where the error points, and what is offered instead."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.inventory import find_inventory, load_inventory, load_text
from ddpctl.files.records import save_run
from ddpctl.spec.inventory import Inventory
from tests.examples import fewest
from tests.files.strategies import documents

JOB = "hosts: [a, b]\njobs:\n  train:\n    script: t.py\n"


def refused(text: str | bytes) -> InventoryError:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(InventoryError) as caught:
        load_text(data, "c.yaml")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # keys
        ("hosts: [a]\nclustr: x\n", "c.yaml:2:1: clustr: is not a known key; did you mean cluster?"),
        ("hosts:\n  - name: a\n    prot: 22\n", "c.yaml:3:5: hosts[0].prot: is not a known key; did you mean port?"),
        (JOB + "    nproc: 2\n", "c.yaml:5:5: jobs.train.nproc: is not a known key; did you mean nproc_per_node?"),
        (
            JOB + "    timeouts: {stopp: 2}\n",
            "c.yaml:5:16: jobs.train.timeouts.stopp: is not a known key; did you mean stop?",
        ),
        (JOB + "    keep_runs: -1\n", "c.yaml:5:16: jobs.train.keep_runs: must be null or a whole number from 0"),
        ("hosts: [a]\nhosts: [b]\n", "c.yaml:2:1: hosts: is given twice (first in line 1); remove one of the two"),
        (JOB + "    env: {A: x, A: y}\n", "c.yaml:5:17: jobs.train.env.A: is given twice (first in line 5)"),
        ("cluster: lab\n", "c.yaml:1:1: hosts: is missing; add it"),
        ("hosts: [{slots: 2}]\n", "c.yaml:1:9: hosts[0].name: is missing; add it"),
        ("hosts: [a]\n10: x\n", "c.yaml:2:1: the key '10' is not text; quote it"),
        ("hosts: [a]\n? [x]\n: y\n", "c.yaml:2:3: a key must be text"),
        ("hosts: [a]\njobs: {a b: {script: x}}\n", "c.yaml:2:8: jobs.a b: is not a valid name"),
        (JOB + "    env: {A-B: x}\n", "c.yaml:5:11: jobs.train.env.A-B: is not a name for an environment variable"),
        # hosts
        ("hosts:\n  - a\n  - a\n", "c.yaml:3:5: hosts[1].name: host a is listed twice; remove one of the two"),
        ("hosts:\n  - a1\n  - name: a[1-2]\n", "c.yaml:3:11: hosts[1].name: host a1 is listed twice"),
        ("hosts: []\n", "c.yaml:1:1: hosts: is empty; add at least one host"),
        ("hosts:\n", "c.yaml:1:1: hosts: has no value; give it one, or remove the key"),
        ("hosts: a\n", "c.yaml:1:8: hosts: must be a list"),
        ("hosts: ['']\n", "c.yaml:1:9: hosts[0].name: is empty"),
        ("hosts: [[a]]\n", "c.yaml:1:9: hosts[0]: must be a host's name or a mapping with a name"),
        ("hosts: [{name: a, gpus: 4}]\n", "c.yaml:1:19: hosts[0].gpus: is not a known key; did you mean slots?"),
        ("defaults: {gpus: 4}\nhosts: [a]\n", "c.yaml:1:12: defaults.gpus: is not a known key; did you mean slots?"),
        (JOB + "    gpus: 4\n", "c.yaml:5:5: jobs.train.gpus: is not a known key; did you mean nproc_per_node?"),
        (JOB + "    nnodes: 2\n", "c.yaml:5:5: jobs.train.nnodes: is not a known key; did you mean nodes?"),
        (
            "hosts: [{name: a, hostname: b}]\n",
            "c.yaml:1:19: hosts[0].hostname: is not a known key; did you mean address?",
        ),
        ("hosts: [alice@gpu1]\n", "c.yaml:1:9: hosts[0].name: is not a valid host name"),
        ("hosts: [alice@gpu1]\n", "63 at most; write {name: gpu1, user: alice}"),
        ("hosts:\n  - gpu1:2201\n", "63 at most; write {name: gpu1, port: 2201}"),
        ("hosts: [{name: 'bob@g1:22'}]\n", "hosts[0].name: is not a valid host name"),
        ("hosts: [{name: 'bob@g1:22'}]\n", "63 at most; write {name: g1, user: bob, port: 22}"),
        ("hosts: ['bob@g[0-3]']\n", "write {name: 'g[0-3]', user: bob}"),
        ("hosts: ['g[0-3]:2201']\n", "write {name: 'g[0-3]', port: 2201}"),
        ("hosts: ['@all']\n", "c.yaml:1:9: hosts[0].name: is not a valid host name"),
        # characters that ssh_config would put into a command line
        ("hosts: [{name: a, address: x$(id)}]\n", "c.yaml:1:28: hosts[0].address: must not hold $ ( )"),
        ("hosts: [{name: a, user: 'x;id'}]\n", "c.yaml:1:25: hosts[0].user: must not hold ;"),
        ("hosts: [{name: a, jump: 'u@g,x|y'}]\n", "c.yaml:1:25: hosts[0].jump: must not hold |"),
        ("hosts: [{name: a, jump: '`id`@g'}]\n", "c.yaml:1:25: hosts[0].jump: must not hold `"),
        # values
        (
            JOB + "    launcher: torchrn\n",
            "c.yaml:5:15: jobs.train.launcher: must be one of: auto, launch, torchrun; did you mean torchrun?",
        ),
        (
            "hosts: [{name: a, connection: locl}]\n",
            "hosts[0].connection: must be one of: ssh, local; did you mean local?",
        ),
        (JOB + '    launcher: "\\ud800"\n', "c.yaml:5:15: jobs.train.launcher: must be one of: auto, launch, torchrun"),
        (JOB + "    env: [A]\n", "c.yaml:5:5: jobs.train.env: must be a mapping"),
        (
            JOB + "    nproc_per_node: lots\n",
            "c.yaml:5:21: jobs.train.nproc_per_node: must be auto or a whole number from 1 to 1024",
        ),
        (
            JOB + "    timeouts:\n      start: soon\n",
            "c.yaml:6:14: jobs.train.timeouts.start: must be a number of seconds",
        ),
        (JOB + "    timeouts: 5\n", "c.yaml:5:15: jobs.train.timeouts: must be a mapping"),
        (
            JOB + "    module: a.b\n",
            "c.yaml:3:3: jobs.train: both script and module are set; write exactly one of the two",
        ),
        (JOB + "    master: c\n", "c.yaml:5:13: jobs.train.master: no host is named c; valid: a, b"),
        (JOB + "    spares: 1\n", "jobs.train: spares is set, and restarts is not; write restarts: 3"),
        (JOB + "    nodes: 3\n", "c.yaml:5:12: jobs.train.nodes: 3 nodes, but the inventory has 2 hosts"),
        (JOB + "    env: {RANK: x}\n", "c.yaml:5:11: jobs.train.env.RANK: is set by the launcher"),
        (JOB + "    env:\n", "c.yaml:5:5: jobs.train.env: has no value"),
        (JOB + "    args: [a, null]\n", "c.yaml:5:15: jobs.train.args[1]: has no value"),
        ("hosts: [{name: a, python: bin/python}]\n", "c.yaml:1:27: hosts[0].python: is a relative path"),
        ("hosts: [{name: a, base_dir: x}]\n", "c.yaml:1:29: hosts[0].base_dir: must be absolute or start with ~/"),
        (
            "hosts: [{name: a, identity_file: ~nobody-there/x}]\n",
            "hosts[0].identity_file: starts with the home of a user",
        ),
        # YAML that means different things to different readers
        ("hosts: [a]\ncluster: no\n", "c.yaml:2:10: cluster: 'no' reads as a boolean"),
        ("hosts: [a]\nenvironment: {build: no}\n", "environment.build: 'no' reads as a boolean"),
        ("hosts: [a]\nenvironment: {build: 1}\n", "c.yaml:2:22: environment.build: must be true or false"),
        ("hosts: [a]\nenvironment: {project: .}\n", "environment: project is set, but nothing is installed"),
        (
            "hosts: [a]\nenvironment: {mode: managed, project: ., requirements: pylock.x.toml}\n",
            "environment: requirements is a lock, and project cannot add to one; put the project into the lock",
        ),
        (JOB + "    args: [a, 010]\n", "c.yaml:5:15: jobs.train.args[1]: '010' reads as a number"),
        (JOB + "    args: [22:22]\n", "c.yaml:5:12: jobs.train.args[0]: '22:22' reads as a number in base 60"),
        ("hosts: [a]\ncluster: 10\n", "c.yaml:2:10: cluster: must be text; quote it"),
        ("hosts: [&x a, *x]\n", "c.yaml:1:9: hosts[0]: YAML anchors are not allowed"),
        ("hosts: [a, *x]\n", "c.yaml:1:12: hosts[1]: YAML aliases are not allowed"),
        ("hosts: [a]\n<<: {cluster: x}\n", "c.yaml:2:1: '<<' reads as a merge key"),
        ("hosts: [!!str a]\n", "c.yaml:1:9: hosts[0]: YAML tags are not allowed"),
        ("hosts: [! a]\n", "c.yaml:1:9: hosts[0]: YAML tags are not allowed"),
        ("hosts: !!python/object/apply:os.system [x]\n", "c.yaml:1:8: hosts: YAML tags are not allowed"),
        ("hosts: [a]\n---\nhosts: [b]\n", "c.yaml:2:1: a second YAML document starts here"),
        ("%YAML 1.1\n---\nhosts: [a]\n", "YAML directives are not allowed"),
        ("%TAG ! tag:x,2000:\n---\nhosts: [a]\n", "YAML directives are not allowed"),
        # text that is no YAML
        ("hosts: [a\n", "c.yaml:2:1: hosts[1]: is not valid YAML"),
        ("hosts: [a]\n\tcluster: x\n", "c.yaml:2:1: is indented with a tab; indent with spaces"),
        ("hosts: [a]\n  \tcluster: x\n", "c.yaml:2:3: is indented with a tab"),
        (b"hosts: [a]\ncluster: \xff\n", "c.yaml:2:10: is not UTF-8 text"),
        (b"\xef\xbb\xbfhosts: [a]\ncluster: \xff\n", "c.yaml:2:10: is not UTF-8 text"),
        ("hosts: [a]\n\ufeffcluster: c\n", "c.yaml:2:1: holds a control character or a byte order mark"),
        ("hosts: [a]\ncluster: \0\n", "c.yaml:2:10: holds a control character"),
        ('hosts: [a]\njobs: {j: {script: "a\\0"}}\n', "jobs.j.script: holds a NUL character"),
        (
            'hosts: [a]\njobs: {j: {script: "\\ud800"}}\n',
            "jobs.j.script: is not valid Unicode (half of a surrogate pair)",
        ),
        ("", "c.yaml:1:1: is not a mapping with hosts"),
        ("- a\n", "c.yaml:1:1: is not a mapping with hosts"),
        ("[" * 100000, "is nested more than 16 levels deep"),
        ("{a: " * 1000, "is nested more than 16 levels deep"),
        ("# x\n" * 300000, "is 1200000 bytes long; 1048576 is the limit"),
    ],
)
def test_every_fault_has_a_place_a_path_and_a_next_step(text: str | bytes, words: str) -> None:
    assert words in str(refused(text))


LOOK_ALIKES = (
    *("y", "Y", "yes", "Yes", "YES", "n", "N", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF"),
    *("true", "True", "TRUE", "false", "False", "FALSE", "nULL", "="),
    *("010", "0o17", "0x1F", "0b101", "1_000", "+12", "1.", ".5", "-.5", "1_0.5", ".inf", "-.Inf", ".NaN"),
    *("22:22", "190:20:30.15", "2024-01-01", "2024-1-1T10:00:00Z"),
)


@pytest.mark.parametrize("value", LOOK_ALIKES)
def test_look_alikes_are_refused_and_accepted_in_quotes(value: str) -> None:
    argument = JOB + "    args:\n      - {}\n"
    assert "quote it" in str(refused(argument.format(value)))
    assert load_text(argument.format(f'"{value}"').encode(), "c.yaml").job().args == (value,)


@pytest.mark.parametrize("place", ["hosts: [{}]\n", "hosts: [a]\ncluster: {}\n"])
def test_look_alikes_are_refused_in_every_place(place: str) -> None:
    assert [value for value in LOOK_ALIKES if "quote it" not in str(refused(place.format(value)))] == []


@pytest.mark.parametrize("value", ["off", "'off'", '"off"', "false", "null"])
def test_a_jobs_doctor_is_off_in_every_reading(value: str) -> None:
    assert load_text((JOB + f"    doctor: {value}\n").encode(), "c.yaml").job().doctor is None


@pytest.mark.parametrize("value", ["Off", "OFF", "no", "on", "true", "0", "''", "[off]", "{stall: off}", "{stall: }"])
def test_a_jobs_doctor_is_off_by_no_other_word(value: str) -> None:
    assert "jobs.train.doctor" in str(refused(JOB + f"    doctor: {value}\n"))


@pytest.mark.parametrize(
    "text", ["defaults: {env: {doctor: off}}\n", JOB.replace("train", "doctor") + "    args: [off]\n"]
)
def test_off_is_refused_everywhere_else(text: str) -> None:
    assert "quote it" in str(refused(text))


@pytest.mark.parametrize(
    "value", ["10", "0", "-3", "0.1", "1e-3", "1.50", "-0", "1E+9", "123456789012345678901234567890"]
)
def test_a_plain_number_is_an_argument_as_it_was_written(value: str) -> None:
    job = load_text((JOB + f"    args: [--x, {value}]\n    env: {{A: {value}}}\n").encode(), "c.yaml").job()
    assert job.args == ("--x", value)
    assert job.env == {"A": value}


@pytest.mark.parametrize(
    "value", ["a b", "$(id)", ";", "it's", '"', "*", "-x", "Übung", "{x}", "# no comment", "\t", "\r", "\x1b[0m"]
)
def test_hostile_text_arrives_as_it_is(value: str) -> None:
    job = load_text((JOB + f"    args: [{json.dumps(value)}]\n").encode(), "c.yaml").job()
    assert job.args == (value,)


def test_all_faults_are_there_misspelt_keys_first() -> None:
    error = refused("cluster: a b\nhosts: [{name: a, prot: 1, xyz: 2}]\n")
    assert (error.line, error.path) == (2, "hosts[0].prot")
    assert [(one.line, one.path) for one in error.further] == [(1, "cluster"), (2, "hosts[0].xyz")]


def test_a_misspelt_key_explains_the_one_that_is_missing() -> None:
    error = refused("cluster: lab\nhots: [a]\n")
    assert "did you mean hosts?" in str(error)
    assert (error.line, error.column, error.path) == (2, 1, "hots")
    assert ["is missing" in str(one) for one in error.further] == [True]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("torch=2", "torch==2"),
        ("torch = 2.13.0", "torch==2.13.0"),
        ("torch 2.13.0", "torch==2.13.0"),  # the example of the hint
        ("torch=>2", "torch>=2.4"),
        ("-r more.txt", "torch>=2.4"),
    ],
)
def test_what_is_no_requirement_is_refused_where_it_stands(text: str, hint: str) -> None:
    error = refused(f"hosts: [a]\nenvironment:\n  mode: managed\n  packages: [numpy, '{text}']\n")
    assert (error.line, error.column) == (4, 21)
    assert hint in str(error)


def test_a_value_below_env_is_never_repeated() -> None:
    for value in (
        "hunter2hunter2: x",
        "[hunter2hunter2]",
        "010203040506",
        "!hunter2hunter2 x",
        "&hunter2hunter2 x",
        '"hunter2hunter2\\q"',
    ):
        text = str(refused(JOB + f"    env:\n      TOKEN: {value}\n"))
        assert "hunter2" not in text, value
        assert "010203" not in text, value


def test_a_byte_order_mark_is_fine_at_the_beginning() -> None:
    assert load_text(b"\xef\xbb\xbfhosts: [a]\n", "c.yaml").names == ("a",)


def test_crlf_and_comments_are_fine() -> None:
    assert load_text(b"# x\r\nhosts:\r\n  - a # y\r\n", "c.yaml").names == ("a",)


def test_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("hosts: [a]\n")
    with pytest.raises(InventoryError, match=r"file not found; did you mean .*cluster\.yaml"):
        load_inventory(tmp_path / "clustr.yaml")
    with pytest.raises(InventoryError, match="cannot be read: Is a directory"):
        load_inventory(tmp_path)
    assert load_inventory(tmp_path / "cluster.yaml").file == str(tmp_path / "cluster.yaml")


def test_paths_of_this_machine_count_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "sub").mkdir()
    (tmp_path / "venv").mkdir()
    file = tmp_path / "sub" / "c.yaml"
    file.write_text(
        "ssh_config: conf\n"
        "hosts:\n"
        "  - {name: a, connection: local, python: ../venv/python, identity_file: ~/key}\n"
        "  - {name: b, python: ~/venv/bin/python}\n"
        "environment: {requirements: r.txt, find_links: [wheels, 'https://x/y', ~/w]}\n"
        "jobs: {j: {script: t.py, env_file: .env, workdir: ~/x}, k: {script: t.py, code: null}}\n"
    )
    inventory = load_inventory(file)
    base = str(tmp_path / "sub")
    assert (inventory.ssh_config, inventory.known_hosts) == (f"{base}/conf", None)
    assert inventory.host("a").python == str(tmp_path / "venv" / "python")
    assert inventory.host("a").address == "localhost"
    assert inventory.host("a").identity_file == "/home/me/key"
    assert inventory.host("b").python == "~/venv/bin/python"
    assert inventory.environment.requirements == f"{base}/r.txt"
    assert inventory.environment.find_links == (f"{base}/wheels", "https://x/y", "/home/me/w")
    assert (inventory.job("j").code, inventory.job("j").env_file) == (base, f"{base}/.env")
    assert inventory.job("j").workdir == "~/x"
    assert inventory.job("k").code is None


def test_a_link_to_an_interpreter_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to("/usr/bin/python3")
    (tmp_path / "inv").mkdir()
    (tmp_path / "inv" / "c.yaml").write_text("hosts: [{name: a, connection: local, python: ../venv/python}]\n")
    assert load_inventory(tmp_path / "inv" / "c.yaml").hosts[0].python == str(tmp_path / "venv" / "python")


def quoted(document: Any) -> bytes:
    """JSON is YAML with every text in quotes."""
    return json.dumps(document).encode()


@pytest.mark.slow
@given(documents())
@fewest
def test_a_loaded_inventory_written_out_loads_back_to_the_same(document: dict[str, Any]) -> None:
    first = load_text(quoted(document), "/x/c.yaml")
    written = first.model_dump(mode="json", exclude={"file", "jobs"})
    written["jobs"] = {name: job.model_dump(mode="json", exclude={"name"}) for name, job in first.jobs.items()}
    assert load_text(quoted(written), "/x/c.yaml") == first


PIECES = st.sampled_from(
    [
        *(
            "hosts:",
            "jobs:",
            "script:",
            "t.py",
            "args:",
            "env:",
            "a",
            "010",
            "no",
            "1",
            "null",
            " ",
            "  ",
            "\n",
            "\n  ",
        ),
        *("[", "]", "{", "}", "- ", ",", ": ", "? ", "&", "*", "!", "|", ">", "'", '"', "#", "%", "@", "`", "\t", "\\"),
        *("---\n", "...\n", "<<: ", "!!str ", "&a ", "*a ", "\n%YAML 1.1\n", "\ud800"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join) | st.text())
def test_any_text_gives_an_inventory_or_an_inventory_error(text: str) -> None:
    for data in (text.encode("utf-8", "surrogatepass"), ("hosts: [a]\n" + text).encode("utf-8", "surrogatepass")):
        try:
            assert isinstance(load_text(data, "c.yaml"), Inventory)
        except InventoryError as error:
            fault = str(error)
        else:
            continue
        assert re.match(r"c\.yaml:", fault), fault


@given(st.binary(max_size=60))
def test_any_bytes_give_an_inventory_or_an_inventory_error(data: bytes) -> None:
    with contextlib.suppress(InventoryError):
        assert load_text(data, "c.yaml").hosts


@given(documents(), st.data())
@fewest
def test_any_value_in_any_place_gives_an_inventory_or_an_inventory_error(
    document: dict[str, Any], data: st.DataObject
) -> None:
    empty: st.SearchStrategy[Any] = st.sampled_from([None, [], {}, [[]]])
    junk = empty | st.booleans() | st.integers() | st.text(max_size=3)
    node: Any = document
    while isinstance(node, (dict, list)) and node:
        key = data.draw(st.sampled_from(sorted(node)) if isinstance(node, dict) else st.integers(0, len(node) - 1))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            node[key] = data.draw(junk)
            break
        node = node[key]
    fault = "c.yaml:1:"
    try:
        load_text(quoted(document), "c.yaml")
    except InventoryError as error:
        fault = str(error)
    assert fault.startswith("c.yaml:1:")


def test_where_the_inventory_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DDPCTL_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no ./inventory.yaml"):
        find_inventory(job="train")
    (tmp_path / "old.yaml").touch()
    save_run("train", "train-1", {"inventory": str(tmp_path / "old.yaml")})
    assert find_inventory(job="train") == tmp_path / "old.yaml"
    assert find_inventory(job="train-1") == tmp_path / "old.yaml"
    save_run("eval", "train-2", {"inventory": str(tmp_path / "old.yaml")})
    assert find_inventory(job="trai") == tmp_path / "old.yaml"  # which run it is, the nodes say
    assert find_inventory(recorded=True) == tmp_path / "old.yaml"
    (tmp_path / "new.yaml").touch()
    save_run("eval", "train-3", {"inventory": str(tmp_path / "new.yaml")})
    with pytest.raises(UsageError, match=f"eval was started from 2 folders: {tmp_path}, {tmp_path}"):
        find_inventory(job="eval")
    with pytest.raises(UsageError, match="beginning of 3 run ids: train-3, train-2, train-1"):
        find_inventory(job="trai")
    with pytest.raises(UsageError):
        find_inventory()
    with pytest.raises(UsageError, match=f"with 2 inventories: {tmp_path}/new.yaml, {tmp_path}/old.yaml"):
        find_inventory(recorded=True)
    (tmp_path / "inventory.yaml").touch()
    assert find_inventory(job="train") == Path("inventory.yaml")
    monkeypatch.setenv("DDPCTL_INVENTORY", "env.yaml")
    assert find_inventory() == Path("env.yaml")
    assert find_inventory(None, Path("option.yaml")) == Path("option.yaml")
    assert find_inventory(Path("argument.yaml")) == Path("argument.yaml")
    with pytest.raises(UsageError, match="two inventories"):
        find_inventory(Path("a.yaml"), Path("b.yaml"))


@pytest.mark.parametrize(
    ("text", "project"), [("", "my-exp"), ("project: exp1-7f3a\n", "exp1-7f3a")], ids=["folder", "key"]
)
def test_the_project_is_the_folders_name_unless_the_file_names_it(text: str, project: str, tmp_path: Path) -> None:
    folder = tmp_path / "my exp"
    folder.mkdir()
    (folder / "i.yaml").write_text(f"cluster: lab\n{text}hosts: [a]\n")
    (tmp_path / "link").symlink_to(folder)
    for file in (folder / "i.yaml", tmp_path / "link" / "i.yaml"):
        found = load_inventory(file)
        assert found.project == project
        assert found.job_id("train") == ("lab", project, "train")


def test_a_project_is_a_name() -> None:
    with pytest.raises(InventoryError, match="project: is not a valid name"):
        load_text(b"project: a b\nhosts: [a]\n", "i.yaml")
