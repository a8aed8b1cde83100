"""PASCAL VOC 2012 as the segmentation job reads it: from the published layout, and from synthetic files."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

np = Lazy("numpy")
torch = Lazy("torch")
image = Lazy("PIL.Image")
voc = Lazy("voc")

LISTS = "ImageSets/Segmentation"


def publish(folder: Path, train: int = 3, val: int = 2) -> Path:
    """A small set on disk in the published layout; the folder VOC2012."""
    for path, content in voc.synthetic_files(1, train, val).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def put(folder: Path, mask: Any, name: str = "val_000000") -> None:
    """Replaces a mask."""
    mask.save(folder / "SegmentationClass" / f"{name}.png")


@pytest.mark.parametrize("above", ["VOCdevkit/VOC2012", "VOC2012", ""])
def test_the_files_on_disk_and_those_in_memory_are_read_alike(tmp_path: Path, above: str) -> None:
    publish(tmp_path / above)
    for on_disk, in_memory in zip(
        voc.load(str(tmp_path), 64, 1, None, None), voc.load("synthetic", 64, 1, 3, 2), strict=True
    ):
        assert on_disk.names == in_memory.names
        assert len(on_disk) == len(in_memory)
        for index in range(len(on_disk)):
            assert all(torch.equal(*pair) for pair in zip(on_disk[index], in_memory[index], strict=True))


def test_a_split_is_cut_to_its_first_pictures(tmp_path: Path) -> None:
    train, val = voc.load(str(publish(tmp_path)), 64, 0, 2, 1)
    assert train.names == ["train_000000", "train_000001"]
    assert val.names == ["val_000000"]


def test_a_mask_holds_classes_and_not_the_colours_of_its_palette(tmp_path: Path) -> None:
    publish(tmp_path)
    classes = np.zeros((96, 128), np.uint8)
    classes[:48, :64], classes[48:, 64:] = 20, 255
    mask = image.fromarray(classes)
    mask.putpalette([7] * 768)
    put(tmp_path, mask)
    _, target = voc.load(str(tmp_path), 128, 0, None, None)[1][0]
    assert target.dtype == torch.int64
    assert torch.equal(target[16:112], torch.from_numpy(classes).long())
    assert (target[:16] == voc.IGNORE).all()
    assert (target[112:] == voc.IGNORE).all()


def test_a_picture_is_normalised_and_stays_where_its_mask_is(tmp_path: Path) -> None:
    publish(tmp_path)
    image.new("RGB", (128, 96), (255, 0, 128)).save(tmp_path / "JPEGImages" / "val_000000.jpg", quality=100)
    pixels, target = voc.load(str(tmp_path), 160, 0, None, None)[1][0]
    assert pixels.shape == (3, 160, 160)
    assert pixels.dtype == torch.float32
    assert (pixels[:, :32] == 0).all()  # the mean, where there is no picture
    assert (pixels[:, :, :16] == 0).all()
    colour = pixels[:, 32:128, 16:144] * torch.tensor(voc.DEVIATION).view(3, 1, 1)
    colour += torch.tensor(voc.MEAN).view(3, 1, 1)
    expected = torch.tensor([255.0, 0.0, 128.0]).view(3, 1, 1).expand_as(colour)
    torch.testing.assert_close(colour * 255, expected, atol=3, rtol=0)
    assert target.shape == (160, 160)


def test_a_large_picture_is_shrunk_as_a_whole_and_its_mask_not_interpolated(tmp_path: Path) -> None:
    publish(tmp_path)
    classes = np.zeros((96, 128), np.uint8)
    classes[:, 64:] = 20
    mask = image.fromarray(classes)
    put(tmp_path, mask)
    _, target = voc.load(str(tmp_path), 32, 0, None, None)[1][0]
    assert (target[4:28, :16] == 0).all()
    assert (target[4:28, 16:] == 20).all()
    assert (target[:4] == voc.IGNORE).all()


def test_augmentation_belongs_to_the_epoch_and_the_picture(tmp_path: Path) -> None:
    one, other = (voc.load("synthetic", 64, 5, 4, 1)[0] for _ in range(2))
    first = [one[index][0] for index in range(4)]
    assert all(torch.equal(other[index][0], first[index]) for index in (3, 1, 0, 2))
    one.epoch = 1
    assert not any(torch.equal(one[index][0], first[index]) for index in range(4))


def test_validation_is_the_same_in_every_epoch() -> None:
    val = voc.load("synthetic", 64, 5, 1, 1)[1]
    first = val[0][0]
    val.epoch = 1
    assert torch.equal(val[0][0], first)


def test_a_training_picture_and_its_mask_move_together(tmp_path: Path) -> None:
    publish(tmp_path, train=1)
    classes = np.zeros((96, 128), np.uint8)
    classes[20:70, 30:100] = 1
    image.fromarray(np.where(classes[:, :, None] == 1, 255, 0).repeat(3, 2).astype(np.uint8)).save(
        tmp_path / "JPEGImages" / "train_000000.jpg", quality=100
    )
    put(tmp_path, image.fromarray(classes), "train_000000")
    train = voc.load(str(tmp_path), 96, 0, None, None)[0]
    seen = set()
    for train.epoch in range(20):
        pixels, target = train[0]
        bright = pixels.mean(dim=0) > 0.25  # half way from black to white
        counts = target != voc.IGNORE
        assert (bright == (target == 1))[counts].float().mean() > 0.97
        assert (pixels[:, ~counts] == 0).all()
        seen.add(bytes(target.numpy().tobytes()))
    assert len(seen) == 20


def test_synthetic_masks_have_objects_with_a_rim_on_a_ground() -> None:
    files = voc.synthetic_files(0, 5, 1)
    for number in range(5):
        mask = image.open(io.BytesIO(files[f"SegmentationClass/train_{number:06d}.png"]))
        values = set(np.unique(np.asarray(mask)).tolist())
        assert mask.mode == "P"
        assert {0, voc.IGNORE} < values
        assert values - {voc.IGNORE} <= set(range(voc.CLASSES))


def test_the_palette_is_that_of_voc() -> None:
    colours = voc.palette()
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 8: (64, 0, 0), 15: (192, 128, 128), 255: (224, 224, 192)}
    assert {index: tuple(colours[index].tolist()) for index in known} == known


def test_no_data_set_says_what_is_expected_where(tmp_path: Path) -> None:
    with pytest.raises(voc.JobError) as refused:
        voc.load(str(tmp_path), 64, 0, None, None)
    assert str(refused.value) == (
        f"no PASCAL VOC 2012 in {tmp_path}: VOCdevkit/VOC2012/{{JPEGImages,SegmentationClass,ImageSets/Segmentation}} "
        f"is expected there. On every node: tar -xf VOCtrainval_11-May-2012.tar -C {tmp_path}; or: --data_dir synthetic"
    )


def test_missing_files_are_found_before_the_first_step(tmp_path: Path) -> None:
    publish(tmp_path)
    for name in ("train_000001", "val_000001"):
        (tmp_path / "SegmentationClass" / f"{name}.png").unlink()
    with pytest.raises(voc.JobError, match=r"2 files are missing in \S+/SegmentationClass, train_000001.png is the f"):
        voc.load(str(tmp_path), 64, 0, None, None)


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    (publish(tmp_path) / LISTS / "val.txt").write_text("\n")
    with pytest.raises(voc.JobError, match=f"{LISTS}/val[.]txt names no picture"):
        voc.load(str(tmp_path), 64, 0, None, None)


@pytest.mark.parametrize("path", ["JPEGImages/val_000000.jpg", "SegmentationClass/val_000000.png"])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, path: str) -> None:
    file = publish(tmp_path) / path
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(voc.JobError, match=f"cannot read {path}: "):
        voc.load(str(tmp_path), 64, 0, None, None)[1][0]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (("RGB", (128, 96), 0), "the mask of val_000000 has mode RGB"),
        (("L", (96, 128), 0), r"size \(96, 128\), expected P and \(128, 96\)"),
        (("L", (128, 96), 21), "the mask of val_000000 has class 21: 0 to 20 and 255 are expected"),
    ],
    ids=["colours", "size", "class"],
)
def test_a_mask_of_another_kind_is_named(tmp_path: Path, mask: tuple[Any, ...], said: str) -> None:
    put(publish(tmp_path), image.new(*mask))
    with pytest.raises(voc.JobError, match=said):
        voc.load(str(tmp_path), 64, 0, None, None)[1][0]


def test_pillow_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(voc.JobError, match="Pillow, which is not installed here: pip install pillow"):
        voc.load("synthetic", 64, 0, 1, 1)
