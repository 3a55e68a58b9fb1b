"""Events as bytes, written from schemas/*.proto alone, so that a test can also write what our own
clients never would."""

import hashlib

TOPICS = {"job": ("jobs", 65539), "node": ("nodes", 262147), "step": ("steps", 458756),
          "node_signal": ("signals", 589826), "autopilot": ("autopilot", 720899), "capacity": ("capacity", 131076)}


def varint(value: int) -> bytes:
    """An unsigned integer of up to 64 bits."""
    said = bytearray()
    while value > 127:
        said.append(value & 127 | 128)
        value >>= 7
    said.append(value)
    return bytes(said)


def zigzag(value: int) -> int:
    """A signed integer as `sint64` keeps it."""
    return (value << 1 ^ value >> 63) & (1 << 64) - 1


class Signed(int):
    """A value of a `sint64` or `sint32` field."""


def message(fields: dict[int, object]) -> bytes:
    """A Protobuf message: integers, `Signed`, texts, bytes, and lists of these for repeated fields."""
    said = b""
    for number, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                plain = zigzag(value) if isinstance(value, Signed) else value
                said += varint(number << 3) + varint(plain)
            else:
                raw = value.encode() if isinstance(value, str) else value
                said += varint(number << 3 | 2) + varint(len(raw)) + raw
    return said


def record(schema: str, key: str, at_ms: int, fields: dict[int, object], source: str, seq: int) -> bytes:
    """One record of an append: an event of cluster `tidegate` with its envelope."""
    content = message(fields)
    identity = hashlib.md5(content + f"{key} {at_ms} {schema}".encode(), usedforsecurity=False).digest()
    envelope = message({1: identity, 2: "tidegate", 3: source, 4: 1, 5: seq, 6: Signed(at_ms), 7: Signed(at_ms)})
    payload = message({1: envelope}) + content
    return message({1: key, 2: TOPICS[schema][1], 3: Signed(at_ms), 4: payload})


def append(schema: str, source: str, first_seq: int, records: list[bytes], epoch: int = 1) -> bytes:
    """The body of `POST /v1/events`."""
    return message({1: TOPICS[schema][0], 2: 0, 3: source, 4: epoch, 5: first_seq, 6: records})
