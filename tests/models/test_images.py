"""Images to patches: sizes, pixels and patches equal those of Pillow and transformers; bad images are refused."""

import dataclasses
import importlib.util
import io

import numpy as np
import pytest

from models import images, registry
from models.config import VisionConfig
from models.tokenizers import ByteTokenizer
from tests.models.tiny_models import quick_jit

QWEN = registry.get("qwen2.5-vl-3b").config
VISION = VisionConfig(1, 16, 2, 16, image_id=263, start_id=261, end_id=262)
CFG = dataclasses.replace(registry.get("tiny").config, vision=VISION)
PROCESSOR = images.processor(QWEN)
SIZES = [((40, 31), (28, 56)), ((9, 120), (56, 84)), ((60, 40), (28, 28)), ((20, 31), (28, 56)), ((1, 1), (56, 56))]


def random_image(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def png(image, mode: str | None = None) -> bytes:
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (extra vision)")
    file = io.BytesIO()
    made = Image.fromarray(image)
    (made if mode is None else made.convert(mode)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.quick
@pytest.mark.parametrize(
    "size, resized",
    [
        ((168, 168), (168, 168)),
        ((42, 70), (56, 56)),  # 1.5 and 2.5 cells round to the even 2
        ((98, 126), (112, 112)),  # 3.5 to 4 and 4.5 to 4
        ((1, 1), (56, 56)),
        ((10, 2000), (28, 812)),
        ((60, 2000), (56, 1988)),
        ((1, 200), (28, 812)),
        ((10_000, 10_000), (980, 980)),
        ((3000, 40), (2996, 28)),
    ],
)
def test_sizes_by_the_rule_of_the_processor(size, resized):
    assert PROCESSOR.size(*size) == resized
    assert PROCESSOR.grid(*resized) == (resized[0] // 14, resized[1] // 14)


@pytest.mark.parametrize("size, resized", SIZES)
def test_resizing_equals_pillow(size, resized):
    pytest.importorskip("PIL", minversion="13", reason="Pillow 13 is not installed (extra vision)")
    from PIL import Image

    image = random_image(*size)
    expected = np.asarray(Image.fromarray(image).resize(resized[::-1], Image.Resampling.BICUBIC))
    assert np.array_equal(images.resize(image, *resized), expected)
    assert np.array_equal(quick_jit(lambda x: images.resize(x, *resized))(image), expected)


@pytest.mark.quick
def test_a_cell_of_28_pixels_is_one_token_in_the_order_of_the_board():
    """Patches 4k to 4k + 3 are cell k; patches hold channel, frame, row and column."""
    cells = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    board = np.repeat(np.repeat(cells, 28, axis=0), 28, axis=1)[..., None] + np.zeros(3, np.uint8)
    board[14, 28 + 14] = (10, 20, 30)  # first pixel of the last patch of cell 1
    processor = dataclasses.replace(PROCESSOR, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    patches = processor.patches(board)
    assert patches.shape == (24, 1176)
    patch = patches[7].reshape(3, 2, 14, 14)
    assert np.allclose(patch[:, 0, 0, 0], (10, 20, 30), atol=1e-4) and np.array_equal(patch[:, 0], patch[:, 1])
    patches[7] = 40
    assert np.allclose(patches.reshape(6, -1), cells.reshape(6, 1), atol=1e-4)


def test_batches_and_jit_give_the_same_patches():
    boards = np.stack([random_image(56, 84, seed=s) for s in range(2)])
    one_by_one = np.stack([PROCESSOR.patches(board) for board in boards])
    assert np.array_equal(PROCESSOR.patches(boards), one_by_one)
    assert np.abs(np.asarray(quick_jit(PROCESSOR.patches)(boards)) - one_by_one).max() < 1e-6


def test_images_of_several_sizes_are_padded():
    patches, grids = PROCESSOR([random_image(60, 60), random_image(112, 90), random_image(30, 200)[..., 0]])
    assert grids == [(4, 4), (8, 6), (2, 14)] and patches.shape == (3, 48, 1176)
    assert not patches[0, 16:].any() and patches[1].all()


def test_grey_transparent_and_palette_images_become_rgb():
    image = random_image(30, 40, 4)
    assert np.array_equal(images.to_rgb(image), image[..., :3])
    grey = images.to_rgb(image[..., 0])
    assert grey.shape == (30, 40, 3) and np.array_equal(grey, images.to_rgb(image[..., :1]))
    assert np.array_equal(grey, images.to_rgb(image[..., [0, 3]]))
    assert np.array_equal(images.read_image(png(image)), image[..., :3])
    assert np.array_equal(images.read_image(png(image[..., 0])), grey)
    assert images.read_image(png(image[..., :3], "P")).shape == (30, 40, 3)


def test_bad_images_are_refused(tmp_path):
    whole = png(random_image(64, 64))
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    for source in (tmp_path / "cut.png", whole[:20], b"", b"GIF89a"):
        with pytest.raises(ValueError, match="is damaged, too large or not one of PNG, JPEG, WEBP, BMP"):
            images.read_image(source)
    with pytest.raises(FileNotFoundError):
        images.read_image(tmp_path / "absent.png")
    huge = whole[:16] + (20_000).to_bytes(4, "big") * 2 + whole[24:]
    with pytest.raises(ValueError, match="is damaged, too large"):
        images.read_image(huge)
    for size in ((1, 201), (201 * 28, 28)):
        with pytest.raises(ValueError, match="its aspect ratio must be <= 200"):
            PROCESSOR.size(*size)
    with pytest.raises(ValueError, match="must have at least one"):
        PROCESSOR.size(0, 5)
    with pytest.raises(ValueError, match="multiples of 28"):
        PROCESSOR.patches(random_image(28, 30))
    with pytest.raises(ValueError, match="has 4 channels, but must have 3"):
        PROCESSOR.patches(random_image(28, 28, 4))
    with pytest.raises(ValueError, match="dtype float64, but must have uint8"):
        PROCESSOR([np.zeros((5, 5, 3))])
    with pytest.raises(ValueError, match=r"has shape \(5, 5, 7\)"):
        PROCESSOR([random_image(5, 5, 7)])
    with pytest.raises(ValueError, match="images is empty"):
        PROCESSOR([])
    with pytest.raises(ValueError, match="min_pixels is 28, but must be from 784"):
        images.processor(QWEN, min_pixels=28)


def test_prompts_get_one_placeholder_per_embedding():
    tokenizer = ByteTokenizer()
    start, end, image = (tokenizer.token(i) for i in (261, 262, 263))
    parts = [{"type": "text", "text": f"See {image}"}, {"type": "image"}, {"type": "text", "text": "?"}]
    text = images.content(parts, tokenizer, CFG)
    assert text == f"See {start}{image}{end}?"
    assert images.expand(tokenizer.encode(text), CFG, [(2, 4)])[3:] == [32, 261, 263, 263, 262, ord("?")]
    tokens = [5, 261, 263, 262, 6, 261, 263, 262]
    grown = images.expand(tokens, CFG, [(4, 6), (2, 2)])
    assert grown == [5, 261, *[263] * 6, 262, 6, 261, 263, 262]
    for grids, message in (([(2, 2)], "2 image placeholders, but must have 1"), ([(2, 2)] * 3, "must have 3")):
        with pytest.raises(ValueError, match=message):
            images.expand(tokens, CFG, grids)
    with pytest.raises(ValueError, match=r"content\[0\].type is 'video'"):
        images.content([{"type": "video"}], tokenizer, CFG)
    for use in (images.processor, lambda cfg: images.expand(tokens, cfg, [])):
        with pytest.raises(ValueError, match="qwen2 reads text only"):
            use(registry.get("tiny").config)


@pytest.mark.parametrize("size", [(168, 168), (61, 300), (1, 1), (500, 37), (1200, 1100)])
def test_patches_equal_those_of_transformers(size):
    for package in ("transformers", "torch", "PIL"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: Pillow and the recorded sizes stand in for it")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    theirs = Qwen2VLImageProcessorPil()
    image = random_image(*size)
    expected = theirs(images=image, return_tensors="np", input_data_format="channels_last")
    patches, grids = PROCESSOR([image])
    assert expected["image_grid_thw"].tolist() == [[1, *grids[0]]]
    assert np.abs(patches[0] - expected["pixel_values"]).max() < 1e-5
