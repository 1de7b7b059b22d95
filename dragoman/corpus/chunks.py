"""Intermediate results on disk: small Arrow files, each written whole and with its digest.

A preparation that was killed finds them again, and uses those that are as they were written.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from dragoman.text.lines import atomic_write

_NOTES = b"dragoman.notes"
_DIGEST_BYTES = 16


def write_chunk(path: Path, columns: dict[str, Any], notes: dict[str, Any]) -> None:
    """Write columns of one length, and notes about them. Raises UserError when the disk is full."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    written = json.dumps(notes, ensure_ascii=False).encode()
    schema = batch.schema.with_metadata({_NOTES: written})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    content = sink.getvalue()
    with atomic_write(path) as stream:
        stream.write(content)
        stream.write(_digest(content))


def is_whole(path: Path) -> bool:
    """Whether there is a chunk, and every byte of it as it was written."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return False
    return _digest(content[:-_DIGEST_BYTES]) == content[-_DIGEST_BYTES:]


def read_chunk(path: Path, names: Sequence[str] = ()) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Some columns of a chunk, by default none, and its notes; see `is_whole`."""
    content = pa.memory_map(str(path), "r").read_buffer()
    content = content.slice(0, content.size - _DIGEST_BYTES)
    schema = pa.ipc.open_file(content).schema
    options = pa.ipc.IpcReadOptions(
        included_fields=[schema.get_field_index(name) for name in names], use_threads=False
    )
    notes = json.loads(schema.metadata[_NOTES])
    if not names:
        return pa.record_batch([], names=[]), notes
    return pa.ipc.open_file(content, options=options).get_batch(0), notes


def _digest(content: Any) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
