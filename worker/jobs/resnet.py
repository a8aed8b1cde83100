"""ResNet-18 for 32x32 images, in plain torch, and torchvision's ResNets with the same stem.

The layers and their names match torchvision's ``resnet18``, so the weights fit in both directions, except for the stem:
a 3x3 convolution of stride 1 without pooling, as in the ResNet paper for CIFAR-10. ResNet-18 does not need torchvision:
its import costs a second in every process and fails beside a torch built for other hardware, and its ResNet-18 has no
narrow form.
"""

from __future__ import annotations

import torch
from common import Refused
from torch import Tensor, nn
from torch.nn import functional
from vision import torchvision_models

BUILTIN = "builtin"
FULL_WIDTH = 64  # channels of ResNet-18's first stage


def make(arch: str, classes: int, width: int) -> nn.Module:
    """Return a ResNet for images of 32x32 pixels: the class below, or torchvision's network of this name.

    torchvision's networks are made for 224x224. Their stem leaves a quarter of each side, so a 32x32 image would be a
    single pixel in the last stage. Their stem is replaced by the stem of the ResNet paper (He et al. 2015, 4.2): 3x3,
    stride 1, no pooling.

    Raises:
        Refused: there is no such network, or no torchvision.
    """
    if arch == BUILTIN:
        return ResNet18(classes, width)
    if width != FULL_WIDTH:
        raise Refused(f"--width {width} is for --arch {BUILTIN} alone: leave one of them out")
    models = torchvision_models()
    if models is None:
        raise Refused(f"--arch {arch} needs torchvision: pip install torchvision, or use --arch {BUILTIN}")
    names = [name for name in models.resnet.__all__ if name.islower()]
    if arch not in names:
        raise Refused(f"there is no --arch {arch}: choose {BUILTIN}, {', '.join(names)}")
    model: nn.Module = getattr(models, arch)(num_classes=classes)
    model.conv1 = nn.Conv2d(3, FULL_WIDTH, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None if inputs == outputs else projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths."""
        around = x if self.downsample is None else self.downsample(x)
        through = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(through)) + around)


class ResNet18(nn.Module):
    """Images (n, 3, 32, 32) to scores (n, classes). The first stage has ``width`` channels; ResNet-18 has 64."""

    def __init__(self, classes: int = 10, width: int = FULL_WIDTH) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return scores before the softmax."""
        x = functional.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.as_tensor(self.fc(x.mean(dim=(2, 3))))


def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return two blocks. The first block may halve the image."""
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return the shortcut of a block that changes the shape."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
