"""Asks Perfetto's trace processor, run by `trace_processor.cjs`, about a trace file.

    trace_processor_client.py NODE FOLDER TRACE < {"name": "SELECT …"}

Prints the first value of each answer, by name, as JSON. The requests and answers are those of Perfetto's own
Python package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


class Pipe:
    """The transport: the stdin and stdout of Node."""

    def __init__(self, *words: str) -> None:
        script = str(Path(__file__).with_name("trace_processor.cjs"))
        self.process = subprocess.Popen(
            [words[0], script, *words[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(count)
        if len(data) != count:
            raise ConnectionError("the trace processor ended")
        return data

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main(node: str, folder: str, trace: str) -> None:
    protos = ProtoFactory(PlatformDelegate())
    pipe = Pipe(node, folder)
    asking = TraceProcessorRpc(pipe, protos)
    try:
        load(asking, protos, Path(trace).read_bytes())
        print(json.dumps({name: first(asking, sql) for name, sql in json.load(sys.stdin).items()}))
    finally:
        pipe.close()


def load(asking: Any, protos: Any, data: bytes) -> None:
    for kind, content in (("TPM_APPEND_TRACE_DATA", data), ("TPM_FINALIZE_TRACE_DATA", None)):
        stream = protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = getattr(protos.TraceProcessorRpc, kind)
        if content is not None:
            request.append_trace_data = content
        asking.transport.send(stream.SerializeToString())
        answer = protos.TraceProcessorRpc()
        answer.ParseFromString(asking._read_payload())
        assert not answer.HasField("fatal_error"), answer.fatal_error
        assert not answer.append_result.error, answer.append_result.error


def first(asking: Any, sql: str) -> Any:
    answer = asking.execute_query(sql)
    assert not answer.error, answer.error
    batch = answer.batch[0]
    kinds = asking.protos.QueryResult.CellsBatch
    kind = batch.cells[0]
    values = {kinds.CELL_VARINT: batch.varint_cells, kinds.CELL_FLOAT64: batch.float64_cells}
    return values[kind][0] if kind in values else batch.string_cells.split("\0")[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
