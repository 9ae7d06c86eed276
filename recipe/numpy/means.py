"""Records numpy's float32 means of a strided column, bit for bit, for the test of `family/vela/decode/mean.rs`.

    python -m venv .venv && .venv/bin/pip install numpy==2.4.6
    .venv/bin/python recipe/numpy/means.py > tests/fixtures/numpy-means.json

The column holds `x[i] = (i * 2654435761 mod 2^32) >> 8`, divided by 2^24: exact in float32, easy to make again.
"""
import json

import numpy as np

LENGTHS = [*range(1, 301), 1000, 1024, 4099, 20000]
COLUMNS = 17

values = [((i * 2654435761) % 2**32 >> 8) / 2**24 for i in range(max(LENGTHS))]
table = np.zeros((len(values), COLUMNS), dtype=np.float32)
table[:, 5] = values
means = [[n, int(table[:n, 5].mean(dtype=np.float32).view(np.uint32))] for n in LENGTHS]
print(json.dumps({"numpy": np.__version__, "means": means}, separators=(",", ":")))
