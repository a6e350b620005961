"""The model library of another processor, in an emulator: driver.Model's calls over pipes."""

import struct
import subprocess
from types import SimpleNamespace

import numpy as np


class Remote:
    """What driver.Model is, with the library in the process `command` (see served.cpp)."""

    def __init__(self, command, names, numbers, error):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.names, self.numbers, self.error = names, numbers, error
        (abi,) = self._take("<I")
        isa = self._text()
        (count,) = self._take("<i")
        self.entries = {self._text(): index for index in range(count)}
        self.table = SimpleNamespace(abi=abi, isa=isa.encode())

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def use_threads(self, count):
        self._give(struct.pack("<ii", 0, count))

    def largest_error(self, function, step):
        self._give(struct.pack("<iii", 2, function, step))
        return self._take("<d")[0]

    def run(self, name, *inputs, outputs=1, attrs=()):
        request = [struct.pack("<iiii", 1, self.entries[name], outputs, len(attrs))]
        request.append(struct.pack(f"<{len(attrs)}qi", *attrs, len(inputs)))
        raws = [_raw(x) for x in inputs]
        for x, raw in zip(inputs, raws, strict=True):
            dtype = self.numbers[str(x.dtype).removeprefix("torch.")]
            request.append(struct.pack(f"<ii{x.ndim}qq", dtype, x.ndim, *x.shape, raw.nbytes))
            request.append(raw.tobytes())
        self._give(b"".join(request))
        if self._take("<i")[0] != 0:
            raise self.error(self._text())
        results = [self._array() for _ in range(outputs)]
        for raw in raws:
            raw[...] = np.frombuffer(self._bytes(raw.nbytes), np.uint8)
        return results[0] if outputs == 1 else results

    def _array(self):
        number, ndim = self._take("<ii")
        shape, stride = self._take(f"<{ndim}q"), self._take(f"<{ndim}q")
        name = np.dtype(self.names[number])
        flat = np.frombuffer(self._bytes(self._take("<q")[0]), name)
        return np.lib.stride_tricks.as_strided(
            flat, shape, [s * name.itemsize for s in stride]
        ).copy()

    def _give(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def _bytes(self, count):
        data = self.process.stdout.read(count)
        if len(data) != count:
            raise EOFError(f"the emulated library ended: {self.process.wait()}")
        return data

    def _take(self, form):
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _text(self):
        return self._bytes(self._take("<q")[0]).decode()


def _raw(array):
    """The bytes of a numpy array or a torch tensor, as they lie: what is written here is written there."""
    if hasattr(array, "data_ptr"):
        import torch

        array = array.view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8)
