"""Files of models from strangers: whatever is in them, a reader works or raises its one error, soon and in one line."""

import json
import random
import resource
import shutil
import struct
import time

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from marl_jax.errors import user_errors
from models import errors, hf_config, peft, tokenizers, weights
from models.chat import chat_parts
from models.config import ModelConfig
from models.tokenizers import Tokenizer
from models.tokenizers.bpe import BYTE, CONTROL, NORMAL, UNKNOWN
from models.weights import safetensors_folder
from tests.faults import fuzz
from tests.models import test_gguf, test_peft, test_tokenizers
from tests.models.hf_folders import golden, write_folder
from tests.models.tiny_models import CONFIGS, make

pytestmark = pytest.mark.nightly

# ---------------------------------------------------------------------------------------------- found by hand


def tokenizer_folder(folder):
    tokenizers.ByteTokenizer().save(folder)
    return folder


def vocab_and_merges(folder, vocab, merges=""):
    """Puts GPT-2's pair of files in the place of `tokenizer.json`."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text(merges)


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def damaged_normalizer(at, text):
    """A tokenizer.model whose compiled normaliser has other bytes somewhere."""

    def change(folder):
        sentencepiece_tokenizer(folder)
        (folder / "tokenizer.json").unlink()
        content = (folder / "tokenizer.model").read_bytes()
        start = content.index(charsmap()) + at
        (folder / "tokenizer.model").write_bytes(content[:start] + text + content[start + len(text) :])

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json is not a valid tokenizer.json"),
        (lambda f: changed(f / "tokenizer_config.json", eos_token="<nope>"), "eos_token is '<nope>', which is not in"),
        (lambda f: changed(f / "tokenizer_config.json", eos_token={"x": 1}), "is damaged or malformed: KeyError"),
        (lambda f: changed(f / "tokenizer_config.json", eos_token=["x"]), "is damaged or malformed: TypeError"),
        (lambda f: changed(f / "tokenizer_config.json", added_tokens_decoder={"x": {}}), "is damaged or malformed"),
        (lambda f: changed(f / "tokenizer_config.json", chat_template=[{"name": "x"}]), "is damaged or malformed"),
        (
            lambda f: (f / "tokenizer_config.json").write_text("[" * 100_000),
            "tokenizer_config.json is not JSON: maximum",
        ),
        (
            lambda f: (f / "generation_config.json").write_text('{"eos_token_id": 2147483648}'),
            "must be one or several token ids",
        ),
        (lambda f: vocab_and_merges(f, {"a": 0, "b": 1 << 31}), "vocab.json has the id 2147483648, but only 2 tokens"),
        (damaged_normalizer(0, b"\xff\xff"), "is damaged or malformed: Exception: Error while attempting to build"),
        (damaged_normalizer(4, b"\xff\xff"), "is damaged or malformed: PanicException: index out of bounds"),
    ],
)
def test_a_bad_tokenizer_folder_is_a_line_for_the_user(tmp_path, change, words):
    change(tokenizer_folder(tmp_path))
    with pytest.raises(tokenizers.TokenizerError) as caught:
        tokenizers.load(tmp_path)
    assert words in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, user_errors())


def template_in_config(folder, template):
    changed(tokenizer_folder(folder) / "tokenizer_config.json", chat_template=template)
    return folder, folder / "tokenizer_config.json"


def template_in_jinja(folder, template):
    file = tokenizer_folder(folder) / "chat_template.jinja"
    file.write_text(template)
    return folder, file


def template_in_gguf(folder, template):
    file = folder / "model.gguf"
    test_tokenizers.write_gguf(file, test_tokenizers.small_fields() | {"tokenizer.chat_template": template})
    return file, f"{file} (tokenizer.chat_template)"


@pytest.mark.parametrize("put", [template_in_config, template_in_jinja, template_in_gguf])
def test_a_template_that_fails_is_a_line_that_names_its_file(tmp_path, put):
    place, named = put(tmp_path, "{{ 1 / 0 }}")
    with pytest.raises(user_errors()) as caught:
        tokenizers.load(place).chat([{"role": "user", "content": "u"}])
    assert str(caught.value) == f"{named}: the chat template failed: ZeroDivisionError: division by zero"
    place, named = put(tmp_path, "{{ messages[0].content }}" * 2)
    with pytest.raises(user_errors()) as caught:
        chat_parts(tokenizers.load(place))
    assert str(caught.value) == f"{named}: the chat template renders a message 2 times or out of order, not once"
    with pytest.raises(user_errors(), match="^the chat template failed"):  # a template of one's own is in no file
        tokenizers.load(place, chat="{{ 1 / 0 }}").chat([{"role": "user", "content": "u"}])


def test_a_vocabulary_too_small_for_the_tokenizer_is_a_line_for_the_user():
    small = ModelConfig(**{**vars(CONFIGS["llama"]), "vocab_size": 1})
    with pytest.raises(
        user_errors(), match="but the vocab_size of the model is only 1; use the tokenizer of the model"
    ):
        tokenizers.check_fits(tokenizers.ByteTokenizer(), small)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(num_key_value_heads=3), "must be a multiple of n_kv_heads, which is 3"),
        (dict(num_attention_heads=0), "num_attention_heads is 0, but must be an integer >= 1"),
        (dict(num_hidden_layers=10**7), "n_layers is 10000000, but must be an integer from 1 to 4,096"),
        (dict(head_dim=7), "head_dim is 7, but must be even"),
        (dict(rms_norm_eps=float("nan")), "norm_eps is nan, but must be a number > 0 and < 1"),
        (dict(rope_parameters={"rope_theta": -1}), "rope_theta is -1.0, but must be a number > 0"),
        (dict(rope_parameters={"rope_theta": 10**400}), "is damaged or malformed: OverflowError"),
        (dict(bos_token_id="x"), "bos_id is 'x', but must be token ids >= 0"),
        (
            dict(rope_parameters={"rope_type": "linear", "factor": 0}),
            "rope_scaling.factor is 0.0, but must be a number",
        ),
        (dict(tie_word_embeddings=1), "tie_embeddings is 1, but must be True or False"),
    ],
)
def test_a_bad_config_json_is_a_line_for_the_user(tmp_path, change, words):
    config, tensors = golden("llama")
    start = time.monotonic()
    with pytest.raises(hf_config.ModelConfigError) as caught:
        weights.load(write_folder(tmp_path, config | change, tensors))
    assert words in str(caught.value) and "config.json" in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, user_errors()) and time.monotonic() - start < 5


def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "model.safetensors"
    with open(file, "wb") as stream:
        stream.write((6 << 30).to_bytes(8, "little"))
        stream.truncate((6 << 30) + 8)  # sparse: nothing is on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        weights.WeightsError, match="the header has 6,442,450,944 bytes, but must have at most 100,000,000"
    ):
        safetensors_folder.read_header(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


# ------------------------------------------------------------------------------------------------ found by chance


def huggingface(folder):
    write_folder(folder, *golden("llama"))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    return lambda: weights.load(folder)


def shards(folder):
    write_folder(folder, *golden("llama"), shards=2)
    return lambda: weights.load(folder)


def gguf(folder):
    cfg = test_gguf.config_of("llama")
    test_gguf.write_gguf(folder / "model.gguf", cfg, test_gguf.gguf_tensors(cfg, make("llama")[1]))
    return lambda: weights.load(folder / "model.gguf")


def adapter(folder):
    cfg = CONFIGS["qwen2"]
    peft.export(folder, cfg, peft.take(*test_peft.random_stack(cfg), 1), overwrite=True)
    return lambda: peft.load(folder, cfg)


def chats(load):
    """Reads a tokenizer and uses it."""

    def use() -> Tokenizer:
        tokenizer = load()
        _ = tokenizer.vocab_size, tokenizer.fingerprint, tokenizer.decode(tokenizer.encode("a b"))
        tokenizer.chat([{"role": "user", "content": "u"}])
        return tokenizer

    return use


def json_tokenizer(folder):
    tokenizer_folder(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    return chats(lambda: tokenizers.load(folder))


def vocab_tokenizer(folder):
    tokenizer_folder(folder)
    bytes_of = pre_tokenizers.ByteLevel.alphabet()
    words = ["<|endoftext|>", *sorted(bytes_of), "ab", "abc"]
    vocab_and_merges(folder, {word: i for i, word in enumerate(words)}, "#version: 0.2\na b\nab c\n")
    changed(folder / "tokenizer_config.json", eos_token="<|endoftext|>", bos_token=None, pad_token=None)
    changed(folder / "tokenizer_config.json", added_tokens_decoder={})
    return chats(lambda: tokenizers.load(folder))


def gguf_tokenizer(folder):
    test_tokenizers.write_gguf(folder / "model.gguf", test_tokenizers.small_fields())
    return chats(lambda: tokenizers.load(folder / "model.gguf"))


def field(number, value):
    """One field of a protocol buffer message: a varint below 128, a float, or bytes of any length."""
    if isinstance(value, int):
        return bytes([number << 3 & 0x7F | 0x80, number >> 4, value])
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    return bytes([number << 3 | 2, len(value) & 0x7F | 0x80, len(value) >> 7]) + value


def charsmap():
    """A compiled normaliser: a double-array trie in which "B" leads to the text "b", and the texts."""
    units = np.zeros(256, "<u4")
    units[ord("B")] = (ord("B") ^ 1) << 10 | 1 << 8 | ord("B")  # the label, a leaf, and the way to unit 1
    units[1] = 1 << 31  # a leaf: its text begins at 0
    return struct.pack("<I", units.nbytes) + units.tobytes() + b"b\0"


def sentencepiece_tokenizer(folder):
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    words = [(word, NORMAL) for word in ("▁", "a", "b", "u", "▁a", "▁b", "ab")]
    pieces = special + [(f"<0x{byte:02X}>", BYTE) for byte in range(256)] + words
    numbered = enumerate(pieces)
    parts = [field(1, field(1, word.encode()) + field(2, -float(i)) + field(3, kind)) for i, (word, kind) in numbered]
    parts.append(field(2, field(3, 2) + field(41, 1) + field(42, 2)))  # the trainer: BPE, and the ids of bos and eos
    parts.append(field(3, field(2, charsmap()) + field(3, 1) + field(4, 0)))  # the normaliser: doubled spaces stay
    (folder / "tokenizer.model").write_bytes(b"".join(parts))
    return chats(lambda: tokenizers.load(folder))


def tiktoken_tokenizer(folder):
    (folder / "qwen.tiktoken").write_text(test_tokenizers.tiktoken_lines(b"ab", b" a", b"abc", b" ab"))
    return chats(lambda: tokenizers.load(folder))


KINDS = [
    huggingface, shards, gguf, adapter, json_tokenizer, vocab_tokenizer, gguf_tokenizer, sentencepiece_tokenizer,
    tiktoken_tokenizer,
]  # fmt: skip


@fuzz.sharded
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_mutated_files_are_read_or_refused(tmp_path, kind, seen, shard):
    whole, hit = tmp_path / "whole", tmp_path / "hit"
    whole.mkdir()
    kind(whole)()
    files = {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()}
    shutil.copytree(whole, hit)
    read, refused = kind(hit), 0
    for name, content in files.items():
        (hit / name).write_bytes(content)
    for seed in (seeds := fuzz.rounds(60, 4000, shard)):
        rng = random.Random(seed)
        name = rng.choice(sorted(files))
        (hit / name).write_bytes(fuzz.mutate(rng, name, files[name]))
        start = time.monotonic()
        try:
            read()
        except (errors.ModelFileError, OSError) as error:
            refused += 1
            assert str(error), (seed, name)
        except Exception as error:
            shutil.copy(hit / name, tmp_path / f"found-{name}")
            raise AssertionError(f"seed {seed}, {name}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - start < 10, (seed, name)
        (hit / name).write_bytes(files[name])
    assert refused > 0
    read()  # whole again
    seen(f"files changed at random: {kind.__name__}", "read, or refused with the one error", rounds=len(seeds))
