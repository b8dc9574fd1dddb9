"""Write tokenizers.json: ids and chat texts made by the reference implementations of each kind of tokenizer.

    python tests/models/golden/make_tokenizer_golden.py --data SHARED_DATA --weights FOLDER_WITH_GGUF_FILES

Needs transformers, sentencepiece and xllamacpp (llama.cpp), none of which the tests need. References:

    qwen2.5      tokenizer.json, by transformers
    tok512       tok512.model, by sentencepiece
    smollm2      SmolLM2-135M-Instruct.Q4_1.gguf, by llama.cpp
    tinyllama    tinyllama-1.1b-chat-iq2_xxs.gguf, by llama.cpp
    chat         the models' own templates, by transformers
"""

import argparse
import json
import lzma
import tempfile
import urllib.request
from pathlib import Path

import sentencepiece
import transformers
import xllamacpp
from gguf import GGUFReader
from transformers.utils.chat_template_utils import render_jinja_template

TEXTS = [
    "Hello world", "The capital of France is", "def fib(n):\n    ", "Question: What is 7 times 8?\nAnswer:", "",
    "  two  spaces   three", "tabs\t\tand\nlines\n\n\nend\n", " leading", "trailing ", "I'll don't we've HE'S they'D",
    "1234567890 3.14159 1,000,000 ½ Ⅷ ²", "日本語 中文 한국어 العربية עברית हिन्दी ไทย",
    "🙂👩‍👩‍👧‍👦🇫🇷 ❤️", "café naïve Ünïcödé", "a\r\nb\r\n\r\nc",
    "x = {'a': [1, 2, 3]}  # comment\n\tif (y>=2)&&!z {}", "<|im_start|>user\nhi<|im_end|>\n",
    "</s> after eos</s></s>x",
    "...---===***", "\u00a0nbsp\u2003em\u200bzero", "CamelCaseWordsAndSCREAMING_SNAKE", "http://example.com/a?b=c&d=%20",
    "    indented\n        more\n", "\x01\x7f", "ABC123def456", "Once upon a time, there was a little girl named Lily.",
]  # fmt: skip
SYSTEM, USER, ANSWER, AGAIN = (
    {"role": "system", "content": "Play well."},
    {"role": "user", "content": "Your move?\n1 2 3"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And now?"},
)
THOUGHT = {"role": "assistant", "content": "<think>\nhm, 3 then\n</think>\n\n3"}
CHATS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, AGAIN],
    "all": [SYSTEM, USER, ANSWER, AGAIN],
    "answered": [SYSTEM, USER, ANSWER],
    "thought": [USER, THOUGHT],
    "thoughts": [USER, THOUGHT, AGAIN, THOUGHT],
}


def llama_cpp_ids(path: Path) -> list[list[int]]:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup = str(path), 64, False
    server = xllamacpp.Server(params)
    ids = []
    for text in TEXTS:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        address = f"{server.listening_address}/tokenize"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            ids.append(json.load(answer)["tokens"])
    return ids


def qwen_ids(data: Path) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        packed = (data / "tokenizers/qwen2.5_tokenizer.json.xz").read_bytes()
        Path(folder, "tokenizer.json").write_bytes(lzma.decompress(packed))
        config = (data / "tokenizers/qwen2.5_tokenizer_config.json").read_bytes()
        Path(folder, "tokenizer_config.json").write_bytes(config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def chats(template: str, eos: str, **options) -> dict[str, str]:
    rendered = {}
    for name, messages in CHATS.items():
        for prompt in (True, False):
            texts, _ = render_jinja_template(
                [messages], chat_template=template, add_generation_prompt=prompt, bos_token="", eos_token=eos, **options
            )
            rendered[f"{name}/{'prompt' if prompt else 'bare'}"] = texts[0]
    return rendered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    arguments = parser.parse_args()
    gguf = {
        "smollm2": arguments.weights / "SmolLM2-135M-Instruct.Q4_1.gguf",
        "tinyllama": arguments.weights / "tinyllama-1.1b-chat-iq2_xxs.gguf",
    }
    templates = {
        name: json.loads((arguments.data / f"tokenizers/{name}_tokenizer_config.json").read_text())["chat_template"]
        for name in ("qwen2.5", "qwen3")
    } | {name: GGUFReader(path).fields["tokenizer.chat_template"].contents() for name, path in gguf.items()}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(arguments.data / "weights/tok512.model"))
    golden = {
        "texts": TEXTS,
        "ids": {
            "qwen2.5": qwen_ids(arguments.data),
            # sentencepiece does not parse control tokens in a text
            "tok512": [None if "</s>" in text else pieces.encode(text) for text in TEXTS],
            **{name: llama_cpp_ids(path) for name, path in gguf.items()},
        },
        "messages": CHATS,
        "chats": {
            "qwen2.5": chats(templates["qwen2.5"], "<|im_end|>"),
            "qwen3": chats(templates["qwen3"], "<|im_end|>"),
            "qwen3-no-thinking": chats(templates["qwen3"], "<|im_end|>", enable_thinking=False),
            "smollm2": chats(templates["smollm2"], "<|im_end|>"),
            "zephyr": chats(templates["tinyllama"], "</s>"),
        },
    }
    target = Path(__file__).with_name("tokenizers.json")
    target.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
