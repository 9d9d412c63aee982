"""Public names for extensions: methods, tasks and metrics.

from ttabench.extend import Method, MethodSpec, Patch, State

Each name is imported at its first use, so that a module with a `MethodSpec` does not import torch.
"""

from typing import TYPE_CHECKING

from ttabench.core.lazy import lazy_names

if TYPE_CHECKING:
    from ttabench.core.errors import (
        require_at_least as require_at_least,
        require_at_most as require_at_most,
    )
    from ttabench.core.types import (
        Answer as Answer,
        Choose as Choose,
        Chunk as Chunk,
        Episode as Episode,
        Generate as Generate,
        Json as Json,
        Query as Query,
        Score as Score,
        Step as Step,
        StreamPosition as StreamPosition,
    )
    from ttabench.cost import (
        FLOAT32_BYTES as FLOAT32_BYTES,
        INT64_BYTES as INT64_BYTES,
        Cost as Cost,
        NoSettings as NoSettings,
        Shape as Shape,
        Workload as Workload,
        answer_flops as answer_flops,
        closed_book_cost as closed_book_cost,
        reread_cost as reread_cost,
    )
    from ttabench.lm.forward.patching import forward as forward, prefill as prefill
    from ttabench.lm.forward.tokens import new_chunk_ids as new_chunk_ids, pad as pad
    from ttabench.lm.model import LM as LM
    from ttabench.lm.patch import (
        Dense as Dense,
        Eviction as Eviction,
        LowRank as LowRank,
        Patch as Patch,
        Prefix as Prefix,
        State as State,
    )
    from ttabench.methods.base import Method as Method, tokens_read as tokens_read
    from ttabench.methods.eviction.scoring import ScoringMethod as ScoringMethod
    from ttabench.methods.eviction.spec import (
        BudgetSettings as BudgetSettings,
        attention_sum_flops as attention_sum_flops,
        eviction_spec as eviction_spec,
    )
    from ttabench.methods.parts.kept import (
        append_ids as append_ids,
        extend_prefix as extend_prefix,
        prefix_from_tensors as prefix_from_tensors,
        prefix_tensors as prefix_tensors,
        stored_ids as stored_ids,
        window_patch as window_patch,
    )
    from ttabench.methods.parts.one_forward import episode_row as episode_row, row_loss as row_loss
    from ttabench.methods.parts.settings import (
        Amount as Amount,
        as_budget as as_budget,
        check_amount as check_amount,
        in_tokens as in_tokens,
    )
    from ttabench.methods.spec import MethodSpec as MethodSpec, Recipe as Recipe
    from ttabench.methods.trainable import Trainable as Trainable, answer_loss as answer_loss
    from ttabench.readers.base import Task as Task, Training as Training
    from ttabench.readers.cards import Card as Card, ProtocolSettings as ProtocolSettings
    from ttabench.readers.qa_stream import QAStream as QAStream
    from ttabench.readers.sources import (
        Request as Request,
        load_table as load_table,
        resolve_settings as resolve_settings,
    )
    from ttabench.readers.tokens import Tokens as Tokens
    from ttabench.stats.metrics import Metric as Metric, metric as metric
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
