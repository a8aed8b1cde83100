"""The models of the segmentation job: a small model, and torchvision's models. Nothing is downloaded."""

from __future__ import annotations

import torch
from common import JobError, Refused
from torch import Tensor, nn
from torch.nn import functional
from vision import torchvision_models
from voc import CLASSES


class Segmenter(nn.Module):
    """Scales the scores of a body to the size of the images."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (n, CLASSES, h, w) for images (n, 3, h, w)."""
        scores = self.body(images)
        scores = scores["out"] if isinstance(scores, dict) else scores  # torchvision's models name their outputs
        return functional.interpolate(scores, images.shape[2:], mode="bilinear", align_corners=False)


def small(width: int = 32) -> nn.Module:
    """Return a body of the DeepLab kind, for a CPU: strides to a quarter of the size, then dilated convolutions.

    It has no BatchNorm, so each picture is processed alone. BatchNorm takes mean and variance over the pictures of a
    device, so the losses would depend on the number of devices that share a batch.
    """
    body = nn.Sequential()
    for given, stride, dilation in ((3, 2, 1), (width, 2, 1), (width, 1, 1), (width, 1, 2), (width, 1, 4)):
        convolution = nn.Conv2d(given, width, 3, stride, padding=dilation, dilation=dilation)
        nn.init.kaiming_normal_(convolution.weight)  # keeps the variance from layer to layer, since there is no norm
        body.extend([convolution, nn.ReLU()])
    return body.append(nn.Conv2d(width, CLASSES, 1))


def make_model(name: str, batch_size: int) -> nn.Module:
    """Return the model of this name.

    Raises:
        JobError: there is no torchvision.
        Refused: the name is unknown, or the batch is too small for the model.
    """
    if name == "small":
        return Segmenter(small())
    models = torchvision_models()
    if models is None:
        raise JobError(f"--model {name} needs a torchvision for torch {torch.__version__}: install it, or use small")
    names = models.list_models(module=models.segmentation)
    if name not in names:
        raise Refused(f"there is no model {name!r}: --model takes {', '.join(['small', *names])}")
    if name.startswith("deeplabv3") and batch_size == 1:
        raise Refused(f"{name} pools pictures to one pixel and normalises over the batch: use --batch_size 2 or more")
    return Segmenter(models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES))
