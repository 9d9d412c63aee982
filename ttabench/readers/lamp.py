"""LaMP: entries of a user's profile are read one by one, with a query after 1, 2, 4, 8 and 16 of
them.

    Chunk('the category for the article: "a heron was seen ..." is "politics"'), Query(...), ...

Each user is one episode and one pass, so every step queries the same users. The seed draws the
entries and their order. A card has several sub-tasks (`--task-set task=movies`), each with its own
metrics. The protocol is that of CCM (arXiv 2312.03414, appendix D). Entries longer than
`max_entry_tokens` are left out, and users who keep less than nine tenths of theirs. Of the others,
as many entries as the last step needs are drawn, with replacement if there are fewer.

As published:

    LaMP_2/dev_questions.json
        [{"id": "200", "input": "Which tag ...? ... description: A council bans sleep.",
          "profile": [{"id": "1000", "tag": "comedy", "description": "..."}, ...]}, ...]
    LaMP_2/dev_outputs.json
        {"task": "LaMP_2", "golds": [{"id": "200", "output": "dystopia"}, ...]}
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError, require_known
from ttabench.core.types import Chunk, Episode, Json, Query, Step, StreamPosition
from ttabench.mini.world import categories_in
from ttabench.readers.base import (
    Task,
    Training,
    interleave,
    make_unique,
    move_blanks_forward,
    pick_evenly,
    replace_chunks,
    swap_seeds,
)
from ttabench.readers.cards import Card, Profile, ProtocolSettings, Scalar
from ttabench.readers.formats import RawRow, require_text, short_repr
from ttabench.readers.sources import (
    RawTable,
    Request,
    load_table,
    parse_table,
    read_table,
    resolve_settings,
    run_generator,
    table_of_generated,
)
from ttabench.readers.tokens import (
    StepCounts,
    TokenCount,
    TokenCounter,
    TokenLimit,
    Tokens,
    count_fitting,
    estimate_tokens,
    token_counter,
)

_FIELD = re.compile(r"\{(\w+)\}")
_SUB_TASK_HINT = "If it belongs to another sub-task, use --task-set task=NAME."
JOINER = "\n"
"""Text between a profile and the query."""
MIN_KEPT_SHARE = 0.9
"""Users with a smaller share of entries within the length limit are left out."""
N_SWAP_SEEDS, USERS_PER_SWAP_SEED = 4, 64
"""Number of other synthetic-world seeds to draw swapped contexts from, and of users per seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a profile."""

    id: str
    text: str
    about: str = ""
    """Query about the entry; empty if it cannot be a query."""
    answer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user: a query and a profile."""

    id: str
    instruction: str
    input: str
    output: str
    options: tuple[str, ...]
    """Empty if the answer is generated."""
    entries: tuple[Entry, ...]


def synthetic_users(
    card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]
) -> list[User]:
    """Generate the users of the synthetic world for a split, of the first sub-task."""
    questions, outputs = run_generator(card, split, seed, **arguments)
    golds = table_of_generated(card, outputs["golds"])
    part = next(iter(card.profiles.values()))
    return _parse_users(part, table_of_generated(card, questions), golds)


def load_users(card: Card, part: Profile, request: Request) -> tuple[list[User], RawTable]:
    """Load (users in file order, the table of their questions)."""
    folders = (
        *part.folders,
        *(f"{top}/{folder}" for top in card.source.folders for folder in part.folders),
    )
    source = card.source.model_copy(update={"folders": folders})
    data = load_table(card.model_copy(update={"source": source}), request)
    golds = data.location.replace("questions", "outputs")
    if not Path(golds).is_file() or golds == data.location:
        hint = "Add the file. LaMP does not publish the outputs of its test rows: use the dev rows."
        raise UserError(f"The right answers to {data.location} are missing ({golds}).", hint)
    # one in ten rows of the training file is a validation row
    if request.split != "test":
        validates = request.split == "validation"
        kept = [row for number, row in enumerate(data.rows, 1) if (number % 10 == 0) == validates]
        data = replace(data, rows=kept)
    return _parse_users(part, data, read_table(Path(golds))), data


