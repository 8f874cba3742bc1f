"""Runs every <case>.onnx of a folder in ONNX Runtime on the input_ids of <case>.safetensors and compares the
logits stored there. Prints one line per case; exit code 1 when any differs by more than 2e-5."""
import glob
import os
import sys

import numpy as np
import onnxruntime as ort
from safetensors.numpy import load_file

worst = 0.0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx"))):
    case = load_file(path[: -len(".onnx")] + ".safetensors")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ids = case["input_ids"]
    feeds = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            feeds[value.name] = ids
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones(ids.shape, np.int64)
        elif value.name == "position_ids":
            feeds[value.name] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
        elif value.name == "labels":
            feeds[value.name] = ids
        else:  # an empty key-value cache
            shape = [ids.shape[0] if d == "batch_size" else 0 if "past" in str(d) else d for d in value.shape]
            shape = [16 if isinstance(d, str) else d for d in shape]
            feeds[value.name] = np.zeros(shape, np.float32)
    logits = session.run(["logits"], feeds)[0]
    difference = float(np.abs(logits - case["logits"]).max())
    print(f"{os.path.basename(path)} max |difference| {difference:.2e}", flush=True)
    worst = max(worst, difference)
sys.exit(0 if worst <= 2e-5 else 1)
