"""Completions of a model on an OpenAI-compatible server, such as vLLM or SGLang.

server = CompletionServer("openai:http://localhost:8000/v1#Qwen3-8B")
server.complete(["The capital of France is"], [16])
server.continuation_logprobs([("The capital of France is", [" Paris", " Rome"])])

Only this address is contacted: no redirects, no proxies. The key is that of `OPENAI_API_KEY`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from ttabench.core.errors import UserError, escape_control_characters
from ttabench.core.types import Json

SERVED_PREFIX = "openai:"
"""Start of the name of a served model."""
KEY_VARIABLE = "OPENAI_API_KEY"
ADDRESS_HINT = f"Use {SERVED_PREFIX}http://HOST:PORT/v1#NAME. A key goes into {KEY_VARIABLE}."
SERVER_HINT = "Repeat the command to resume: stored answers are kept."
PROBE_TEXT = "The lighthouse is on the north coast of the island."
MAX_CONCURRENT_REQUESTS = 8
MAX_RETRIES, MAX_CONNECTION_RETRIES = 5, 2
"""Repetitions of a request, and those after a refused connection: often a wrong address."""
BACKOFF_SECONDS = 0.5
"""First wait before a request is repeated. It doubles each time."""
MAX_WAIT_SECONDS = 60
"""Limit of `Retry-After` and of all other waits."""
CONNECT_SECONDS, READ_SECONDS = 10, 600
"""Time-outs of a request."""
MAX_REPLY_BYTES = 2**26
MAX_MESSAGE_CHARS = 200


def is_served(name: str) -> bool:
    """Return True for the name of a model on a server."""
    return name.startswith(SERVED_PREFIX)


def parse_address(name: str) -> tuple[str, str]:
    """Split `openai:URL#NAME` into URL and name. Raises a UserError for other URLs."""
    url, _, model = name.removeprefix(SERVED_PREFIX).partition("#")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if "@" in url:
        raise UserError("--model contains a user name or a password.", ADDRESS_HINT)
    if not is_url or "?" in url or not model:
        raise UserError(f"{name!r} is not the address of a served model.", ADDRESS_HINT)
    return url.rstrip("/"), model


@dataclass(frozen=True)
class Completion:
    """Text that a server generated."""

    text: str
    ended: bool
    """True if it ended within the token limit."""


class RefusedRequest(UserError):
    """Error for a request that the server refused, such as a context that is too long."""


class CompletionServer:
    """Client of `/completions`, with temperature 0 and plain-text prompts.

    Requests with a stored reply are not sent, see `use_replies`.
    """

    def __init__(self, name: str) -> None:
        self.url, self.model = parse_address(name)
        self._lock = Lock()
        self._replies: dict[str, Json] = {}
        self._store = self._replies.__setitem__

    def use_replies(self, replies: dict[str, Json], store: Callable[[str, Json], None]) -> None:
        """Use these replies, by digest of their request. `store` adds one."""
        self._replies, self._store = replies, store

    @property
    def reported_model(self) -> str:
        """Name of the model in the last reply; empty before the first."""
        return next((str(reply["model"]) for reply in reversed(self._replies.values())), "")

    @cached_property
    def returns_logprobs(self) -> bool:
        """True if the server returns log-probabilities of the tokens of a prompt."""
        try:
            reply = self._post(PROBE_TEXT, 1, echo=True)
        except RefusedRequest:
            return False
        # some servers return those of generated tokens alone, or nothing in their place
        count, logprobs = reply["prompt_tokens"], reply["logprobs"]
        return len(logprobs) > count > 1 and None not in logprobs[1:count]

    def complete(self, prompts: Sequence[str], limits: Sequence[int]) -> list[Completion]:
        """Continue each prompt by at most this number of tokens of the server, greedily."""
        with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
            replies = list(pool.map(self._post, prompts, limits))
        return [Completion(reply["text"], reply["finish"] == "stop") for reply in replies]

    def continuation_logprobs(
        self, items: Sequence[tuple[str, Sequence[str]]]
    ) -> list[list[list[float]]]:
        """Return the natural-log probability of each token of each continuation of each prompt.

        The tokens of a continuation are those of the whole text after the number of tokens of the
        prompt, as in lm-evaluation-harness.
        """
        if not self.returns_logprobs:
            fault = f"{self.url} returns no log-probabilities of prompts, which this task needs."
            raise UserError(fault, "Use vLLM or SGLang, or a task with generated answers.")
        texts = [prompt + continuation for prompt, options in items for continuation in options]
        with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
            starts = list(pool.map(self._count_tokens, [prompt for prompt, _ in items]))
            replies = pool.map(lambda text: self._post(text, 1, echo=True), texts)
            return [
                [_target_logprobs(next(replies), start) for _ in options]
                for start, (_, options) in zip(starts, items, strict=True)
            ]

    def _count_tokens(self, prompt: str) -> int:
        return int(self._post(prompt, 1)["prompt_tokens"]) if prompt else 0

    def _post(self, prompt: str, max_tokens: int, *, echo: bool = False) -> dict[str, Any]:
        """Return the stored reply to a request, or send it and store the reply."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            **({"echo": True, "logprobs": 1} if echo else {}),
        }
        key = hashlib.sha256(json.dumps([self.url, body]).encode()).hexdigest()
        if key not in self._replies:
            reply = self._send(body)
            with self._lock:
                self._store(key, reply)
        found: dict[str, Any] = self._replies[key]
        return found

    @cached_property
    def _session(self) -> Any:
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        class BoundedRetry(Retry):
            def get_retry_after(self, response: Any) -> float | None:
                seconds = super().get_retry_after(response)
                return seconds and min(seconds, MAX_WAIT_SECONDS)

        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        retry = BoundedRetry(
            MAX_RETRIES,
            connect=MAX_CONNECTION_RETRIES,
            allowed_methods=None,
            status_forcelist=(429, 500, 502, 503, 504),
            backoff_factor=BACKOFF_SECONDS,
            backoff_max=MAX_WAIT_SECONDS,
            raise_on_status=False,
        )
        session = Session()
        session.trust_env = False  # no proxies, no passwords of .netrc
        for scheme in ("http://", "https://"):
            session.mount(
                scheme, HTTPAdapter(pool_maxsize=MAX_CONCURRENT_REQUESTS, max_retries=retry)
            )
        return session

    def _send(self, body: Json) -> dict[str, Json]:
        """Send a request, and return the parts of the reply that are used."""
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        secret = os.environ.get(KEY_VARIABLE, "")
        try:
            with self._session.post(
                f"{self.url}/completions",
                json=body,
                headers={"Authorization": f"Bearer {secret}"} if secret else {},
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
                content = response.raw.read(MAX_REPLY_BYTES + 1, decode_content=True)
        except (RequestException, HTTPError, OSError, ValueError) as error:
            fault = f"{self.url} cannot be reached ({type(error).__name__})."
            raise UserError(
                fault, f"Start the server, or fix the address. {SERVER_HINT}"
            ) from error
        if len(content) > MAX_REPLY_BYTES:
            raise UserError(f"{self.url} sent more than {MAX_REPLY_BYTES} bytes.", ADDRESS_HINT)
        if status != 200:
            message = " ".join(content.decode("utf-8", "replace").split())
            message = message.replace(secret, "***") if secret else message
            message = escape_control_characters(message[:MAX_MESSAGE_CHARS])
            fault = f"{self.url} answered with status {status}: {message}"
            hint = f"Fix the address, the name or {KEY_VARIABLE}, or use less context."
            kind = RefusedRequest if status in (400, 422) else UserError
            raise kind(f"{fault.rstrip('.')}.", f"{hint} {SERVER_HINT}")
        try:
            return _parse_reply(json.loads(content))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            fault = f"{self.url} sent a reply that is not of the completions API."
            raise UserError(fault, ADDRESS_HINT) from error


def _parse_reply(reply: Json) -> dict[str, Json]:
    """Select text, log-probabilities, counts and the name of the model."""
    (choice,), usage = reply["choices"], reply["usage"]
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return {
        "text": str(choice["text"]),
        "finish": str(choice.get("finish_reason")),
        "logprobs": [None if value is None else float(value) for value in logprobs],
        "prompt_tokens": int(usage["prompt_tokens"]),
        "completion_tokens": int(usage.get("completion_tokens") or 0),
        "model": str(reply.get("model", ""))[:MAX_MESSAGE_CHARS],
    }


def _target_logprobs(reply: dict[str, Any], start: int) -> list[float]:
    """Return the log-probabilities of the tokens from `start` on, at least of the last one.

    The first token of a text has none if the server adds no BOS.
    """
    end = reply["prompt_tokens"]
    return [value for value in reply["logprobs"][min(start, end - 1) : end] if value is not None]
