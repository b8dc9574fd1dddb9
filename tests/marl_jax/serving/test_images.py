"""Image parts of chat requests, with OpenAI's client: completions read them, and bad ones are refused."""

import base64
import dataclasses
import io

import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from models import images as files
from models import registry
from models.config import VisionConfig
from models.media import Media, mrope_positions
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine
from tests.marl_jax.tiny_serving import client
from tests.models.tiny_models import random_params

openai = pytest.importorskip("openai", reason="openai is not installed (pip install -e .[test])")
image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.long

VISION = VisionConfig(n_layers=1, d_model=8, n_heads=1, d_ff=8, image_id=261)
SHAPE = dict(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16, max_positions=512)
CONFIG = dataclasses.replace(registry.get("tiny").config, **SHAPE, vision=VISION, mrope_sections=(1, 2, 1))
rng = np.random.default_rng(0)
PIXELS = rng.integers(0, 256, (56, 84, 3), dtype=np.uint8)


def url(pixels, kind="PNG"):
    """Return a data: URL."""
    file = io.BytesIO()
    image.fromarray(pixels).save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def messages(*urls, text="what is it?"):
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def server():
    """Yield (client, batcher, model, parameters, tokenizer); `text` is the same model without its encoder."""
    from models.tokenizers import load

    model, tokenizer = build(CONFIG), load("tiny-vl")
    params = random_params(model, 0)
    engine = QuickEngine(model, params, dtype=jnp.float32, bucket=64, chunk=4)
    batcher = Batcher(engine, rows=4, max_length=128, chunk=4, tokenizer=tokenizer)
    with BatcherThread(batcher) as sampler:
        speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=8), 128)
        models = {
            "tiny": ServedModel.of("tiny", speaker, CONFIG.vocab_size, VISION),
            "text": ServedModel.of("text", speaker, CONFIG.vocab_size),
        }
        with in_thread(Endpoint(models, limits=Limits(image_hosts=("images.test",))).application()) as address:
            yield client(address, timeout=120), batcher, model, params, tokenizer


def expected(model, params, tokenizer, ask, shown, count):
    """Return greedy tokens of the model without a cache."""
    processor = files.processor(model.cfg)
    patches, grids = processor(shown)
    text = tokenizer.chat([{"role": "user", "content": files.marker(tokenizer, model.cfg) * len(shown) + ask}])
    tokens = files.expand(tokenizer.encode(text), model.cfg, grids)
    vision, parts = model.vision, []
    for i, (r, c) in enumerate(grids):
        one = patches[i : i + 1, : r * c]
        parts.append(vision(params["vision"], one, vision.layout([(r, c)]), dtype=jnp.float32))
    embeddings, cells = jnp.concatenate(parts, axis=1), np.asarray([[(r // 2, c // 2) for r, c in grids]])

    def following(tokens):
        index = np.where(tokens == VISION.image_id, np.cumsum(tokens == VISION.image_id, axis=1) - 1, -1)
        positions = mrope_positions(tokens, VISION.image_id, cells)
        hidden, _ = model.forward(
            params,
            tokens,
            media=Media(embeddings, jnp.asarray(index)),
            positions=jnp.asarray(positions),
            dtype=jnp.float32,
        )
        logits = model.logits(params, hidden[:, -1])
        return int(jnp.argmax(logits))

    made = []
    for _ in range(count):
        made.append(following(np.asarray([tokens + made], np.int32)))
    return made


def test_completions_read_images_of_several_formats(server):
    openai_client, batcher, model, params, tokenizer = server
    other = rng.integers(0, 256, (28, 28, 4), dtype=np.uint8)
    settings = dict(model="tiny", max_tokens=3, temperature=0, logprobs=True)
    asked = messages(url(PIXELS), url(other))
    reply = openai_client.chat.completions.create(messages=asked, **settings)
    said = expected(model, params, tokenizer, "what is it?", [PIXELS, other[..., :3]], 3)
    stop = next((i for i, token in enumerate(said) if token in tokenizer.stop_ids), 3)
    assert reply.choices[0].message.content == tokenizer.decode(said[:stop])
    assert reply.usage.prompt_tokens > 6 + 4  # 2 × 3 cells, and the small image is enlarged to 2 × 2
    # The same images are not encoded again, and their pages are shared.
    reused = batcher.usage.reused
    again = openai_client.chat.completions.create(messages=asked, **settings)
    assert again.choices[0].message.content == reply.choices[0].message.content
    assert batcher.usage.reused > reused
    # Another image of the same size has another log-prob.
    swapped = openai_client.chat.completions.create(messages=messages(url(PIXELS[::-1]), url(other)), **settings)
    assert swapped.choices[0].logprobs.content[0].logprob != reply.choices[0].logprobs.content[0].logprob
    assert not any(held.holders for held in batcher.engine.images._of_content.values())
    streamed = openai_client.chat.completions.create(messages=messages(url(PIXELS, "JPEG")), stream=True, model="tiny")
    assert list(streamed)


TRUNCATED = url(PIXELS)[: len("data:image/png;base64,") + 400]
FILE = base64.b64decode(url(PIXELS).partition(",")[2])
SIZE = (84).to_bytes(4, "big") + (56).to_bytes(4, "big")
HUGE = "data:image/png;base64," + base64.b64encode(FILE.replace(SIZE, b"\0\0\x27\x10" * 2)).decode()  # 10,000 × 10,000
SYSTEM = [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": url(PIXELS)}}]}]


@pytest.mark.parametrize(
    ("model", "content", "message"),
    [
        ("text", messages(url(PIXELS)), "messages have images, but text reads text only"),
        ("tiny", messages("https://example.com/a.png"), "Other hosts need serve.image_hosts"),
        ("tiny", messages("http://images.test/a.png"), "or an https URL of one of: images.test"),
        ("tiny", messages("file:///etc/passwd"), "must be data:image/png;base64"),
        ("tiny", messages("data:image/png;base64,%%%"), "its contents are not base64"),
        ("tiny", messages(TRUNCATED), "is damaged, too large or not one of PNG"),
        ("tiny", messages(HUGE), "is damaged, too large or not one of PNG"),
        ("tiny", messages(url(np.zeros((2, 500, 3), np.uint8))), "its aspect ratio must be <= 200"),
        ("tiny", messages(url(np.zeros((560, 560, 3), np.uint8))), "the prompt has 4"),
        ("tiny", SYSTEM, "of a user"),
        ("tiny", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "must be an object"),
    ],
)  # fmt: skip
def test_bad_images_are_refused(server, model, content, message):
    with pytest.raises(openai.BadRequestError, match=message):
        server[0].chat.completions.create(model=model, messages=content, max_tokens=2)


def test_ids_of_images_cannot_be_guessed(server):
    with pytest.raises(openai.BadRequestError, match="but must have ids from 0 to 263"):
        server[0].completions.create(model="tiny", prompt=[72, 264], max_tokens=2)
