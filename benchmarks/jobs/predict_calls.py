"""One way to call a model, in a process of its own: it says how long its calls took, whenever a line asks for some.

    python predict_calls.py INPUT.npy predict BUNDLE/predict.py
    python predict_calls.py INPUT.npy by-hand NET.onnx [THREADS]

A line of standard input is `COUNT SECONDS`; the answer is a line of JSON. By hand is what somebody writes who has read
the first page of ONNX Runtime: a session as it comes, or with a number of threads, and `session.run`.
"""

import importlib.util
import json
import sys
import time

import numpy as np

WARM = 5


def called(words):
    if words[0] == "predict":
        spec = importlib.util.spec_from_file_location("predict", words[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.predict
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if len(words) > 2:
        options.intra_op_num_threads = int(words[2])
    session = onnxruntime.InferenceSession(words[1], options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


def main():
    x = np.load(sys.argv[1], allow_pickle=False)
    call = called(sys.argv[2:])
    answer = np.asarray(call(x)[0])
    print(json.dumps({"answer": answer.ravel()[:1000].tolist()}), flush=True)
    for line in sys.stdin:
        count, seconds = line.split()
        for _ in range(WARM):  # caches, and threads that went to sleep
            call(x)
        times, until = [], time.perf_counter() + float(seconds)
        while len(times) < int(count) and (len(times) < 5 or time.perf_counter() < until):
            began = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - began)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
