"""Completions constrained to a JSON schema by token masks from llguidance, an optional package.

    pip install llguidance

The host computes a mask of allowed tokens before every token, so constrained completions are decoded one step at a
time in a separate batch. Their log-probs are those of the masked distribution.
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
"""White space in JSON: any usual indentation. Without a limit a model can write spaces until its budget ends."""


@dataclasses.dataclass(eq=False)
class SchemaConstraint:
    """The constraint of one completion (`marl_jax.sampling.settings.Constraint`)."""

    matcher: Any
    vocab: int
    stop_id: int

    def mask(self) -> np.ndarray:
        """Return the allowed next tokens: bool [V].

        Only the stop token is allowed if nothing else is, or if the matcher failed.
        """
        try:
            bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[: self.vocab].astype(bool)
        except (ValueError, RuntimeError) as error:
            log.warning("llguidance failed on a JSON schema, and a completion ends early: %s", error)
            allowed = np.zeros((self.vocab,), bool)
        if not allowed.any():
            allowed[self.stop_id] = True
        return allowed

    def advance(self, token: int) -> None:
        """Update the matcher with a sampled token."""
        self.matcher.consume_token(token)


@dataclasses.dataclass(frozen=True, eq=False)
class SchemaConstraints:
    """A factory of constraints for completions that must follow a schema."""

    schema: dict
    make: Callable[[], SchemaConstraint]

    def __call__(self) -> SchemaConstraint:
        """Create the constraint of one completion."""
        return self.make()


class JsonOutput:
    """A factory of schema constraints for one model.

    Args:
        tokenizer: Tokenizer of the model.
        vocab: Vocabulary size of the model, which may be larger than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        self._tokenizer, self.vocab = tokenizer, vocab

    def constraint(self, schema: dict) -> SchemaConstraints:
        """Return a factory of constraints for a JSON schema.

        Raises `ApiError` if the schema is not supported.
        """
        if importlib.util.find_spec("llguidance") is None:
            raise ApiError(
                400, "response_format needs the package llguidance, which is not installed on this server",
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
    """A tokenizer in the format that llguidance expects."""

    def __init__(self, tokenizer: Tokenizer, vocab: int):
        table = tokenizer.token_bytes()
        control = {i for i, token in tokenizer.rust.get_added_tokens_decoder().items() if token.special}
        self.eos_token_id, self.bos_token_id = tokenizer.stop_ids[0], tokenizer.bos_id
        self.special_token_ids = sorted({*control, *tokenizer.stop_ids})
        # Rows of the model without a token get bytes that occur in no text, so they are never allowed.
        self.tokens = [table.of(i) or b"\xff<|%d|>" % i for i in range(vocab)]
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self._encode(text)
