"""What a machine lacks skips a test; in CI it fails (tests/conftest.py)."""
import errno
import os
import shutil
import subprocess
import sys

import pytest

import terminal
from program import ROOT

SKIPS = {
    "in the test": "import pytest\ndef test_it():\n    pytest.skip('no such thing')\n",
    "by a mark": "import pytest\n@pytest.mark.skipif(True, reason='no such thing')\ndef test_it():\n    pass\n",
    "in a fixture": "import pytest\n@pytest.fixture\ndef thing():\n    pytest.skip('no such thing')\ndef test_it(thing):\n    pass\n",
    "of a module": "import pytest\npytest.skip('no such thing', allow_module_level=True)\n",
}


@pytest.mark.parametrize("where", SKIPS)
def test_a_skip_is_a_failure_in_ci_alone(tmp_path, where):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(SKIPS[where])

    def run(**extra):
        environment = {k: v for k, v in os.environ.items() if k != "CI"} | extra
        return subprocess.run([sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
                              env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    alone, ci = run(), run(CI="true")
    assert "1 skipped" in alone.stdout and "failed" not in alone.stdout and "no such thing" in alone.stdout
    assert ci.returncode not in (0, 5) and "CI=true" in ci.stdout and "no such thing" in ci.stdout and "skipped" not in ci.stdout.splitlines()[-1]


def test_without_pseudo_terminals_their_tests_are_skipped_with_the_reason(sixfold, monkeypatch):
    def refuse():
        raise OSError(errno.ENOSPC, "out of pty devices")
    monkeypatch.setattr(os, "openpty", refuse)
    with pytest.raises(pytest.skip.Exception, match="no pseudo terminal.*out of pty devices"):
        terminal.Terminal([sixfold.binary, "--help"], sixfold.environment())
