"""What clients, proxies and their libraries do below the JSON: compressed bodies, forms of a target, empty lines."""
import gzip
import json
import zlib

import pytest
import raw_http

PATH = "/v1/completions"


def deflate(data, window):
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("coding, pack", [
    ("gzip", gzip.compress),
    ("X-GZIP", lambda data: gzip.compress(data, 1)),
    ("gzip", lambda data: b"".join(gzip.compress(data[i:i + 7]) for i in range(0, len(data), 7))),
    ("deflate", zlib.compress),
    ("deflate", lambda data: deflate(data, -15)),
    ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    ("identity", bytes),
])
def test_compressed_bodies(server, coding, pack):
    body = {"prompt": "a naïve café " * 40, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    packed = pack(json.dumps(body).encode())
    status, _, text = raw_http.request(server.url(PATH), packed, {"content-encoding": coding})
    assert status == 200, text
    plain = json.loads(raw_http.request(server.url(PATH), body)[2])
    answer = json.loads(text)
    assert (answer["choices"], answer["usage"]) == (plain["choices"], plain["usage"])


@pytest.mark.parametrize("coding, body, status, code", [
    ("br", b"{}", 415, "unsupported_content_encoding"),
    ("gzip, zstd", b"{}", 415, "unsupported_content_encoding"),
    ("gzip", b"{}", 400, "invalid_content_encoding"),
    ("gzip", gzip.compress(b"{}")[:-3], 400, "invalid_content_encoding"),
    ("gzip", gzip.compress(b"{}") + b"tail", 400, "invalid_content_encoding"),
    ("deflate", zlib.compress(b"{}") + b"tail", 400, "invalid_content_encoding"),
    ("gzip", gzip.compress(b" " * (11 << 20)), 413, "request_too_large"),
    ("gzip, gzip", gzip.compress(gzip.compress(b" " * (200 << 20))), 413, "request_too_large"),
])
def test_bodies_that_cannot_be_decoded(server, coding, body, status, code):
    answered, headers, text = raw_http.request(server.url(PATH), body, {"content-encoding": coding})
    assert (answered, json.loads(text)["error"]["code"]) == (status, code)
    assert headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)


def test_through_a_proxy(server):
    """urllib sends a proxy the absolute form of the target."""
    import urllib.request
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": server.origin}))
    with opener.open("http://inference.example/v1/models", timeout=60) as answer:
        assert json.load(answer)["data"]


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/health/", "/metrics/"])
def test_spare_slashes(server, path):
    assert raw_http.request(server.url(path))[0] == 200


def test_a_base_url_with_a_slash_too_many(server, client, model):
    joined = client.with_options(base_url=server.origin + "/v1//")
    assert joined.models.list().data[0].id == model
