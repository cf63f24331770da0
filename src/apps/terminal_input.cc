#include "apps/terminal_input.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace sixfold::apps {
namespace {

constexpr char kCtrlC = '\x03', kCtrlZ = '\x1a';
constexpr size_t kTypedBytesMax = size_t{32} << 20;  // beyond it the terminal waits
constexpr int kEnding[] = {SIGTERM, SIGHUP, SIGQUIT};
// A terminal marks what is pasted, so that its line ends are text and not the Enter key.
constexpr std::string_view kMarkPastes = "\x1b[?2004h", kDoNotMarkPastes = "\x1b[?2004l";

// What a signal handler needs to give the terminal back. Written before the handlers are installed.
struct Borrowed {
  termios before;
  bool marks_pastes;
} borrowed;

void Write(std::string_view text) {
  // A terminal that is gone needs nothing more.
  static_cast<void>(::write(STDOUT_FILENO, text.data(), text.size()) + 1);
}

void GiveBack() {
  if (borrowed.marks_pastes) Write(kDoNotMarkPastes);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &borrowed.before);
}

void GiveBackAndDie(int number) {
  GiveBack();
  ::signal(number, SIG_DFL);
  ::raise(number);  // delivered when the handler returns
}

bool KnowsMarks() {
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

}  // namespace

TerminalInput::TerminalInput(InterruptWatch& interrupts) : interrupts_(interrupts) {
  borrowed.marks_pastes = KnowsMarks();
  ::tcgetattr(STDIN_FILENO, &borrowed.before);
  for (const int number : kEnding) {
    // One that is ignored, as nohup does, stays so.
    if (::signal(number, GiveBackAndDie) == SIG_IGN) ::signal(number, SIG_IGN);
  }
  TakeOver();
  if (borrowed.marks_pastes) Write(kMarkPastes);
}

TerminalInput::~TerminalInput() {
  GiveBack();
  for (const int number : kEnding) {
    if (::signal(number, SIG_DFL) == SIG_IGN) ::signal(number, SIG_IGN);
  }
}

void TerminalInput::TakeOver() {
  termios quiet = borrowed.before;
  // Ctrl-S is a key, and the line ends of a paste come as they are.
  quiet.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL | INLCR | IGNCR);
  quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  quiet.c_cc[VINTR] = quiet.c_cc[VSUSP] = _POSIX_VDISABLE;
  quiet.c_cc[VMIN] = 1;
  quiet.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

void TerminalInput::Suspend() {
  GiveBack();
  ::raise(SIGTSTP);
  TakeOver();
  if (borrowed.marks_pastes) Write(kMarkPastes);
}

bool TerminalInput::Fill() {
  std::array<char, 4096> chunk;
  const ssize_t got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) ended_ = true;
  if (got > 0) typed_.insert(typed_.end(), chunk.begin(), chunk.begin() + got);
  return !ended_;
}

TerminalInput::Event TerminalInput::Read(char* byte, std::chrono::milliseconds longest) {
  while (typed_.empty()) {
    if (ended_) return Event::kEnd;
    const InterruptWatch::Event event = interrupts_.WaitForInput(longest);
    if (event == InterruptWatch::Event::kInterrupt) return Event::kInterrupt;
    if (event == InterruptWatch::Event::kNothing) return Event::kNothing;
    Fill();
  }
  *byte = typed_.front();
  typed_.pop_front();
  return *byte == kCtrlC ? Event::kInterrupt : Event::kByte;
}

void TerminalInput::PutBack(std::string_view bytes) {
  typed_.insert(typed_.begin(), bytes.begin(), bytes.end());
}

bool TerminalInput::Collect() {
  const auto waits = [&] {
    pollfd wait = {STDIN_FILENO, POLLIN, 0};
    return ::poll(&wait, 1, 0) > 0;
  };
  bool interrupt = false;
  while (!ended_ && typed_.size() < kTypedBytesMax && waits()) {
    const size_t before = typed_.size();
    Fill();
    for (size_t at = before; at < typed_.size();) {
      const char key = typed_[at];
      if (key != kCtrlC && key != kCtrlZ) {
        ++at;
        continue;
      }
      typed_.erase(typed_.begin() + static_cast<std::ptrdiff_t>(at));
      if (key == kCtrlC) interrupt = true;
      if (key == kCtrlZ) Suspend();
    }
  }
  return interrupt;
}

}  // namespace sixfold::apps
