"""The protocol between the sandbox and its workers.

A message consists of a length, a JSON value and optionally raw bytes or descriptors.
"""

import json
import socket
import struct

_LENGTH = struct.Struct("!I")


def send(connection: socket.socket, message, *blobs, descriptors=()) -> None:
    """Send a JSON value with descriptors, followed by blobs.

    If there are blobs, the message lists their lengths as `sizes`.
    """
    if blobs:
        message = dict(message, sizes=[len(blob) for blob in blobs])
    text = json.dumps(message).encode()
    head = _LENGTH.pack(len(text)) + text
    sent = socket.send_fds(connection, [head], list(descriptors)) if descriptors else connection.send(head)
    if sent < len(head):
        connection.sendall(head[sent:])
    for blob in blobs:
        connection.sendall(blob)


def receive(connection: socket.socket, most: int = 4) -> tuple[dict, list[int]]:
    """Return a JSON value and the descriptors that came with it.

    Raises:
        EOFError: The other side closed the connection.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, most)
    data += exactly(connection, _LENGTH.size - len(data)) if data else b""
    if not data:
        raise EOFError("the connection was closed")
    (length,) = _LENGTH.unpack(data)
    return json.loads(bytes(exactly(connection, length))), list(descriptors)


def exactly(connection: socket.socket, size: int) -> bytearray:
    """Return the next `size` bytes."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError("the connection was closed in the middle of a message")
        view = view[got:]
    return data
