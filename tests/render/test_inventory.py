"""The inventory that `init` writes is read back as what was meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.files.inventory import load_text
from ddpctl.render.inventory import inventory_text
from ddpctl.spec.draft import Draft, JobDraft, host_entry, typed_hosts
from ddpctl.spec.host import HostEntry
from ddpctl.spec.inventory import Environment
from ddpctl.spec.job import Elastic
from tests.examples import few
from tests.files import strategies as files

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = st.lists(
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,6}|(gpu|no|n0)[0-9]{1,2}|1[0-9]", fullmatch=True).filter(
        lambda name: name != "localhost"
    ),
    min_size=1,
    max_size=6,
    unique=True,
)
KEYS = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["alice", "no", "10"]),
        "port": st.sampled_from([22, 2201]),
        "python": st.sampled_from(["~/venv/bin/python", "/opt/a b/python"]),
        "identity_file": st.just("/keys/a: b"),
        "interface": st.just("eth1"),
        "slots": st.integers(1, 8),
        "address": st.sampled_from(["10.0.0.1", "2001:db8::5"]),
        "jump": st.just("bob@bastion:22"),
        "env": files.envs,
    },
)

JOBS = st.builds(
    JobDraft,
    name=st.sampled_from(["train", "no", "1e5"]),
    script=files.paths,
    args=st.lists(TEXT, max_size=4).map(tuple),
    nproc=st.none() | st.integers(1, 8),
    port=st.none() | st.integers(1, 65535),
    env=files.envs,
    elastic=st.none() | st.just(Elastic(min_nodes=1, max_nodes=3, max_restarts=2)),
)


@given(NAMES, st.data(), st.none() | JOBS)
@few
def test_it_is_read_back_as_what_was_meant(names: list[str], data: st.DataObject, job: JobDraft | None) -> None:
    alike = data.draw(st.none() | KEYS)
    hosts = tuple(host_entry(name, **(data.draw(KEYS) if alike is None else alike)) for name in names)
    environment = data.draw(
        st.just(Environment()) | st.just(Environment(mode="managed", packages=("torch==2.13.0", "numpy[x]>=1")))
    )
    gpus = dict.fromkeys(names[1:], 8)
    text = inventory_text(Draft("lab", "exp1-7f3a", hosts, environment, job), gpus=gpus, torch="2.13.0")
    found = load_text(text.encode(), "inventory.yaml")
    assert found.names == tuple(names)
    for entry, host in zip(hosts, found.hosts, strict=True):
        meant = entry.model_dump(exclude_none=True)
        assert {key: getattr(host, key) for key in meant} == meant
    assert found.environment == environment
    assert list(found.jobs) == ([job.name] if job else [])
    if job is not None:
        spec = found.jobs[job.name]
        assert (spec.script, spec.args, dict(spec.env)) == (job.script, job.args, dict(job.env))
        assert (spec.nproc_per_node, spec.master_port) == (job.nproc or "auto", job.port or "auto")
        assert spec.elastic == job.elastic


def test_hosts_are_folded_and_what_they_share_is_said_once() -> None:
    hosts = (*typed_hosts("bob@gpu[1-4]"), host_entry("spare", user="bob", port=2201))
    lines = inventory_text(
        Draft("gpu", "exp1-7f3a", hosts), gpus=dict.fromkeys(["gpu1", "gpu2", "gpu3", "gpu4"], 8)
    ).splitlines()
    assert "  user: bob" in lines
    assert any(line.startswith("  - gpu[1-4]") and line.endswith("# 8 GPUs each") for line in lines)
    assert lines[lines.index("  - name: spare") + 1] == "    port: 2201"


def test_a_host_without_a_gpu_runs_one_process_unless_it_is_said() -> None:
    def first(host: HostEntry, nproc: int | None = None) -> str:
        job = JobDraft("train", script="train.py", nproc=nproc)
        text = inventory_text(Draft("lab", "exp1-7f3a", (host,), job=job), gpus={"a": 0})
        return next(line.partition("# ")[2] for line in text.splitlines() if line.startswith("  - "))

    assert first(host_entry("a")) == "no GPU: one process"
    assert first(host_entry("a", slots=2)) == "no GPU"
    assert first(host_entry("a", address="10.0.0.1", slots=2)) == "no GPU"
    assert first(host_entry("a"), nproc=2) == "no GPU"
