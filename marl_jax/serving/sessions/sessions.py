"""Sessions: the calls of one rollout, merged into conversations that are exact to the token.

    session = await sessions.open(seed=7)                      # session.key is the client's OPENAI_API_KEY
    ...                                                        # any program talks to the endpoint with that key
    await session.reward(1.0)                                  # on the last answer, or on that of a call
    await session.end()
    chats = session.conversations()                            # as `collate` takes the chats of an episode

A call continues an earlier answer where its messages are those of that call, the answer as the client got it, and new
ones behind it, for the same model and tools. Its prompt is then the ids that were read and sampled before, and the ids
of what is new: nothing is tokenised twice, and the log-probs recorded for an answer belong to exactly the ids in front
of it. A call that does not continue the last answer in its messages forks, from an earlier answer if it can and from
nothing otherwise, and the reason is counted:

    edited     the answer is none of this session's, or the messages before it were others
    reasoning  it is, but for the thoughts in answers, which the client has dropped
    model      another model gave the answer
    tools      other tools were offered then
    template   the chat template cannot be continued

Each answer belongs to one conversation, so it is trained on once; one that is continued twice is the past of both.
Answers that had to follow a JSON schema are part of conversations and not trained on.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.replies import TaskError
from marl_jax.rollouts.host.conversation import derive_seed
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Peer
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.openai import calls, requests
from marl_jax.serving.openai.calls import Call, ServedModel
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.sessions.conversations import SessionConversation, conversations
from marl_jax.serving.sessions.histories import Histories, continued_ids
from marl_jax.serving.sessions.traces import CallTrace, TraceFile
from models.chat import ChatTemplateError

log = logging.getLogger(__name__)

LEVELS = ("team", "agent", "process")
MOST_ENDED = 1024  # sessions that are remembered after their end, for those who read them late


class Session:
    """One rollout of a client, which is known by its key.

    models           that it may ask for
    seed             of answers whose request brings none: with the prompt, it decides them
    policy_sampling  whether temperature and filters are those of the model, not of the request, and no answer is
                     longer than the model's budget: a learner needs that
    rewarded         how many rewards were given
    last_used        when its last call or reward came, a value of time.monotonic()
    forks            how many calls did not continue the last answer in their messages, by reason
    """

    def __init__(
        self, id_: str, key: str, models: Mapping[str, ServedModel], traces: TraceFile, *, seed: int,
        policy_sampling: bool = False, metadata: Any = None,
    ):  # fmt: skip
        self.id, self.key, self.models, self.seed, self.metadata = id_, key, dict(models), seed, metadata
        self.policy_sampling, self.ended, self.last_used = policy_sampling, False, time.monotonic()
        self.calls: dict[str, Call] = {}
        self.forks: collections.Counter[str] = collections.Counter()
        self.rewarded = 0
        self._traces, self._round = traces, 0
        self._by_body: dict[str, Call] = {}
        self._asked: collections.Counter[tuple] = collections.Counter()
        self._histories = Histories()

    # Calls

    def call(self, asked: CompletionRequest, retry_of: str | None = None, body: str | None = None) -> Call:
        """Begins a call, or finds the one that a client repeats.

        retry_of  digest of the body, where the client says that it repeats a request
        body      digest of the body, by which a repetition can find this call
        """
        if self.ended:
            raise ApiError(403, "this session has ended", code="session_ended")
        self.last_used = time.monotonic()
        if retry_of is not None and (known := self._by_body.get(retry_of)) is not None and not known.failed:
            return known
        if asked.model not in self.models:
            raise unknown_model(asked.model, self.models)
        call = Call(self.models[asked.model], asked, self._round)
        self.calls[call.id] = call
        if body is not None:
            self._by_body[body] = call
        call.start(self._answer(call))
        return call

    async def _answer(self, call: Call) -> None:
        recorded, trace = False, CallTrace(self._traces, self.id, call.id)
        try:
            call.ids = await self._prompt(call)
            call.sampling = self._sampling(call)
            before = 0 if call.after is None else len(call.after[0].ids) + len(call.after[0].contents[call.after[1]])
            trace.add({
                "event": "call", "model": call.model.name, "fork": call.fork, "start": before,
                "after": None if call.after is None else [call.after[0].id, call.after[1]],
                "prompt": call.ids[before:], "n": call.asked.n, "sampling": _settings(call),
            })  # fmt: skip
            recorded = True
            await calls.answer(call, trace, call.asked.stream)
            self._round = max(self._round, call.round + 1)
            if call.asked.messages:
                self._histories.remember(call)
        except BaseException as error:
            if call.fork:
                self.forks[call.fork] -= 1
            if recorded:
                reason = "cancelled" if isinstance(error, asyncio.CancelledError) else str(error)
                trace.add({"event": "cancelled", "reason": reason})
            raise

    async def _prompt(self, call: Call) -> list[int]:
        """The ids of a call, which continue an earlier answer if they can."""
        asked, model = call.asked, call.model
        if asked.prompts:
            call.after = continued_ids(call, self.calls.values())
        else:
            call.after, call.fork = self._histories.find(call)
        ids = None
        if call.after is not None and asked.messages:
            earlier, k = call.after
            known = len(earlier.asked.messages)
            try:
                new = await calls.render(asked, model.renderer.continuation, known)
                ids = earlier.ids + earlier.contents[k] + new
            except (ChatTemplateError, ValueError):
                call.after, call.fork = None, "template"
        if call.fork:
            self.forks[call.fork] += 1
        if ids is None:
            ids = await calls.opening(model, asked)
        call.prefix = calls.prefix_of(model, asked)
        return ids + (model.speaker.tokenizer.encode(call.prefix) if call.prefix else [])

    def _sampling(self, call: Call) -> Sampling:
        """The settings of a call: its seed follows from the session's and from what it asks, if it brings none."""
        model, ids, seed = call.model, call.ids, call.asked.seed
        if seed is None:
            key = (model.name, hashlib.sha256(repr(ids).encode()).hexdigest())
            seed = derive_seed(self.seed, *key, self._asked[key])
            self._asked[key] += 1
        sampling = calls.sampling_of(call, seed)
        if self.policy_sampling:
            own = model.speaker.sampling
            names = ("temperature", "top_k", "top_p", "repetition_penalty")
            limit = min(sampling.max_new_tokens, own.max_new_tokens)
            changes = {name: getattr(own, name) for name in names} | {"max_new_tokens": limit}
            sampling = dataclasses.replace(sampling, **changes)
        return sampling

    # Rewards, and the end

    async def reward(self, amount: float, call: str | None = None, k: int | None = None, level: str = "team") -> None:
        """Adds a reward to an answer: of a call and its choice k, by default the last one that was given."""
        answered = [one for one in self.calls.values() if one.answers is not None]
        if call is None and not answered:
            raise ApiError(400, "the session has no answer yet that could be rewarded", param="call")
        chosen = answered[-1] if call is None else self.calls.get(call)
        if chosen is None or chosen.answers is None:
            raise ApiError(404, f"the session has no answered call {call!r}", param="call")
        if level not in LEVELS:
            raise ApiError(400, f"level is {level!r}; expected {', '.join(LEVELS)}", param="level")
        k = self._kept(chosen) if k is None else k
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(chosen.replies):
            raise ApiError(400, f"choice is {k!r}; expected 0 to {len(chosen.replies) - 1}", param="choice")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise ApiError(400, f"reward is {amount!r}; expected a number", param="reward")
        try:
            chosen.replies[k].reward(**{level: amount})
        except (TaskError, OverflowError) as error:
            raise ApiError(400, str(error), param="reward") from None
        self.rewarded += 1
        self.last_used = time.monotonic()
        event = {"event": "reward", "call": chosen.id, "k": k, "level": level, "amount": float(amount)}
        await self._record(event, sync=True)

    def _kept(self, call: Call) -> int:
        """The choice of a call that was continued first, or the first one."""
        later = (c.after[1] for c in self.calls.values() if c.after is not None and c.after[0] is call)
        return next(later, 0)

    async def end(self) -> None:
        """Ends the session: calls under way are cancelled, and later ones refused. May be called again."""
        if self.ended:
            return
        self.ended = True
        running = [call.task for call in self.calls.values() if not call.task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._record({"event": "end"}, sync=True)

    async def _record(self, event: dict, sync: bool = False) -> None:
        await self._traces.write({"session": self.id} | event, sync)

    def conversations(self) -> list[SessionConversation]:
        """The answered calls as conversations, see `conversations.conversations`."""
        return conversations(self.calls.values(), {name: i for i, name in enumerate(self.models)})


def describe(session: Session) -> dict[str, Any]:
    """A session as a JSON value: every call with its ids, and the calls of each conversation."""
    answered = [(call, call.answers) for call in session.calls.values() if call.answers is not None]
    return {
        "id": session.id, "ended": session.ended, "models": list(session.models), "metadata": session.metadata,
        "forks": {reason: n for reason, n in session.forks.items() if n},
        "calls": [
            {"id": call.id, "model": call.model.name, "fork": call.fork,
             "after": None if call.after is None else [call.after[0].id, call.after[1]],
             "prompt": call.ids,
             "answers": [
                 {"tokens": a.tokens.tolist(), "logps": a.logps.tolist(), "versions": a.versions.tolist(),
                  "finish": a.finish, "text": reply.text, "rewards": dataclasses.asdict(reply.rewards)}
                 for a, reply in zip(answers, call.replies, strict=True)
             ]}
            for call, answers in answered
        ],
        "conversations": [
            {"model": list(session.models)[chat.seat], "tokens": chat.tokens, "calls": chat.calls}
            for chat in session.conversations()
        ],
    }  # fmt: skip


class Sessions:
    """The sessions of a server.

    models  by the names that clients give
    traces  where they are written; None: nowhere
    keys    of the server, to which the sessions' keys are added
    peer    the process in which they are
    """

    def __init__(
        self, models: Mapping[str, ServedModel], traces: TraceFile | None = None, keys: Keys | None = None,
        peer: Peer | None = None,
    ):  # fmt: skip
        self.models, self.traces, self.keys = dict(models), traces or TraceFile(None), keys or Keys()
        self.peer = peer or Peer()
        self.open_sessions: dict[str, Session] = {}
        self._ended: collections.OrderedDict[str, Session] = collections.OrderedDict()

    async def open(
        self, *, seed: int | None = None, models: Sequence[str] | None = None, policy_sampling: bool = False,
        metadata: Any = None,
    ) -> Session:  # fmt: skip
        """A new session; `models` are those it may ask for, by default all, and their order numbers the seats."""
        names = list(self.models) if models is None else list(models)
        for name in names:
            if name not in self.models:
                raise unknown_model(name, self.models)
        seed, mark = secrets.randbits(32) if seed is None else seed, self.peer.mark
        chosen = {name: self.models[name] for name in names}
        session = Session(
            requests.new_id(f"sess-{mark}".rstrip("-")), f"sk-{mark}{secrets.token_urlsafe(24)}", chosen,
            self.traces, seed=seed, policy_sampling=policy_sampling, metadata=metadata,
        )  # fmt: skip
        await session._record({"event": "open", "seed": seed, "models": names, "metadata": metadata})
        self.open_sessions[session.id] = session
        self.peer.sessions.add(1)
        self.keys.add(session.key, session)
        return session

    def get(self, id_: str) -> Session:
        """A session by its id; those that ended long ago are known by their traces only."""
        session = self.open_sessions.get(id_) or self._ended.get(id_)
        if session is None:
            raise ApiError(404, f"there is no session {id_!r}", code="session_not_found")
        return session

    async def end(self, session: Session) -> None:
        """Ends a session; it can be read for a while."""
        await session.end()
        if self.open_sessions.pop(session.id, None) is None:
            return
        self.peer.sessions.add(-1)
        self._ended[session.id] = session
        while len(self._ended) > MOST_ENDED:
            self.discard(next(iter(self._ended.values())))

    async def end_idle(self, seconds: float) -> None:
        """Ends the sessions that nobody has used for so long and that wait for no answer."""
        for session in list(self.open_sessions.values()):
            waits = any(not call.task.done() for call in session.calls.values())
            if not waits and time.monotonic() - session.last_used > seconds:
                log.warning("session %s was not used for %g s and is ended", session.id, seconds)
                await self.end(session)

    def discard(self, session: Session) -> None:
        """Forgets a session that has ended; its key is refused from now on."""
        self._ended.pop(session.id, None)
        self.keys.remove(session.key)


def unknown_model(name: str, known: Mapping[str, Any]) -> ApiError:
    """The error of a request for a model that is not served."""
    message = f"the model {name[:100]!r} is not served; models: {', '.join(known)}"
    return ApiError(404, message, param="model", code="model_not_found")


def _settings(call: Call) -> dict[str, Any]:
    """The settings of the sampler as a JSON value."""
    found = {name: value for name, value in vars(call.sampling).items() if name != "constraint"}
    return found | ({} if call.asked.schema is None else {"schema": call.asked.schema})