def _parse_users(part: Profile, questions: RawTable, golds: RawTable) -> list[User]:
    answers = dict(
        parse_table(golds, lambda row: (_cell_text(row, "id"), _cell_text(row, "output")))
    )

    def user_of(raw: RawRow) -> User | str:
        key, query = _cell_text(raw, "id"), _cell_text(raw, "input")
        if (output := answers.pop(key, None)) is None:
            raise ValueError(
                f"the id {short_repr(key)} is repeated, or has no answer in the file of outputs"
            )
        head, marker, given = query.partition(part.marker)
        if not marker:
            raise UserError(
                f"{raw.location}: input {short_repr(query)} does not contain {part.marker!r}.",
                _SUB_TASK_HINT,
            )
        # rows of the synthetic world have their own options
        given_options: Any = raw.values.get("options", part.options)
        options = tuple(given_options)
        if options and output not in options:
            raise ValueError(
                f"output {short_repr(output)} is not among the options "
                f"{short_repr(', '.join(options), 200)}"
            )
        profile: Any = raw.values["profile"]
        entries = (
            _parse_entry(part, RawRow(f"{raw.location} profile[{i}]", values), i)
            for i, values in enumerate(profile)
        )
        text = given.strip()
        # an entry may be the text of the query itself
        quoted = ("", f'"{text}"')
        kept = tuple(
            entry
            for entry in entries
            if entry.about != text and (entry.about or entry.text not in quoted)
        )
        if not (kept and text and output):
            return "user without a profile, query or answer"
        return User(
            id=key,
            instruction=head + marker,
            input=text,
            output=output,
            options=options,
            entries=kept,
        )

    return parse_table(questions, user_of)


def _parse_entry(part: Profile, raw: RawRow, number: int) -> Entry:
    text = _FIELD.sub(lambda match: _cell_text(raw, match[1]), part.entry)
    about, answer = (_cell_text(raw, name) if name else "" for name in (part.text, part.output))
    return Entry(
        id=_cell_text(raw, "id") if "id" in raw.values else str(number),
        text=text,
        about=about,
        answer=answer,
    )


def _cell_text(raw: RawRow, name: str) -> str:
    """Return a cell as stripped text; scores may be numbers."""
    cell = raw.require([name], _SUB_TASK_HINT)
    return require_text(name, str(cell) if isinstance(cell, int) else cell).strip()


class Settings(ProtocolSettings):
    """Protocol settings of the reader `lamp`; `--task-set` may change them."""

    task: str = "news"
    """Sub-task; only one at a time, because each has its own metrics."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Numbers of entries after which there is a query."""
    max_entry_tokens: TokenLimit = 99
    """Longer entries are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Maximum tokens of the entries with the query and its longest answer; 0 for no limit."""
    max_new_tokens: TokenCount = 32
    """Maximum tokens of a generated answer."""


class FittedUser(NamedTuple):
    """A user within the length limits."""

    user: User
    shown: Sequence[Entry]
    """In reading order."""
    read_counts: Mapping[int, int]
    """Number of entries read before the query, by step."""


