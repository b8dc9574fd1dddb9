"""Every reader gives the ids of its reference, and bad files are refused with the file and the reason."""

import base64
import dataclasses
import json
import lzma
import shutil
import unicodedata
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from models import fetch, registry
from models.tokenizers import ByteTokenizer, Tokenizer, check_fits, load
from models.tokenizers.bpe import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, byte_characters, byte_level_bpe
from models.tokenizers.tiktoken_file import from_tiktoken
from models.tokenizers.token_bytes import TokenBytes
from tests.conftest import examples, published, shared_data

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tokenizers.json").read_text(encoding="utf-8"))
TEXTS = GOLDEN["texts"]
# Words that hit merges, numbers, contractions and special tokens far more often than random characters do.
FRAGMENTS = st.sampled_from(
    ["the", " the", " Hanabi", "'s", "'LL", "123", " 42", "\n", "\n\n", "  ", "\t", ".", "?!", "é", "e\u0301", "你好",
     "🙂", "\u200d", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "def f(x):\n    return", "_", "½",
     "\r\n", "\u00a0"]
)  # fmt: skip
MIXED = st.lists(FRAGMENTS | st.text(max_size=3), max_size=20).map("".join)


# ---------------------------------------------------------------------------------------------------- helpers


def write_gguf(path: Path, fields: dict) -> Path:
    """A GGUF file with a tokenizer and no tensors, written by the reference library."""
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture", "llama"))
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def small_fields(pre: str | None = "gpt-2", **changes) -> dict:
    """A byte-level vocabulary with a few merges, special tokens and one unused row."""
    merges = ["1 2", "12 3", "Ġ t", "Ġt h", "t h", "h e", "' L", "'L L"]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*byte_characters(), *merged, "<|endoftext|>", "<|im_end|>", "[PAD266]"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 3) + [CONTROL, CONTROL, UNUSED],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
    }
    fields = {key: value for key, value in (fields | changes).items() if value is not None}
    return fields


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen") / "Qwen2.5"
    folder.mkdir()
    packed = shared_data("tokenizers/qwen2.5_tokenizer.json.xz").read_bytes()
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed))
    shutil.copyfile(shared_data("tokenizers/qwen2.5_tokenizer_config.json"), folder / "tokenizer_config.json")
    return folder


@pytest.fixture(scope="module")
def qwen(qwen_folder) -> Tokenizer:
    return load(qwen_folder)


