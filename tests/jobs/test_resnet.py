"""The model is ResNet-18, and torchvision's but for the stem."""

from __future__ import annotations

import pytest

from .conftest import JOBS, Interpreter, ended, started

torch = pytest.importorskip("torch")
resnet = pytest.importorskip("resnet")

SAME_AS_TORCHVISION = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, torchvision, resnet
ours, theirs = resnet.ResNet18(classes=10), torchvision.models.resnet18(num_classes=10)
theirs.conv1, theirs.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
theirs.load_state_dict(ours.state_dict())
images = torch.randn(4, 3, 32, 32)
for model in ours, theirs: model.train()
assert torch.allclose(ours(images), theirs(images), atol=1e-5)
for model in ours, theirs: model.eval()
assert torch.allclose(ours(images), theirs(images), atol=1e-5)
"""


def test_images_become_scores() -> None:
    assert resnet.ResNet18(classes=10, width=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_default_is_resnet_18() -> None:
    assert sum(parameter.numel() for parameter in resnet.ResNet18().parameters()) == 11_173_962


def test_weights_and_answers_are_torchvisions(debian: Interpreter) -> None:
    done = ended(started([debian.path, "-c", SAME_AS_TORCHVISION, str(JOBS)]))
    assert done.status == 0, done.stderr
