"""Requests without an SDK."""
import json
import re
import socket
import urllib.error
import urllib.request


def request(url, body=None, headers=None, method=None, timeout=120):
    """(status, headers, text) of one request; errors are answers like others."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    made = urllib.request.Request(url, data=data, headers={"content-type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(made, timeout=timeout) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def metric(origin, name):
    """The value of a metric that has one series."""
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", request(origin + "/metrics")[2], re.MULTILINE)
    assert found, f"no metric {name}"
    return float(found.group(1))


def post_bytes(path, body):
    text = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text)}\r\n\r\n").encode() + text


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)