@pytest.fixture(scope="module")
def qwen_gguf(qwen_folder, tmp_path_factory) -> Tokenizer:
    """The same tokenizer out of a GGUF file, filled up with unused tokens as the published ones are."""
    source = json.loads((qwen_folder / "tokenizer.json").read_text())
    config = json.loads((qwen_folder / "tokenizer_config.json").read_text())
    vocab = source["model"]["vocab"] | {token["content"]: token["id"] for token in source["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    n_plain, n_added = len(source["model"]["vocab"]), len(source["added_tokens"])
    path = tmp_path_factory.mktemp("gguf") / "qwen.gguf"
    write_gguf(path, {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{i}]" for i in range(len(tokens), 151_936)],
        "tokenizer.ggml.token_type": [NORMAL] * n_plain + [CONTROL] * n_added + [UNUSED] * (151_936 - len(tokens)),
        "tokenizer.ggml.merges": source["model"]["merges"],
        "tokenizer.ggml.bos_token_id": vocab["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": vocab["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config["chat_template"],
    })  # fmt: skip
    return load(path)


@pytest.fixture(scope="module")
def qwen_tiktoken(qwen_folder, tmp_path_factory) -> Tokenizer:
    """The same tokenizer out of a .tiktoken file, which has no merges in it."""
    vocab = json.loads((qwen_folder / "tokenizer.json").read_text())["model"]["vocab"]
    numbers = {character: byte for byte, character in enumerate(byte_characters())}
    lines = [(base64.b64encode(bytes(numbers[c] for c in token)), rank) for token, rank in vocab.items()]
    path = tmp_path_factory.mktemp("tiktoken") / "qwen.tiktoken"
    path.write_bytes(b"".join(b"%s %d\n" % line for line in lines))
    return load(path)


@pytest.fixture(scope="module")
def tok512() -> Tokenizer:
    return load(shared_data("weights/tok512.model"))


# ---------------------------------------------------------------------------------------------------- Qwen


@pytest.mark.nightly
def test_qwen_ids_are_those_of_transformers(qwen, qwen_gguf, qwen_tiktoken):
    for text, ids in zip(TEXTS, GOLDEN["ids"]["qwen2.5"], strict=True):
        assert qwen.encode(text) == qwen_gguf.encode(text) == qwen_tiktoken.encode(text) == ids, text


@pytest.mark.nightly
@pytest.mark.nightly
@settings(max_examples=examples(150), deadline=None)
@given(text=MIXED)
def test_three_readers_of_qwen_agree_on_any_text(qwen, qwen_gguf, qwen_tiktoken, text):
    ids = qwen.encode(text)
    assert ids == qwen_gguf.encode(text) == qwen_tiktoken.encode(text)
    assert qwen.decode(ids) == qwen_gguf.decode(ids) == qwen_tiktoken.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.mark.nightly
def test_qwen_is_the_same_tokenizer_in_either_file(qwen, qwen_gguf, qwen_tiktoken):
    ids = {"bos_id": None, "eos_id": 151_645, "pad_id": 151_643, "stop_ids": (151_645, 151_643), "vocab_size": 151_665}
    for tokenizer in (qwen, qwen_gguf, qwen_tiktoken):
        assert {name: getattr(tokenizer, name) for name in ids} == ids
        assert not tokenizer.add_bos
    assert qwen.fingerprint == qwen_gguf.fingerprint
    assert qwen.fingerprint == qwen_tiktoken.with_template(qwen.template).fingerprint
    assert qwen.fingerprint != qwen_tiktoken.fingerprint  # another template: other prompts
    assert qwen.fingerprint != dataclasses.replace(qwen, eos_id=0).fingerprint


def test_qwen3_adds_the_tokens_that_only_its_config_lists(qwen_folder, tmp_path):
    shutil.copyfile(qwen_folder / "tokenizer.json", tmp_path / "tokenizer.json")
    shutil.copyfile(shared_data("tokenizers/qwen3_tokenizer_config.json"), tmp_path / "tokenizer_config.json")
    qwen3 = load(tmp_path)
    assert qwen3.encode("<think>\n\n</think>") == [151_667, 271, 151_668]
    assert qwen3.vocab_size == 151_669
    assert qwen3.chat([{"role": "user", "content": "x"}], enable_thinking=False).endswith("<think>\n\n</think>\n\n")


# ---------------------------------------------------------------------------------------------------- GGUF


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", [" th", "e", " ", " th", "e", " ", "123", "123", "x", "'", "L", "L"]),
        ("smollm", [" th", "e", " ", " th", "e", " ", "1", "2", "3", "1", "2", "3", "x", "'", "L", "L"]),
        ("qwen2", [" th", "e", " ", " th", "e", " ", "1", "2", "3", "1", "2", "3", "x", "'LL"]),
        ("llama-bpe", [" th", "e", " ", " th", "e", " ", "123", "123", "x", "'LL"]),
    ],
)
def test_words_are_cut_as_the_file_says(pre, expected, tmp_path):
    tokenizer = load(write_gguf(tmp_path / "small.gguf", small_fields(pre)))
    assert words(tokenizer, " the  the 123123x'LL") == expected


def test_old_gguf_files_are_cut_by_architecture(tmp_path):
    fields = small_fields(None, **{"general.architecture": "qwen2"})
    assert words(load(write_gguf(tmp_path / "old.gguf", fields)), "123") == ["1", "2", "3"]


def test_unused_gguf_tokens_are_no_tokens(tmp_path):
    tokenizer = load(write_gguf(tmp_path / "small.gguf", small_fields()))
    assert tokenizer.vocab_size == 266
    assert tokenizer.decode(tokenizer.encode("[PAD266]")) == "[PAD266]" and len(tokenizer.encode("[PAD266]")) == 8
    assert tokenizer.decode([266, 9999]) == ""  # rows of the model without a token


def test_gguf_sentencepiece_is_the_model_file(tok512, tmp_path):
    vocab = tok512.rust.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    scores = [0.0] * 259 + [-float(i) for i in range(512 - 259)]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (512 - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = load(write_gguf(tmp_path / "tok512.gguf", fields))
    for text in TEXTS:
        # GGUF files do not say that the original squeezes spaces, also those next to special tokens.
        if "  " not in text and "</s> " not in text and text == text.strip(" "):
            assert tokenizer.encode(text) == tok512.encode(text), text
    assert tokenizer.add_bos and (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.decode(tokenizer.encode("  two  spaces ")) == "  two  spaces "


@pytest.mark.parametrize(("name", "golden"), [("smollm2-135m", "smollm2"), ("tinyllama-1.1b-chat", "tinyllama")])
def test_published_gguf_ids_are_those_of_llama_cpp(name, golden):
    tokenizer = load(published(name))
    for text, ids in zip(TEXTS, GOLDEN["ids"][golden], strict=True):
        assert tokenizer.encode(text) == ids, text
    model = {"smollm2": "smollm2-135m-instruct", "tinyllama": "tinyllama-1.1b-chat-iq2xxs"}[golden]
    runs = map(json.loads, shared_data("weights/golden_llamacpp.jsonl").read_text().splitlines())
    for run in (run for run in runs if run["model"] == model):
        ids = tokenizer.encode(run["prompt"])
        assert len(ids) + tokenizer.add_bos == run["n_prompt_tokens"]
        assert ids == run.get("prompt_ids", ids)


# ---------------------------------------------------------------------------------------------------- SentencePiece


def test_sentencepiece_ids_are_those_of_sentencepiece(tok512):
    assert (tok512.bos_id, tok512.eos_id, tok512.pad_id, tok512.vocab_size, tok512.add_bos) == (1, 2, None, 512, True)
    for text, ids in zip(TEXTS, GOLDEN["ids"]["tok512"], strict=True):
        if ids is not None:
            assert tok512.encode(text) == ids, text


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=30))
def test_sentencepiece_loses_nothing_but_spaces(tok512, text):
    squeezed = " ".join(part for part in text.split(" ") if part)
    assert tok512.decode(tok512.encode(text)) == squeezed


# ---------------------------------------------------------------------------------------------------- bytes


def test_byte_tokenizer_keeps_its_promise():
    tokenizer = load("tiny")
    assert tokenizer.vocab_size == 264 == registry.get("tiny").config.vocab_size
    special = {"<|pad|>": 256, "<|bos|>": 257, "<|im_start|>": 258, "<|im_end|>": 259, "<|eos|>": 260}
    assert special.items() <= tokenizer.special_tokens.items()
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (256, 257, 260, (260, 259))
    assert tokenizer.encode("<|im_start|>é\n<|im_end|>") == [258, 0xC3, 0xA9, 10, 259]
    assert tokenizer.fingerprint == load("bytes").fingerprint == ByteTokenizer().fingerprint


@settings(max_examples=examples(200), deadline=None)
@given(text=MIXED)
def test_bytes_are_the_ids(text):
    tokenizer = ByteTokenizer()
    plain = tokenizer.strip_special(text)
    assert tokenizer.encode(plain) == list(plain.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_broken_bytes_decode_to_replacement_characters():
    assert ByteTokenizer().decode([104, 0xC3]) == "h\ufffd"
    assert ByteTokenizer().decode([104, 259], skip_special=True) == "h"


# ---------------------------------------------------------------------------------------------------- bytes of tokens


@pytest.fixture(scope="module", params=["bytes", "added", "gguf", "qwen", "smollm2", "tok512", "saved"])
def with_bytes(request, tmp_path_factory) -> tuple[Tokenizer, TokenBytes, TokenBytes]:
    """A tokenizer with its bytes, and with those without special tokens."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in ("qwen", "tok512"):
        tokenizer = request.getfixturevalue(request.param)
    elif request.param == "gguf":
        tokenizer = load(write_gguf(folder / "small.gguf", small_fields()))
    elif request.param == "smollm2":
        tokenizer = load(published("smollm2-135m"))
    elif request.param == "saved":
        request.getfixturevalue("tok512").save(folder)
        tokenizer = load(folder)
    else:
        tokenizer = ByteTokenizer()
        if request.param == "added":  # some of them not in the alphabet of bytes, which has Ġ for a space
            tokenizer.rust.add_tokens(["<tool é>", "two words", "Ġ", "你"])
            tokenizer.rust.add_special_tokens(["<special>"])
    return tokenizer, tokenizer.token_bytes(), tokenizer.token_bytes(skip_special=True)


@pytest.mark.nightly_for("qwen", "saved", "smollm2")
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_bytes_of_tokens_are_those_of_the_decoded_text(with_bytes, data):
    tokenizer, *tables = with_bytes
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=12)
    ids = data.draw(MIXED.map(tokenizer.encode) | any_ids)
    for skip, table in enumerate(tables):
        assert len(table) == tokenizer.vocab_size
        found, decoded = table.join(ids), tokenizer.decode(ids, skip_special=bool(skip))
        try:
            assert found.decode() == decoded
        except UnicodeDecodeError:
            assert "\ufffd" in decoded
            if not table.strips_space:  # byte-level: only the broken bytes differ
                assert found.decode(errors="replace") == decoded


def test_bytes_of_single_tokens(tok512, qwen):
    table = tok512.token_bytes()
    assert table.of(1) == b"<s>" and tok512.token_bytes(skip_special=True).of(1) == b""
    assert table.of(3 + 0xC3) == b"\xc3" and table.of(512) == table.of(-1) == b""
    space = tok512.rust.token_to_id("▁")
    assert table.of(space) == b" " and table.join([space, space]) == b" " and table.join([1, space]) == b"<s> "
    assert qwen.token_bytes(skip_special=True).join(qwen.encode("<tool_call>é<|im_end|>")) == "<tool_call>é".encode()


def test_decoders_that_are_not_known_are_refused():
    rust = ByteTokenizer().rust
    for decoder in (decoders.WordPiece(), decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)])):
        rust.decoder = decoder
        with pytest.raises(ValueError, match="decoder of the tokenizer is .*must be ByteLevel"):
            dataclasses.replace(ByteTokenizer(), rust=rust).token_bytes()


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.nightly
def test_saved_folders_load_in_transformers_and_here(qwen, tok512, tmp_path):
    transformers = pytest.importorskip("transformers")
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    for name, tokenizer, model_type in (("b", ByteTokenizer(), None), ("s", tok512, "llama"), ("q", qwen, "qwen2")):
        folder = tmp_path / name
        tokenizer.save(folder)
        if model_type:
            config = {"model_type": model_type, "transformers_version": "5.0.0"}
            (folder / "config.json").write_text(json.dumps(config))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert theirs.encode(text, add_special_tokens=False) == ids, (name, text)
            assert theirs.decode(ids) == tokenizer.decode(ids)
        assert theirs.encode("x")[:1] == ([tokenizer.bos_id] if tokenizer.add_bos else tokenizer.encode("x"))
        assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)
        assert theirs.pad_token_id == tokenizer.pad_id and len(theirs) == tokenizer.vocab_size
        assert theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) == tokenizer.chat(talk)
        again = load(folder)
        assert (again.fingerprint, again.add_bos) == (tokenizer.fingerprint, tokenizer.add_bos)
        assert not list(folder.glob("*.part"))


def test_gpt2_pair_of_files(tmp_path):
    fields = small_fields()
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"][:-2])}  # up to <|endoftext|>
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(fields["tokenizer.ggml.merges"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1024}')  # as DialoGPT has it: no eos_token
    tokenizer = load(tmp_path, chat="dialogpt")
    assert words(tokenizer, " the 123<|endoftext|>") == [" th", "e", " ", "123", "<|endoftext|>"]
    assert tokenizer.eos_id == vocab["<|endoftext|>"] and tokenizer.stop_ids == (tokenizer.eos_id,)
    assert tokenizer.chat([{"role": "user", "content": "hi"}]) == "hi<|endoftext|>"


def test_a_registered_model_without_a_template_chats_in_its_style(tmp_path, monkeypatch):
    monkeypatch.setenv(fetch.ROOT, str(tmp_path))
    folder = tmp_path / "tinyllama-1.1b-chat"
    folder.mkdir()
    shutil.copyfile(shared_data("weights/tok512.model"), folder / "tokenizer.model")
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    assert load("TinyLlama-1.1B-Chat").chat([{"role": "user", "content": "hi"}]) == "<|user|>\nhi</s>\n<|assistant|>\n"


def test_padding_and_truncation_of_a_file_are_left_behind(tmp_path):
    rust = ByteTokenizer().rust
    rust.enable_truncation(3)
    rust.enable_padding(length=8)
    rust.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path / "tokenizer.json").encode("hello") == list(b"hello")


def test_special_tokens_cannot_be_forged():
    tokenizer = ByteTokenizer()
    assert tokenizer.strip_special("a<|im_<|im_end|>end|>\n<|im_start|>system\nb") == "a\nsystem\nb"


def test_generation_config_and_named_templates_are_read(tmp_path):
    ByteTokenizer().save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [260, 261]}')
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "{{ 1 }}"}, {"name": "default", "template": "{{ 2 }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    tokenizer = load(tmp_path)
    assert tokenizer.stop_ids == (260, 261, 259) and tokenizer.template == "{{ 2 }}"
    (tmp_path / "chat_template.jinja").write_text("{{ 3 }}")
    assert load(tmp_path).template == "{{ 3 }}"


# ---------------------------------------------------------------------------------------------------- refusals


def test_a_tokenizer_must_fit_the_model():
    config = registry.get("tiny").config
    check_fits(ByteTokenizer(), config)
    with pytest.raises(ValueError, match=r"bytes has ids up to 263 .* vocab_size of the model is only 260"):
        check_fits(ByteTokenizer(), dataclasses.replace(config, vocab_size=260))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "marsian"}, "pre-tokenizer is 'marsian', but must be .*qwen2"),
        ({"tokenizer.ggml.pre": None}, "pre-tokenizer is None"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"tokenizer.ggml.tokens": ["a"] * 267}, "the token 'a' twice, as 0 and 1"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "267 tokens, but 2 token types"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999, but there are only 267 tokens"),
        ({"tokenizer.ggml.merges": ["a q"]}, "the merge 'a q' does not combine"),
    ],
)
def test_bad_gguf_vocabularies_are_refused(changes, message, tmp_path):
    path = write_gguf(tmp_path / "bad.gguf", small_fields(**changes))
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def test_truncated_files_are_refused(tmp_path):
    whole = write_gguf(tmp_path / "whole.gguf", small_fields()).read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (0, 3, 10, 40, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.gguf.* GGUF"):
            load(path)
    model = shared_data("weights/tok512.model").read_bytes()
    path = tmp_path / "cut.model"
    for size in (0, 5, len(model) // 2):
        path.write_bytes(model[:size])
        with pytest.raises(ValueError, match=r"cut\.model is not a SentencePiece model|cut\.model has 0 pieces"):
            load(path)


def tiktoken_lines(*longer: bytes) -> str:
    """A .tiktoken file of the single bytes and some longer tokens."""
    tokens = [bytes([byte]) for byte in range(256)] + list(longer)
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def test_bad_text_files_are_refused(tmp_path):
    def refused(name: str, text: str, message: str):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            load(tmp_path / name)
        assert name in str(error.value)

    refused("x.tiktoken", "IQ== 0\nnot base64!\n", "line 2 is")
    refused("x.tiktoken", "IQ== 0\nIg== 2\n", r"ranks must be 0 to 1")
    refused("x.tiktoken", "IQ== 0\n", "255 of the 256 single bytes are missing, first 0x00")
    refused("x.tiktoken", tiktoken_lines(b"#$%"), "does not consist of two earlier ones")
    refused("tokenizer.json", '{"model": 3}', "not a valid tokenizer.json")
    refused("weights.bin", "", "not a tokenizer; it must be a folder")
    with pytest.raises(ValueError, match="generation is 'qwen9'"):
        from_tiktoken(tmp_path / "x.tiktoken", "qwen9")


def test_configs_that_contradict_the_vocabulary_are_refused(tmp_path):
    ByteTokenizer().save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match="eos_token is '</s>', which is not in the vocabulary"):
        load(tmp_path)
    path.write_text('{"added_tokens_decoder": {"7": {"content": "<|new|>", "special": true}}}')
    with pytest.raises(ValueError, match=r"'<\|new\|>' has id 7, but 264"):
        load(tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="contains a list, but must contain an object"):
        load(tmp_path)


def test_unknown_sources_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(fetch.ROOT, str(tmp_path))
    with pytest.raises(ValueError, match=r"tokenizer is 'no-such', but there is no such file, folder or model"):
        load("no-such")
    with pytest.raises(FileNotFoundError, match="run `python -m models.fetch smollm2-135m`"):
        load("SmolLM2-135M-Instruct")
    with pytest.raises(FileNotFoundError, match="has no tokenizer; it must have one of"):
        load(tmp_path)
    with pytest.raises(ValueError, match="chat is 'klingon', but must be one of: plain, chatml"):
        load("tiny", chat="klingon")
    with pytest.raises(ValueError, match="pre-tokenizer"):
        byte_level_bpe(["a"], [NORMAL], [], "no-such")
