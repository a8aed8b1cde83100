"""What a rank may use."""

from __future__ import annotations

import resource

from tests.worker.node import Node


def test_ranks_get_as_many_open_files_as_the_user_may_have(node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        run = node.start("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    node.wait_state(run)
    assert node.text(run, 0).strip() == str(hard).encode()
