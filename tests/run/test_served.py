"""A model on a server answers as the same model in this process; requests are repeated, stored and bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from tests.conftest import Command, CommandResult, error_line
from ttabench.core.errors import UserError
from ttabench.lm.inference.answering import generate
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.loading import server
from ttabench.lm.loading.server import CompletionServer
from ttabench.lm.model import load
from ttabench.lm.patch import Patch
from ttabench.records.folder import RunFolder
from ttabench.records.samples import read_samples

KEY = "sk-secret-of-the-test"
NANO = load("nano", device="cpu")


class Server:
    """Completions of nano over HTTP. `answers`: (status, headers) of the next replies, if not 200."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.echoes = True
        lock, me = Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    me.requests.append(body)
                    me.keys.append(self.headers["Authorization"])
                    refused = body.get("echo") and not me.echoes
                    default = (400, {}) if refused else (200, {})
                    status, headers = me.answers.pop(0) if me.answers else default
                    text = me.reply(body) if status == 200 else {"error": self.headers.as_string()}
                content = json.dumps(text).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"openai:http://127.0.0.1:{self.http.server_port}/v1#nano-served"

    @staticmethod
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        ids, most = NANO.encode(body["prompt"]), body["max_tokens"]
        (made,) = generate(NANO, Patch(), [ids], max_new_tokens=most)
        choice = {"text": NANO.decode(made), "finish_reason": "stop" if len(made) < most else "x"}
        if body.get("echo"):
            (values,) = token_logprobs(NANO, Patch(), [([], ids)])
            # the first token has none without BOS, and the generated token comes last
            missing = [None] * (len(ids) - len(values))
            choice["logprobs"] = {"token_logprobs": [*missing, *values.tolist(), -1.0]}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(made)}
        return {"model": "nano", "choices": [choice], "usage": usage}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(server, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = Server()
    thread = Thread(target=made.http.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


TASK = "--task streamingqa --source mini --task-set documents=3 --task-set questions=2"
COLUMNS = ("key", "prediction", "ended", "prompt")
Evaluate = Callable[..., CommandResult]


@pytest.fixture
def evaluate(ttabench: Command, served: Server, tmp_path: Path) -> Evaluate:
    def call(method: str, task: str = TASK, model: str = "", out: str = "runs") -> CommandResult:
        words = f"eval {task} --method {method} --batch-size 2 --json --out"
        return ttabench(words, tmp_path / out, "--model", model or served.name)

    return call


def run_of(ran: CommandResult) -> dict[str, Any]:
    run: dict[str, Any] = ran.json()["runs"][0]
    return run


def answers(run: dict[str, Any], columns: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
    return sorted(zip(*read_samples(Path(run["folder"]), columns).values(), strict=True))


@pytest.mark.parametrize(
    "method",
    ["none", "icl", "icl --set truncate=left", "rag --set top=1", "random_text --set budget=1.0"],
)
def test_served_answers_equal_local_ones(evaluate: Evaluate, method: str) -> None:
    served, local = run_of(evaluate(method)), run_of(evaluate(method, model="nano"))
    assert answers(served) == answers(local)
    assert served["model"]["reported_name"] == "nano"
    assert served["cost"]["prompt_tokens"] > served["cost"]["requests"] > 6


def test_choices_have_the_log_probabilities_of_the_local_model(evaluate: Evaluate) -> None:
    task = "--task metaicl --source mini --limit 4 --task-set steps=2"
    runs = [run_of(evaluate("icl", task)), run_of(evaluate("icl", task, model="nano"))]
    assert answers(runs[0]) == answers(runs[1])
    ours, expected = ([values for _, values in answers(run, ("key", "logprobs"))] for run in runs)
    for values, local in zip(ours, expected, strict=True):
        assert list(values) == pytest.approx(list(local), abs=1e-3)


def test_states_hold_the_bytes_of_the_text(evaluate: Evaluate) -> None:
    cost = run_of(evaluate("icl"))["cost"]
    assert cost["state_bytes"] == cost["tokens_read"] + 8  # with the number of tokens


@pytest.mark.parametrize("of_generated", [[], [-1.0]])
def test_without_log_probabilities_their_figures_are_absent(
    evaluate: Evaluate, served: Server, of_generated: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.echoes = bool(of_generated)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        found = Server.reply(body)
        found["choices"][0]["logprobs"] = {"token_logprobs": of_generated}
        return found

    monkeypatch.setattr(served, "reply", reply)
    run = run_of(evaluate("icl"))
    metrics = {row["metric"] for row in run["rows"]}
    assert "f1" in metrics
    assert not metrics & {"answer_nll", "answer_nll_sum"}
    assert "log-probabilities" in error_line(evaluate("icl", "--task metaicl --source mini"))


def test_resumed_run_sends_no_request_twice(
    evaluate: Evaluate, served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_of(evaluate("summary --set budget=0.5", out="whole"))
    once = len(served.requests)
    served.requests.clear()

    def die(self: RunFolder, _: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish_episode", die)
        assert evaluate("summary --set budget=0.5").code == 130
    resumed = run_of(evaluate("summary --set budget=0.5"))
    assert len(served.requests) == once == len({json.dumps(sent) for sent in served.requests})
    assert answers(resumed) == answers(whole)
    counts = ("requests", "prompt_tokens", "completion_tokens")
    assert [resumed["cost"][name] for name in counts] == [whole["cost"][name] for name in counts]


def test_busy_server_is_asked_again(served: Server) -> None:
    served.answers = [(429, {"Retry-After": "0"}), (503, {})]
    (made,) = CompletionServer(served.name).complete(["Ada Voss"], [3])
    assert isinstance(made.text, str)
    assert len(served.requests) == 3


def test_waits_are_bounded(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_WAIT_SECONDS", 0)
    served.answers = [(429, {"Retry-After": "3600"})]
    assert CompletionServer(served.name).complete(["Ada Voss"], [3])


def test_redirect_is_refused(evaluate: Evaluate, served: Server) -> None:
    served.answers = [(307, {"Location": "http://127.0.0.1:9/v1/completions"})]
    assert "307" in error_line(evaluate("none"))
    assert len(served.requests) <= 2


def test_long_reply_is_refused(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REPLY_BYTES", 20)
    with pytest.raises(UserError):
        CompletionServer(served.name).complete(["Ada Voss"], [3])


@pytest.mark.parametrize(
    "method", ["mac", "snapkv", "templora", "lora", "doc_to_lora", "prompt_compression", "rag+mac"]
)
def test_methods_that_need_weights_are_refused_first(
    evaluate: Evaluate, served: Server, method: str
) -> None:
    assert served.name in error_line(evaluate(method))
    assert not served.requests


def test_perplexity_is_refused(evaluate: Evaluate, served: Server) -> None:
    task = "--task pg19 --source mini"
    assert served.name in error_line(evaluate("none", task))
    assert not served.requests


@pytest.mark.parametrize(
    "address", ["", "localhost:8000/v1#a", "http://x/v1", "ftp://x/v1#a", "http://x:99999/v1#a"]
)
def test_malformed_address_is_refused(evaluate: Evaluate, address: str) -> None:
    error_line(evaluate("none", model=f"openai:{address}"))


def test_password_in_the_address_is_refused(evaluate: Evaluate) -> None:
    assert KEY not in error_line(evaluate("none", model=f"openai:http://me:{KEY}@x/v1#a"))


def test_unreachable_server_is_one_line_and_loses_nothing(
    evaluate: Evaluate, served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, left = CompletionServer._send, [9]

    def send_some(self: CompletionServer, body: Any) -> dict[str, Any]:
        left[0] -= 1
        if left[0] < 0:
            monkeypatch.setattr(self, "url", "http://127.0.0.1:9/v1")
        return send(self, body)

    with monkeypatch.context() as patched:
        patched.setattr(CompletionServer, "_send", send_some)
        assert "127.0.0.1:9" in error_line(evaluate("icl"))
    before = len(served.requests)
    run_of(evaluate("icl"))
    assert len({json.dumps(sent) for sent in served.requests}) == len(served.requests) > before


def test_key_is_sent_and_stored_nowhere(evaluate: Evaluate, served: Server, tmp_path: Path) -> None:
    served.answers = [(401, {})]
    assert KEY not in error_line(evaluate("icl"))  # this server repeats all headers
    run = evaluate("icl")
    assert set(served.keys) == {f"Bearer {KEY}"}
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in stored + (run.out + run.err).encode()


@pytest.mark.parametrize("command", ["check", "profile --methods icl --out"])
def test_commands_that_measure_the_model_are_refused(
    ttabench: Command, served: Server, tmp_path: Path, command: str
) -> None:
    out = [tmp_path / "profile"] if command.endswith("--out") else []
    assert served.name in error_line(ttabench(command, *out, "--model", served.name))
    assert not served.requests


def test_plan_does_not_contact_the_server(
    ttabench: Command, served: Server, tmp_path: Path
) -> None:
    words = f"eval {TASK} --method rag --dry-run --model {served.name} --out"
    assert ttabench(words, tmp_path / "runs").code == 0
    assert not served.requests


def test_state_of_a_served_model_answers_later(
    ttabench: Command, served: Server, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("Ada Voss lives in Port Ansel.")
    adapt = f"adapt --method icl --model {served.name} --context {tmp_path / 'notes.txt'} --out"
    assert ttabench(adapt, tmp_path / "state").code == 0
    assert not served.requests
    asked = ttabench("ask --state", tmp_path / "state", "Where does Ada Voss live?")
    assert asked.code == 0, asked.err
    assert "Port Ansel" in served.requests[-1]["prompt"]
