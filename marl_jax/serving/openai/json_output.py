"""Answers that are JSON of a schema, by masks on the tokens from llguidance, an optional package.

    pip install llguidance

Before every token the host says which ones may follow, so such answers are decoded one step at a time, in a batch of
their own. Their log-probs are those of the masked distribution.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_jax.serving.http.errors import ApiError
from models.tokenizers import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

log = logging.getLogger(__name__)

FORMAT: JsonCompileOptions = {"whitespace_flexible": True, "whitespace_pattern": r"\n? {0,16}"}
"""Between the parts of JSON: any usual indentation. Without a limit a model can write spaces until its budget ends."""


@dataclasses.dataclass(eq=False)
class SchemaConstraint:
    """The constraint of one answer (`marl_jax.sampling.settings.Constraint`)."""

    matcher: Any
    vocab: int
    stop_id: int

    def mask(self) -> np.ndarray:
        """bool [V]: what may follow; the end of the answer where nothing else may, or where the matcher gave up."""
        try:
            bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            found = np.unpackbits(bits, bitorder="little")[: self.vocab].astype(bool)
        except (ValueError, RuntimeError) as error:
            log.warning("a JSON schema is too much for llguidance, and an answer ends early: %s", error)
            found = np.zeros((self.vocab,), bool)
        if not found.any():
            found[self.stop_id] = True
        return found

    def advance(self, token: int) -> None:
        """This token has come."""
        self.matcher.consume_token(token)


@dataclasses.dataclass(frozen=True, eq=False)
class SchemaConstraints:
    """Makes a constraint for each answer that has to follow a schema."""

    schema: dict
    make: Callable[[], SchemaConstraint]

    def __call__(self) -> SchemaConstraint:
        return self.make()


class JsonOutput:
    """Constraints for one model.

    vocab  V of the model, which may have more rows than the tokenizer has tokens
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self._tokenizer, self.vocab = tokenizer, vocab

    def constraint(self, schema: dict) -> SchemaConstraints:
        """Makes the constraint of an answer by a JSON schema; one that cannot be followed is the client's error."""
        if importlib.util.find_spec("llguidance") is None:
            raise ApiError(
                400, "response_format needs the package llguidance, which this server does not have",
                param="response_format",
            )  # fmt: skip
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=FORMAT)
            problem = LLMatcher.validate_grammar(grammar, self._ll_tokenizer)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ApiError(400, f"response_format: {problem[:500]}", param="response_format")
        stop_id = self._tokenizer.stop_ids[0]
        return SchemaConstraints(
            schema, lambda: SchemaConstraint(LLMatcher(self._ll_tokenizer, grammar), self.vocab, stop_id)
        )

    @functools.cached_property
    def _ll_tokenizer(self):
        from llguidance import LLTokenizer
        from llguidance._tokenizer import TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Vocabulary(self._tokenizer, self.vocab)), n_vocab=self.vocab)


class _Vocabulary:
    """A tokenizer in the form that llguidance takes."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        table = tokenizer.token_bytes()
        control = {i for i, token in tokenizer.rust.get_added_tokens_decoder().items() if token.special}
        self.eos_token_id, self.bos_token_id = tokenizer.stop_ids[0], tokenizer.bos_id
        self.special_token_ids = sorted({*control, *tokenizer.stop_ids})
        # Rows of the model without a token have bytes that no text has, so that they never fit.
        self.tokens = [table.of(i) or b"\xff<|%d|>" % i for i in range(vocab)]
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
