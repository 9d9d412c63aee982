"""Tables as one Parquet file: one row a row of any of them, told apart by the column `table`, as in CSV."""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.terminal.table import Table


def as_parquet(tables: Sequence[Table]) -> bytes:
    """The content of the file; cells that a table lacks are null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"table": table.title, **row} for table in tables for row in table.data]
    columns = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        cells = [row.get(key) for row in rows]
        mixed = {type(cell) for cell in cells if cell is not None} > {str}
        columns[key] = pa.array([None if cell is None else str(cell) for cell in cells] if mixed else cells)
    file = pa.BufferOutputStream()
    with pq.ParquetWriter(file, (table := pa.table(columns)).schema, compression="zstd") as writer:
        writer.write(table)
    return bytes(file.getvalue())
