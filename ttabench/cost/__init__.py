"""What a run costs on paper, from published shapes alone: parameters, bytes kept, slots alive, operations."""

from ttabench.cost.load import BYTES as BYTES
from ttabench.cost.load import Cost as Cost
from ttabench.cost.load import Formula as Formula
from ttabench.cost.load import Workload as Workload
from ttabench.cost.load import workload as workload
from ttabench.cost.shape import Shape as Shape
from ttabench.cost.shape import shape_from as shape_from
from ttabench.cost.shape import shape_of as shape_of
