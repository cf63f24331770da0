"""`run` in a pseudo terminal: editing, history, several lines, pastes, and keys that are pressed while an answer comes."""
import json
import os
import re
import signal
import stat
import subprocess
import sys
import termios

import pytest

from program import ROOT
from terminal import Terminal

TOY = ROOT / "models" / "toy"
PASTE = "\x1b[200~{}\x1b[201~"
UP, DOWN, LEFT, HOME, DELETE = "\x1b[A", "\x1b[B", "\x1b[D", "\x1b[H", "\x1b[3~"
ENDLESS = ["--ignore-eos", "--max-tokens", "20000"]


@pytest.fixture
def chat(sixfold, tmp_path):
    """flags → the chat, at its first prompt."""
    def start(*flags, term="xterm", state=tmp_path, model=TOY, **kwargs):
        environment = sixfold.environment(TERM=term, XDG_STATE_HOME=str(state), HOME=str(tmp_path))
        limit = [] if "--max-tokens" in flags else ["--max-tokens", "24"]
        return Terminal([sixfold.binary, "run", model, "--temperature", "0", *limit, *flags], environment, **kwargs)
    return start


def at_prompt(terminal):
    return terminal.line() == ">"


def answered(times):
    """That many answers are complete, and the prompt is there again."""
    return lambda t: t.raw.count(b"tokens/s)") == times and t.line().startswith(">")


def history(state):
    path = state / "sixfold" / "run_history"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tokens_in(sixfold, *messages):
    """Prompt tokens of a chat of these messages, by turns the user's and the model's."""
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(messages)]
    text = sixfold("render", TOY, "-", "--add-generation-prompt", stdin=json.dumps(said)).out
    return len(sixfold("tokenize", TOY, "--no-special", "--json", stdin=text).json()["ids"])


def told_tokens(terminal):
    return [int(n) for n in re.findall(rb"\((\d+) tokens in", terminal.raw)]


class TestEditing:
    KEYS = {
        "Say hj.\x7f\x7fi.": "Say hi.",                       # Backspace
        "ay hi." + HOME + "S": "Say hi.",
        "SSay hi." + HOME + DELETE: "Say hi.",
        "Say hi nobody\x17\x7f.": "Say hi.",                  # Ctrl-W
        "rubbish\x15Say hi.": "Say hi.",                      # Ctrl-U
        "Grüße, 世 🙂" + 2 * LEFT + "界": "Grüße, 世界 🙂",
        "né世🙂" + 3 * "\x7f" + "ew": "new",                  # Backspace takes characters, not bytes
    }

    def test_keys_edit_the_line(self, sixfold, chat, tmp_path):
        with chat("--max-tokens", "2") as terminal:
            for n, (keys, text) in enumerate(self.KEYS.items()):
                terminal.wait(at_prompt).type(keys)
                terminal.wait(lambda t: t.line() == "> " + text or "🙂" in text and "界" in t.line() and "🙂" in t.line())
                terminal.type("\r")
                terminal.wait(answered(n + 1)).type("/new\r")
                terminal.wait(lambda t: t.raw.count(b"(new chat)") == n + 1)
            assert [line for line in history(tmp_path) if line != "/new"] == list(self.KEYS.values())
            assert told_tokens(terminal) == [tokens_in(sixfold, text) for text in self.KEYS.values()]

    @pytest.mark.parametrize("term", ["xterm", "vt100", "no-such-terminal", "dumb", ""])
    def test_every_terminal_takes_a_line_and_ends_with_ctrl_d(self, chat, tmp_path, term):
        with chat(term=term) as terminal:
            terminal.wait(at_prompt).type("Say hi, 世界.\r")
            terminal.wait(answered(1)).type("\x04")
            assert terminal.end() == 0 and terminal.modes_are_back()
            assert (b"\x1b[?2004l" in terminal.raw) == (term not in ("dumb", ""))
        assert history(tmp_path) == ["Say hi, 世界."]

    def test_a_line_beyond_the_4095_bytes_of_the_kernel(self, sixfold, chat, tmp_path):
        text = " ".join(f"word{n}" for n in range(700)) + " 世界"
        assert len(text) > 5000
        with chat("--max-tokens", "4") as terminal:
            terminal.wait(at_prompt).type(text + "\r")
            terminal.wait(answered(1))
            assert history(tmp_path) == [text] and told_tokens(terminal) == [tokens_in(sixfold, text)]
            terminal.type(UP)
            terminal.wait(lambda t: "word699" in t.line())  # recalled as a whole
            terminal.type("\x03")
            terminal.wait(at_prompt)


