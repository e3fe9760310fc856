#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/events: event files as TensorBoard's own writer makes them.

    make_events.py OUTDIR		needs the package tensorboard

simple/: scalars as PyTorch's writer has them, resumed at step 3; tensor/: as TensorFlow 2's has.
"""
import pathlib
import sys

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def value(tag, x, as_tensor):
    if not as_tensor:
        return summary_pb2.Summary.Value(tag=tag, simple_value=x)
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[x])
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor)


def write(path, steps, as_tensor=False, restart=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as f:
        w = RecordWriter(f)

        def put(**what):
            w.write(event_pb2.Event(wall_time=1.0, **what).SerializeToString())

        put(file_version="brain.Event:2")
        if restart is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            put(step=restart, session_log=start)
        for step, loss in steps:
            values = [value("train/loss", loss, as_tensor)]
            if step % 2 == 0:
                values.append(value("valid/loss", loss + 1, as_tensor))
            put(step=step, summary=summary_pb2.Summary(value=values))
        w.flush()


out = pathlib.Path(sys.argv[1])
write(out / "simple/events.out.tfevents.1.host", [(1, 5), (2, 4.5), (3, 9), (4, 9), (5, 9)])
write(out / "simple/events.out.tfevents.2.host", [(3, 4), (4, 3.5)], restart=3)
write(out / "tensor/events.out.tfevents.1.host", [(1, 5), (2, 4.5)], as_tensor=True)
