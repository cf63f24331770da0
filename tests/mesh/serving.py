"""Requests to a server under test."""
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request



def get(url, timeout=10):
    """(status, text); (None, why) when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def complete(url, timeout=120, **body):
    """The answer to one completion that is not streamed."""
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def stream(url, timeout=60, on_event=lambda: None, **body):
    """(events of a streamed completion as they came, how it ended): "done"; "error", then the last event is the error;
    "refused", then it is the whole answer; "cut", the connection ended in between."""
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body | {"stream": True}).encode(),
                                     {"content-type": "application/json"})
    events = []
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line[6:]))
                    on_event()
                if line.startswith(b"data: [DONE]"):
                    return events, "error" if "error" in events[-1] else "done"
        return events, "error" if events and "error" in events[-1] else "cut"
    except urllib.error.HTTPError as error:
        return [json.loads(error.read())], "refused"
    except (OSError, ValueError):
        return events, "cut"


class Server:
    """`sixfold serve` as one process; leaving the block ends it with SIGTERM, which must drain and give 0."""

    def __init__(self, sixfold, *arguments):
        self.process = sixfold.start("serve", *arguments, "--port", 0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        greeting = ""
        while not (found := re.search(r"http://[0-9.:]+\d", greeting)):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            greeting += line
        self.url = found.group()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        try:
            _, self.err = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        if exception[0] is None:
            assert self.process.returncode == 0 and "drained" in self.err, self.err
