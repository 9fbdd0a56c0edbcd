"""Measure codecs on the fields that are stored: bytes, and seconds to write and read, on one thread.

Regridded daily maximum temperature and precipitation (float32), as working series (all days of a block of 600 cells)
and as the product's maps (four years of 50 x 50 cells). Each line: size relative to the raw values, megabytes of raw
values written and read a second, checksum included. Last line: one JSON object.

    python benchmarks/codecs.py [--years 20]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ["BLOSC_NTHREADS"] = "1"

import google_crc32c
import numcodecs
import numpy as np
from production_input import hats

from espo_luigi.demo.sources import SIMULATIONS
from espo_luigi.demo.weather import days_of, invent_weather

SHUFFLES = {1: "byte shuffle", 2: "bit shuffle"}
CHOSEN = "blosc lz4 5, byte shuffle"


def codecs() -> dict[str, numcodecs.abc.Codec]:
    plain = {f"zstd {level}": numcodecs.Zstd(level) for level in (0, 1, 5)}
    blosc = {
        f"blosc {name} {level}, {SHUFFLES[shuffle]}": numcodecs.Blosc(name, level, shuffle)
        for name in ("lz4", "zstd")
        for level in (1, 3, 5)
        for shuffle in SHUFFLES
    }
    return {**plain, **blosc}


def fields(years: int) -> dict[str, list[np.ndarray]]:
    """Chunks of two variables in two shapes, interpolated from a grid of 1 degree as regridding does."""
    days = days_of("noleap", 1991, 1990 + years)
    coarse = invent_weather(
        SIMULATIONS[0].climate, days, np.arange(40.0, 52), np.arange(280.0, 295), np.random.default_rng(1)
    )
    rows, columns = np.arange(42, 47, 0.1), np.arange(283, 293, 0.1)
    finer = hats(np.arange(40.0, 52), rows), hats(np.arange(280.0, 295), columns).T
    chunks = {}
    for name in ("tasmax", "pr"):
        fine = (finer[0] @ coarse[name] @ finer[1]).astype("f4")
        series = fine.reshape(len(fine), -1)
        chunks[f"{name}, series"] = [np.ascontiguousarray(series[:, at : at + 600]) for at in range(0, 3000, 600)]
        chunks[f"{name}, maps"] = [
            np.ascontiguousarray(fine[first : first + 1460, :, at : at + 50])
            for first in range(0, len(fine) - 1459, 1460)
            for at in (0, 50)
        ]
    return chunks


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(codec: numcodecs.abc.Codec, chunks: list[np.ndarray]) -> dict[str, float]:
    raw = sum(chunk.nbytes for chunk in chunks)
    encoded: list[bytes] = []

    def write() -> None:
        for chunk in chunks:
            encoded.append(bytes(codec.encode(chunk)))
            google_crc32c.value(encoded[-1])

    def read() -> None:
        for chunk, stored in zip(chunks, encoded, strict=True):
            google_crc32c.value(stored)
            codec.decode(stored, np.empty_like(chunk))

    writing, reading = seconds(write), min(seconds(read) for _ in range(3))
    return {
        "size": round(sum(map(len, encoded)) / raw, 3),
        "write_mb_per_s": round(raw / writing / 1e6),
        "read_mb_per_s": round(raw / reading / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=20)
    found = {}
    for field, chunks in fields(parser.parse_args().years).items():
        print(f"{field}\n{'codec':32}{'size':>7}{'write MB/s':>12}{'read MB/s':>11}")
        for name, codec in codecs().items():
            found[f"{field}, {name}"] = one = measure(codec, chunks)
            mark = " <- ours" if name == CHOSEN else ""
            print(f"{name:32}{one['size']:7.3f}{one['write_mb_per_s']:12}{one['read_mb_per_s']:11}{mark}")
    print(f"1-minute load now {os.getloadavg()[0]:.1f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