class TestSeveralLines:
    KEYS = [  # keys, message, what history keeps
        ("one\\\rtwo\r", "one\ntwo", "one\ntwo"),
        ("C:\\\\\r", "C:\\\\", "C:\\\\"),  # two backslashes are text
        ('"""one\r\rtwo\\\r"""\r', "one\n\ntwo\\\n", '"""one\n\ntwo\\\n"""'),
        ('"""one"""\r', "one", '"""one"""'),
        ("one\x1b\rtwo\r", "one\ntwo", "one\ntwo"),  # Alt-Enter
        (PASTE.format("one\r\n\ttwo\rthree\n/bye 世界\n") + "\x7f\r", "one\n\ttwo\nthree\n/bye 世界", "one\n\ttwo\nthree\n/bye 世界"),
        ("a " + PASTE.format("b\nc") + " d\r", "a b\nc d", "a b\nc d"),
    ]

    def test_they_are_one_message_now_and_when_recalled(self, sixfold, chat, tmp_path):
        with chat("--max-tokens", "2") as terminal:
            for n, (keys, text, kept) in enumerate(self.KEYS):
                terminal.wait(at_prompt).type(keys)
                terminal.wait(answered(2 * n + 1)).type("/new\r")
                terminal.wait(lambda t: t.raw.count(b"(new chat)") == 2 * n + 1).wait(at_prompt).type(UP + UP + "\r")
                terminal.wait(answered(2 * n + 2)).type("/new\r")
                terminal.wait(lambda t: t.raw.count(b"(new chat)") == 2 * n + 2)
                assert history(tmp_path)[4 * n::2] == [kept, kept], keys
                assert told_tokens(terminal)[2 * n:] == 2 * [tokens_in(sixfold, text)], keys

    def test_a_paste_is_shown_line_by_line_and_can_be_edited(self, chat):
        with chat() as terminal:
            terminal.wait(at_prompt).type(PASTE.format("first\r\nsecond\r\nthird") + "\x01Z")
            terminal.wait_for("> Zfirst")
            at = terminal.lines().index("> Zfirst")
            assert terminal.lines()[at:] == ["> Zfirst", "second", "third"] and terminal.line() == "> Zfirst"
            terminal.type("\x03")
            terminal.wait(at_prompt)
            assert terminal.lines()[at:] == ["> Zfirst", "second", "third^C", ">"]

    def test_a_large_paste(self, sixfold, chat):
        text = "\n".join("Once upon a time there was a little hedgehog." for n in range(200))
        with chat("--max-tokens", "4") as terminal:
            terminal.wait(at_prompt).type(PASTE.format(text))
            terminal.type("\r")
            terminal.wait(answered(1))
            assert told_tokens(terminal) == [tokens_in(sixfold, text)]


class TestWhileAnAnswerComes:
    def test_keys_neither_change_it_nor_get_lost(self, sixfold, chat, tmp_path):
        """The answer on the screen is the one that a pipe gets; what was typed is the next message, and the line after it."""
        ask = "Tell me a long story."
        want = sixfold("run", TOY, ask, "--temperature", 0, "--max-tokens", 150, "--ignore-eos").out
        with chat("--max-tokens", "150", "--ignore-eos") as terminal:
            terminal.wait(at_prompt).type(ask + "\r")
            shown = len(terminal.raw)
            terminal.wait(lambda t: len(t.raw) > shown + 60)
            assert "tokens/s)" not in "\n".join(terminal.lines())
            for key in "Say 世界.\rnext":
                terminal.type(key)
            terminal.wait(answered(2)).wait_for("> next")
            text = terminal.raw.split(ask.encode() + b"\r\n")[1].split(b"\x1b[2m(")[0]
            assert text.decode().replace("\r\n", "\n") == want
        assert history(tmp_path) == [ask, "Say 世界."]

    def test_ctrl_c_ends_the_answer_only_and_keeps_the_keys(self, chat, tmp_path):
        with chat(*ENDLESS) as terminal:
            terminal.wait(at_prompt).type("Tell me a long story.\r")
            shown = len(terminal.raw)
            terminal.wait(lambda t: len(t.raw) > shown + 60).type("typed")
            terminal.type("\x03")
            terminal.wait_for(", stopped;").wait_for("> typed").type(" ahead")
            terminal.wait_for("> typed ahead").type("\x15\x04")
            assert terminal.end() == 0 and terminal.modes_are_back()

    def test_more_than_the_kernel_keeps(self, chat, tmp_path):
        text = "x" * 20000
        with chat(*ENDLESS) as terminal:
            terminal.wait(at_prompt).type("Go on.\r")
            shown = len(terminal.raw)
            terminal.wait(lambda t: len(t.raw) > shown + 60).type(text)
            terminal.type("\x03")
            terminal.wait_for(", stopped;").wait(lambda t: t.line().endswith("x")).type("y\x03")
            terminal.wait(at_prompt).type("/exit\r")
            assert terminal.end() == 0
            assert re.sub(rb"[^x]", b"", terminal.raw.split(b"stopped;")[1]).count(b"x") >= len(text)


