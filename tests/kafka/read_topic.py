#!/usr/bin/env python3
"""Reads and writes events on Kafka as any other program can: with the files of schemas/ and Confluent's Python client.

    tests/kafka/read_topic.py read SERVERS TOPIC        one JSON object a message: key, headers, time, schema, event
    tests/kafka/read_topic.py write SERVERS TOPIC       appends the events given in the same form on standard input
    tests/kafka/read_topic.py install                   only makes its environment

Nothing of Tidegate is used but its schemas. Needs Python 3.11; installs what requirements.txt names beside the repository.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
SCHEMAS = HERE.parent.parent / "schemas"
PATIENCE_S = 60


def enter_environment() -> None:
    """Goes on in a virtual environment that has what requirements.txt names, made at the first run."""
    requirements = HERE / "requirements.txt"
    wanted = requirements.read_text() + sys.version
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    home = cache / f"kafka-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if Path(sys.prefix) == home:
        return
    complete = home / "complete"
    if not complete.exists():
        venv.create(home, clear=True, with_pip=True)
        install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--requirement", requirements], check=True)
        complete.touch()
    os.execv(home / "bin/python", [str(home / "bin/python"), *sys.argv])


def compile_schemas() -> dict[int, type]:
    """The message class of every schema, by the schema's id: the first message of each file that schemas/README.md lists."""
    from google.protobuf import descriptor_pb2, message_factory
    from grpc_tools import protoc

    def first(file) -> type:
        description = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(description)
        return message_factory.GetMessageClass(file.message_types_by_name[description.message_type[0].name])

    with tempfile.TemporaryDirectory(prefix="tidegate-schemas-") as generated:
        files = [str(file) for file in sorted(SCHEMAS.glob("*.proto"))]
        if protoc.main(["protoc", f"-I{SCHEMAS}", f"--python_out={generated}", *files]) != 0:
            sys.exit("schemas/*.proto cannot be compiled")
        sys.path.insert(0, generated)
        listed = re.findall(r"^\| \[(\w+)\]\(\w+\.proto\) \| (\d+) \|", (SCHEMAS / "README.md").read_text(), re.MULTILINE)
        return {int(number): first(import_module(f"{name}_pb2").DESCRIPTOR) for name, number in listed}


def read(servers: str, topic: str) -> None:
    """Prints what stands in the topic now."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.protobuf.json_format import MessageToDict

    decoders = {number: ProtobufDeserializer(message) for number, message in compile_schemas().items()}
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "read_topic",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    })
    partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    at_end = set()
    while len(at_end) < len(partitions):
        message = consumer.poll(PATIENCE_S)
        if message is None:
            sys.exit(f"{servers} does not answer")
        if message.error():
            if message.error().code() != KafkaError._PARTITION_EOF:
                sys.exit(str(message.error()))
            at_end.add(message.partition())
            continue
        number = int.from_bytes(message.value()[1:5], "big")
        event = decoders[number >> 16](message.value(), SerializationContext(topic, MessageField.VALUE))
        print(json.dumps({
            "key": message.key().decode(),
            "headers": {name: value.decode() for name, value in message.headers() or []},
            "time_ms": message.timestamp()[1],
            "schema": number,
            "event": MessageToDict(event, preserving_proto_field_name=True),
        }))
    consumer.close()


class Numbers:
    """A schema registry as far as the serializer asks one: it knows each subject under one number."""

    def __init__(self, number: int):
        self.number = number

    def config(self) -> dict:
        return {}

    def lookup_schema(self, subject: str, _schema, **_) -> SimpleNamespace:
        return SimpleNamespace(subject=subject, schema_id=self.number, guid=None, version=1)


def write(servers: str, topic: str) -> None:
    """Produces what stands on standard input, without our headers: the frame alone names the schema."""
    from confluent_kafka import Producer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.protobuf.json_format import ParseDict

    messages = compile_schemas()
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for line in sys.stdin:
        entry = json.loads(line)
        message = messages[entry["schema"] >> 16]
        encode = ProtobufSerializer(message, Numbers(entry["schema"]), {"auto.register.schemas": False})
        value = encode(ParseDict(entry["event"], message()), SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, value, entry["key"], timestamp=entry["time_ms"])
    if producer.flush(PATIENCE_S):
        sys.exit(f"{servers} does not take the events")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            enter_environment()
        case ["read", servers, topic]:
            enter_environment()
            read(servers, topic)
        case ["write", servers, topic]:
            enter_environment()
            write(servers, topic)
        case _:
            sys.exit(__doc__)
