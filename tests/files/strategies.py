"""Inventories of every shape, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
filled = text.filter(lambda value: bool(value.strip()))
paths = filled.filter(lambda value: value[0] not in "-~")
absolute_paths = paths.map(lambda value: "/" + value).filter(lambda value: ".." not in value.split("/"))
words = st.from_regex(r"[A-Za-z0-9._:/@%$'\"-][A-Za-z0-9._:/@%$'\"-]{0,15}", fullmatch=True).filter(
    lambda value: not value.startswith("-")
)
logins = st.from_regex(r"[A-Za-z_][A-Za-z0-9._$-]{0,15}", fullmatch=True)
jumps = st.from_regex(r"([a-z]{1,5}@)?[a-z][a-z0-9.-]{0,8}(:[1-9][0-9]{0,3})?", fullmatch=True)
seconds = st.floats(0.001, 1e6)
counts = st.just("auto") | st.integers(1, 1024)
env_names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and not name.startswith(("DDPCTL_", "PET_"))
)
envs = st.dictionaries(env_names, text, max_size=3)


def _optional(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


host_keys = {
    "fabric_address": st.none() | st.ip_addresses().map(str),
    "interface": words,
    "port": st.integers(1, 65535),
    "user": logins,
    "jump": st.lists(jumps, min_size=1, max_size=2).map(",".join),
    "identity_file": absolute_paths,
    "slots": counts,
    "connection": st.sampled_from(["ssh", "local"]),
    "transport": st.sampled_from(["auto", "openssh", "paramiko"]),
    "python": absolute_paths | st.just("python3"),
    "base_dir": absolute_paths | st.just("~/x"),
    "env": envs,
    "labels": st.dictionaries(names, text, max_size=2),
}


def jobs(hosts: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    program = st.one_of(
        st.fixed_dictionaries({"script": paths}),
        st.fixed_dictionaries({"module": st.from_regex(r"[a-z_]+(\.[a-z_]+){0,2}", fullmatch=True)}),
    )
    rest = _optional(
        args=st.lists(text, max_size=4),
        code=st.none() | absolute_paths,
        workdir=paths,
        nodes=st.just("all") | st.integers(1, len(hosts)) | st.just(list(hosts)),
        nproc_per_node=counts,
        master=st.none() | st.sampled_from(hosts),
        master_port=st.just("auto") | st.integers(1, 65535),
        before=st.none() | filled,
        after=st.none() | filled,
        launcher=st.sampled_from(["auto", "launch", "torchrun"]),
        local_rank_arg=st.sampled_from(["auto", "none", "--local_rank", "--local-rank"]),
        rendezvous=st.sampled_from(["static", "c10d"]),
        elastic=st.none() | st.integers(1, 9).map(lambda n: {"min_nodes": n, "max_nodes": n + 1, "max_restarts": 0}),
        env=envs,
        env_file=st.none() | absolute_paths,
        requires=_optional(data=st.lists(paths, max_size=2), free_disk_gb=st.none() | seconds),
        outputs=st.lists(paths, max_size=2),
        timeouts=_optional(start=seconds, stop=seconds, silence=st.none() | seconds),
        notify=st.lists(
            st.lists(text, min_size=1, max_size=3).map(lambda argv: {"command": argv})
            | st.just({"webhook": "https://hooks.example.org/x"}),
            max_size=2,
        ),
        doctor=st.sampled_from(["off", False]) | _optional(stall=seconds),
        checkpoint=_optional(
            signal=st.sampled_from(["SIGUSR1", "SIGTERM"]),
            timeout=seconds,
            replicas=st.integers(0, 9),
            keep=st.integers(1, 9),
        ),
    )
    return st.tuples(program, rest).map(lambda pair: {**pair[0], **pair[1]})


environments = _optional(
    packages=st.lists(st.sampled_from(["torch==2.13.0", "x[a] >= 1, < 2", "y @ https://h/y-1.tar.gz"]), min_size=1),
    mode=st.just("existing"),
    torch_backend=st.sampled_from(["auto", "cpu", "cu126", "rocm6.3"]),
    index_url=st.none() | filled,
    extra_index_urls=st.lists(words, max_size=2),
    find_links=st.lists(words.map(lambda value: "https://" + value), max_size=2),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid inventory document, in long and short forms."""
    hosts = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    entries = [name if draw(st.booleans()) else {"name": name, **draw(_optional(**host_keys))} for name in hosts]
    document = draw(
        _optional(cluster=names, ssh_config=absolute_paths, defaults=_optional(**host_keys), environment=environments)
    )
    job_names = draw(st.lists(names, max_size=2, unique=True))
    return {**document, "hosts": entries, "jobs": {name: draw(jobs(hosts)) for name in job_names}}