@dataclass(frozen=True)
class Profiles(Task[Settings]):
    """A `Task` of users and their profiles."""

    users: Sequence[User]

    def filter_by_length(self, tokens: Tokens | None) -> tuple[list[FittedUser], dict[str, int]]:
        """Return (users who are queried, counts of excluded items by reason); `limit` counts every
        step of every user.
        """
        share = None if self.limit is None else self.limit // len(set(self.settings.steps))
        return self._fit_users(pick_evenly(self.users, share), token_counter(tokens))

    def _fit_users(
        self, users: Sequence[User], size: TokenCounter
    ) -> tuple[list[FittedUser], dict[str, int]]:
        fits, dropped = [], Counter[str]()
        for user in users:
            kept = self._short_entries(user, size)
            dropped["entry too long"] += len(user.entries) - len(kept)
            if not kept or len(kept) < MIN_KEPT_SHARE * len(user.entries):
                dropped["user with too many long entries"] += 1
                continue
            drawn, fit = self._draw_entries(kept, user), max(self.settings.steps)
            if most := self.settings.max_tokens:
                options = (size(self.card.prompt.delimiter + option) for option in user.options)
                answer = max(options, default=self.settings.max_new_tokens)
                sizes = (size(entry.text + self.card.prompt.joiner) for entry in drawn)
                fit = count_fitting(sizes, most, answer + size(self._prompt(user)))
            read_counts = {step: min(step, fit) for step in self.settings.steps}
            dropped["query asked after fewer entries"] += sum(
                step != place for step, place in read_counts.items()
            )
            fits.append(FittedUser(user, drawn[: max(read_counts.values())], read_counts))
        return fits, +dropped

    def _short_entries(self, user: User, size: TokenCounter) -> list[Entry]:
        most = self.settings.max_entry_tokens
        return [entry for entry in user.entries if not most or size(entry.text) <= most]

    def _draw_entries(self, entries: Sequence[Entry], user: User) -> list[Entry]:
        """Draw as many entries as the last step needs; fewer are a prefix of more, and repeats get
        their own ids.
        """
        source = random.Random(f"profile {user.id} {self.seed}")
        n_requested = max(self.settings.steps)
        if n_requested <= len(entries):
            return source.sample(entries, len(entries))[:n_requested]
        seen = Counter[str]()
        return [
            replace(entry, id=make_unique(entry.id, seen))
            for entry in source.choices(entries, k=n_requested)
        ]

    def _prompt(self, user: User) -> str:
        return user.instruction + self.card.prompt.fill_template(user.input, "query")

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, FittedUser]]:
        """Yield one episode per user."""
        for fitted in self.select_fitting(tokens):
            user = fitted.user
            queries = (
                (n_read, self._query(user, step, f"{user.id}@{step}"))
                for step, n_read in sorted(fitted.read_counts.items())
            )
            steps = interleave([self._chunk(entry) for entry in fitted.shown], queries)
            key = self.episode_key(user.id, self.settings.task)
            yield Episode(key=key, steps=tuple(move_blanks_forward(steps))), fitted

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield each episode with the profile of the next user that reveals nothing about the own
        one, or else of the next user.

        In the synthetic world a user assigns categories to topics. Another user who reads about
        none of these topics reveals nothing about them.
        """
        every, n_skipped = self.select_fitting(tokens), 1
        if self.is_synthetic:
            sizes = {**self.arguments, "users": USERS_PER_SWAP_SEED}
            seeds = islice(swap_seeds(self.seed), N_SWAP_SEEDS)
            users = [
                user
                for seed in seeds
                for user in synthetic_users(self.card, self.split, seed, sizes)
            ]
            every, n_skipped = self._fit_users(users, token_counter(tokens))[0], 0
        for place, (episode, fitted) in enumerate(self.episodes_with_source(tokens), n_skipped):
            candidates = islice(cycle(every), place, place + len(every) - n_skipped)
            other = self.first_disjoint(
                self._contents(fitted), candidates, self._contents, allow_overlap=True
            )
            yield replace_chunks(episode, map(self._chunk, other.shown))

    def _contents(self, fitted: FittedUser) -> set[str]:
        """Return the contents that two users must not share."""
        texts = {entry.text for entry in fitted.shown}
        return categories_in([fitted.user.input, *texts]) if self.is_synthetic else texts

    def _chunk(self, entry: Entry) -> Chunk:
        return Chunk(text=entry.text, key=entry.id, joiner=self.card.prompt.joiner)

    def _query(self, user: User, step: int, key: str) -> Query:
        prompt = self.card.prompt
        return Query(
            prompt=self._prompt(user),
            key=key,
            want=prompt.make_choose(user.options, user.output)
            if user.options
            else prompt.make_generate((user.output,), self.settings.max_new_tokens),
            question=user.input,
            joiner=JOINER,
            subtask=self.settings.task,
            at=StreamPosition(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield one user each: `documents` entries, then the query and `questions` - 1 others about
        entries not read.

        A mini source generates a new user for every episode. If entries have no answers, there is
        only the user's own query.
        """
        rng = training.rng
        n_entries = training.documents + training.questions
        arguments = {**self.arguments, "users": 1, "entries": n_entries}
        for number in count():
            if self.is_synthetic:
                (user,) = synthetic_users(self.card, self.split, rng.getrandbits(48), arguments)
            else:
                user = rng.choice(self.users)
            entries, held_out = training.split(self._short_entries(user, estimate_tokens))
            others = [
                replace(user, input=entry.about, output=entry.answer)
                for entry in held_out
                if entry.about and entry.answer in (user.options or [entry.answer])
            ]
            queries = [
                self._query(asked, len(entries), f"{user.id}@{number}.{i}")
                for i, asked in enumerate([user, *others][: training.questions])
            ]
            yield self.split, move_blanks_forward([*map(self._chunk, entries), *queries])

    def counts(self) -> dict[str, Json]:
        """Count all users, and the chunks and queries of those who are queried."""
        return {"users": len(self.users), "observed": self.n_chunks, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every text that may be shown or queried."""
        for user in self.users:
            yield from (user.id, user.instruction, user.input, user.output, *user.options)
            for entry in user.entries:
                yield from (entry.id, entry.text)


def read(card: Card, request: Request) -> Profiles:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    known = list(card.profiles)[: 1 if request.source == "mini" else None]
    require_known(f"sub-task of {card.name}", settings.task, known)
    part, data = card.profiles[settings.task], RawTable()
    if request.source == "mini":
        users = synthetic_users(card, request.split, request.seed, arguments)
    else:
        users, data = load_users(card, part, request)
    card = card.with_metrics(*part.metrics, chance=part.chance)
    return Profiles(card, request, settings, arguments, data, users)