class TestControlKeys:
    def test_ctrl_c_at_the_prompt_drops_what_is_typed(self, chat, tmp_path):
        with chat() as terminal:
            terminal.wait(at_prompt).type("not this")
            terminal.wait_for("> not this").type("\x03")
            terminal.wait_for("> not this^C").wait(at_prompt).type('"""nor\r')
            terminal.wait(lambda t: t.line() == ".").type("this\x03\x03")
            terminal.wait(at_prompt).type("Say hi.\r")
            terminal.wait(answered(1)).type("more\x04")  # Ctrl-D ends only where there is no text
            terminal.type("\x15\x04")
            assert terminal.end() == 0 and terminal.modes_are_back()
        assert history(tmp_path) == ["Say hi."]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
    def test_a_signal_ends_it_and_gives_the_terminal_back(self, chat, number):
        with chat() as terminal:
            terminal.wait(at_prompt)
            assert not terminal.modes_are_back()
            terminal.signal(number)
            assert terminal.end() == -number and terminal.modes_are_back()
            assert terminal.raw.rstrip().endswith(b"\x1b[?2004l")

    def test_ctrl_z_suspends_and_gives_the_terminal_back(self, sixfold, tmp_path):
        """A shell of a few lines: a program can be suspended only where somebody can continue it."""
        shell = """if True:
            import os, signal, sys, termios
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                os.tcsetpgrp(0, os.getpid())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
                os.execv(sys.argv[1], sys.argv[1:])
            _, status = os.waitpid(child, os.WUNTRACED)
            os.tcsetpgrp(0, os.getpgrp())
            modes = termios.tcgetattr(0)[3]
            print("suspended", os.WIFSTOPPED(status), bool(modes & termios.ECHO), bool(modes & termios.ICANON), flush=True)
            sys.stdin.readline()
            os.tcsetpgrp(0, child)
            os.kill(child, signal.SIGCONT)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        environment = sixfold.environment(TERM="xterm", XDG_STATE_HOME=str(tmp_path))
        with Terminal([sys.executable, "-c", shell, sixfold.binary, "run", TOY, "--max-tokens", "4"], environment) as terminal:
            terminal.wait(at_prompt).type("Say \x1a")
            terminal.wait_for("suspended True True True").type("fg\r")
            terminal.wait(lambda t: t.line().endswith("> Say")).type("hi.\r")
            terminal.wait(answered(1)).type("\x04")
            assert terminal.end() == 0
        assert history(tmp_path) == ["Say hi."]

    def test_a_window_of_another_size(self, chat):
        with chat(columns=40) as terminal:
            terminal.wait(at_prompt).type("x" * 50)
            terminal.wait(lambda t: t.lines()[-2:] == ["> " + "x" * 38, "x" * 12])


class TestHistory:
    def test_a_later_chat_recalls_it(self, chat, tmp_path):
        with chat() as terminal:
            terminal.wait(at_prompt).type("Say one.\r")
            terminal.wait(answered(1)).type("Say two.\r")
            terminal.wait(answered(2)).type("\x04")
            assert terminal.end() == 0
        assert stat.S_IMODE((tmp_path / "sixfold" / "run_history").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "sixfold").stat().st_mode) == 0o700
        with chat() as terminal:
            terminal.wait(at_prompt).type(UP)
            terminal.wait_for("> Say two.").type(UP)
            terminal.wait_for("> Say one.").type(DOWN)
            terminal.wait_for("> Say two.").type("\x03")
            terminal.wait(at_prompt).type("\x12one")  # Ctrl-R
            terminal.wait(lambda t: "Say one." in "\n".join(t.lines()[-3:]))

    def test_it_is_bounded_and_a_public_file_becomes_private(self, chat, tmp_path):
        path = tmp_path / "sixfold" / "run_history"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(f"old {n}") + "\n" for n in range(2500)) + "no JSON\n")
        path.chmod(0o644)
        with chat() as terminal:
            terminal.wait(at_prompt).type("/help\r")
            terminal.wait_for("Ctrl-R").type(UP + UP)
            terminal.wait_for("> old 2499").type("\x03")
            terminal.wait(at_prompt).type("/bye\r")
            assert terminal.end() == 0
        kept = history(tmp_path)
        assert len(kept) == 1002 and kept[0] == "old 1500" and kept[-3:] == ["old 2499", "/help", "/bye"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_where_it_cannot_be_kept_the_chat_goes_on(self, chat, tmp_path):
        (tmp_path / "file").write_text("")
        with chat(state=tmp_path / "file") as terminal:
            terminal.wait(at_prompt).type("Say hi.\r")
            terminal.wait(answered(1)).type(UP)
            terminal.wait_for("> Say hi.").type("\x15\x04")
            assert terminal.end() == 0

    def test_no_history(self, chat, tmp_path):
        with chat("--no-history") as terminal:
            terminal.wait(at_prompt).type("Say hi.\r")
            terminal.wait(answered(1)).type("\x04")
            assert terminal.end() == 0
        assert history(tmp_path) == [] and not (tmp_path / "sixfold").exists()


class TestCommands:
    def test_help_says_all(self, chat):
        with chat() as terminal:
            terminal.wait(at_prompt).type("/help\r")
            terminal.wait_for("waits for its end")
            text = "\n".join(terminal.lines())
            for word in ("/new", "/clear", "/help", "/?", "/bye", "/exit", "/quit", "Alt-Enter", '"""', "\\", "paste", "Ctrl-C", "Ctrl-D",
                         "Ctrl-Z", "Ctrl-R", "Up and Down"):
                assert word in text, word

    @pytest.mark.parametrize("command", ["/clear", "/new"])
    def test_clear_forgets(self, sixfold, chat, command):
        with chat() as terminal:
            terminal.wait(at_prompt).type("Say one.\r")
            terminal.wait(answered(1)).type("Say two.\r")
            terminal.wait(answered(2)).type(command + "\r")
            terminal.wait_for("(new chat)").wait(at_prompt).type("Say two.\r")
            terminal.wait(answered(3))
            told = told_tokens(terminal)
            assert told[0] == tokens_in(sixfold, "Say one.") and told[2] == tokens_in(sixfold, "Say two.") < told[1]

    def test_what_is_no_command_is_not_sent_unless_a_space_is_before_it(self, sixfold, chat):
        with chat() as terminal:
            terminal.wait(at_prompt).type("/etc/hosts\r")
            terminal.wait_for("no such command").wait(at_prompt).type(" /etc/hosts\r")
            terminal.wait(answered(1))
            assert told_tokens(terminal) == [tokens_in(sixfold, " /etc/hosts")]


def test_stdout_that_is_no_terminal_gets_plain_lines(chat):
    """As a script that drives it through `tee` has it: no escape sequence, no echo of ours, Ctrl-C twice leaves."""
    with chat(stdout=subprocess.PIPE) as terminal:
        terminal.wait_for("Ask away")
        terminal.type("Say hi.\n")
        terminal.wait_for("tokens/s)")
        assert terminal.local_modes() & termios.ICANON and terminal.local_modes() & termios.ECHO
        terminal.type("/bye\n")
        assert terminal.end() == 0
        shown = terminal.process.stdout.read().decode()
    assert shown.startswith("\n> ") and shown.endswith("\n> \n") and "\x1b" not in shown and len(shown) > 20
    assert "\x1b[?2004" not in terminal.raw.decode()


def test_a_chat_remembers(sixfold, smollm2, chat):
    with chat(model=smollm2) as terminal:
        terminal.wait(at_prompt).type("Write a long story about the sea.\r")
        terminal.wait(answered(1)).type("Say hi.\r")
        terminal.wait(answered(2))
        told = told_tokens(terminal)
        assert told[1] > told[0] + 24
        terminal.type("/bye\r")
        assert terminal.end() == 0
