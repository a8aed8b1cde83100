"""The model is ResNet-18, and torchvision's but for the stem."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.lazy import Lazy

from .conftest import JOBS, Interpreter, ended, started

torch = Lazy("torch")
resnet = Lazy("resnet")
common = Lazy("common")

SAME_AS_TORCHVISION = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, torchvision, resnet
ours, theirs = resnet.make("builtin", 10, 64), resnet.make("resnet18", 10, 64)
assert type(theirs) is torchvision.models.ResNet
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


def test_torchvisions_networks_need_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resnet, "torchvision_models", lambda: None)
    said = "--arch resnet50 needs torchvision: pip install torchvision, or use --arch builtin"
    with pytest.raises(common.Refused, match=said):
        resnet.make("resnet50", 10, 64)
    assert isinstance(resnet.make("builtin", 10, 4), resnet.ResNet18)


def test_other_networks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    models = SimpleNamespace(resnet=SimpleNamespace(__all__=["ResNet", "ResNet18_Weights", "resnet18"]))
    monkeypatch.setattr(resnet, "torchvision_models", lambda: models)
    with pytest.raises(common.Refused, match=r"there is no --arch ResNet18_Weights: choose builtin, resnet18$"):
        resnet.make("ResNet18_Weights", 10, 64)
    with pytest.raises(common.Refused, match="--width 8 is for --arch builtin alone"):
        resnet.make("resnet18", 10, 8)
