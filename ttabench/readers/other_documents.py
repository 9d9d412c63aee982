"""Documents of another context than those a question stream reads: what comes next in the same order.

next_documents(stream, stream.documents)    as many again, with none of their texts; about other entities in a twin
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ttabench.errors import UserError
from ttabench.mini.world import names_in
from ttabench.readers.others import other_seeds
from ttabench.readers.qa_documents import Document, arrange
from ttabench.readers.qa_rows import parse
from ttabench.readers.sources import twin_table

if TYPE_CHECKING:
    from ttabench.readers.qa_stream import QAStream


def next_documents(stream: QAStream, group: Sequence[Document]) -> list[Document]:
    """At most as many documents as the group has: of the next groups, and then those that are not read at all.

    Those of the group's own articles (their titles) are left out, where there are others.

    Raises:
        UserError: there is none.
    """
    texts, place = {document.text for document in group}, stream.documents.index(group[0])
    behind = [*stream.documents[place + len(group) :], *stream.documents[:place], *stream.unread]
    fresh = [document for document in behind if document.text not in texts]
    own = titles_of(group)
    found = ([document for document in fresh if not titles_of([document]) & own] or fresh)[: len(group)]
    if not found:
        what = f"{stream.source} has no documents besides the {len(group)} that are read: there is no other context."
        raise UserError(what, f"Read fewer (--task-set documents={max(1, len(group) // 2)}).")
    return found


def titles_of(documents: Iterable[Document]) -> set[str]:
    """The articles that documents come from, as far as rows have titles."""
    return {row.title for document in documents for row in document.rows if row.title}


def unread(stream: QAStream) -> list[Document]:
    """What is not read, in the same order; of a mini source another draw, about other entities."""
    everything = stream.settings.model_copy(update={"documents": None})
    if stream.source != "mini":
        own = {document.text for document in stream.documents}
        rest = arrange(stream.rows, everything, stream.seed)
        return [document for document in rest if document.text not in own]
    names = {name for document in stream.documents for name in names_in(document.text)}
    count, seed = 2 * len(stream.documents), next(other_seeds(stream.seed))
    data = twin_table(stream.card, stream.split, seed, count, stream.arguments)
    rows, _ = parse(stream.card, data, stream.settings.capitalise)
    return [document for document in arrange(rows, everything, stream.seed) if not names_in(document.text) & names]
