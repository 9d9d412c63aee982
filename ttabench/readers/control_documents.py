"""Documents of another context than those a question stream reads: what comes next in the same order.

next_documents(group, behind, "mini")    as many again, with none of their texts; about other entities in a twin
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ttabench.core.errors import UserError
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound
from ttabench.readers.control_contexts import other_seeds
from ttabench.readers.qa_documents import Document, arrange
from ttabench.readers.qa_rows import QARow, parse
from ttabench.readers.sources import twin_table


def next_documents(group: Sequence[Document], behind: Sequence[Document], source: str) -> list[Document]:
    """At most as many documents as the group has.

    Those of the group's own articles (their titles) are left out, where there are others.

    Args:
        group: what is read.
        behind: what comes after it: the next groups, and then what is not read at all.
        source: where they are from, for the message.
    """
    texts = {document.text for document in group}
    fresh = [document for document in behind if document.text not in texts]
    own = titles_of(group)
    documents = ([document for document in fresh if not titles_of([document]) & own] or fresh)[: len(group)]
    if not documents:
        fault = f"{source} has no documents besides the {len(group)} that are read: there is no other context."
        raise UserError(fault, f"Read fewer (--task-set documents={max(1, len(group) // 2)}).")
    return documents


def titles_of(documents: Iterable[Document]) -> set[str]:
    """The articles that documents come from, as far as rows have titles."""
    return {row.title for document in documents for row in document.rows if row.title}


def unread(task: Bound[Any], rows: Sequence[QARow], documents: Sequence[Document]) -> list[Document]:
    """Documents that are not read, in the same order; of a mini source another draw, about other entities."""
    everything = task.settings.model_copy(update={"documents": None})
    if not task.mini:
        own = {document.text for document in documents}
        rest = arrange(rows, everything, task.seed)
        return [document for document in rest if document.text not in own]
    names = {name for document in documents for name in names_in(document.text)}
    count, seed = 2 * len(documents), next(other_seeds(task.seed))
    data = twin_table(task.card, task.split, seed, count, task.arguments)
    fresh, _ = parse(task.card, data, task.settings.capitalise)
    return [document for document in arrange(fresh, everything, task.seed) if not names_in(document.text) & names]
