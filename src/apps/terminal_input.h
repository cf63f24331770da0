// The keys of a terminal as bytes: not echoed while something else is written, not cut at the 4,095
// bytes of a line that the kernel would collect, and none lost.
#pragma once

#include <deque>
#include <string_view>

#include "apps/interrupt.h"

namespace sixfold::apps {

// While it lives the terminal does not echo and gives each key at once; Ctrl-C stays a signal,
// which `interrupts` takes, and Ctrl-Z is a byte, for suspending must give the terminal back first.
// Its end, also by SIGTERM, SIGHUP or SIGQUIT, gives the terminal back. One at a time. Thread rule:
// one thread.
class TerminalInput {
 public:
  // stdin and stdout are a terminal. interrupts: SIGINT from elsewhere; outlives this.
  explicit TerminalInput(InterruptWatch& interrupts);
  ~TerminalInput();
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  enum class Event { kByte, kInterrupt, kEnd, kNothing };
  // The next byte, waiting up to `longest` for it (negative: for ever).
  Event Read(char* byte, std::chrono::milliseconds longest);
  // These come before anything else.
  void PutBack(std::string_view bytes);
  // Takes in what has been typed so far, for Read; does not wait. Ctrl-Z suspends here. True: Ctrl-C
  // was among it, which is taken out.
  bool Collect();

  // Again no echo, after somebody else has set the terminal.
  void TakeOver();
  // As Ctrl-Z does to other programs; returns when the process is continued.
  void Suspend();

 private:
  bool Fill();  // false: stdin has ended

  InterruptWatch& interrupts_;
  std::deque<char> typed_;
  bool ended_ = false;
};

}  // namespace sixfold::apps
