// Lines of text from a terminal, with editing, history, and pastes of several lines.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/terminal_input.h"

namespace sixfold::apps {

// libedit, fed by TerminalInput: Emacs' keys, or what ~/.editrc says; arrows for history, Ctrl-R to
// search it, Ctrl-L for a clean screen, Alt-Enter for a line end within the text. A paste, which
// terminals mark, comes into the text as it is. Sets LC_CTYPE, so make it while there is one thread
// that minds. Thread rule: one thread.
class LineEditor {
 public:
  // Null: libedit cannot use this terminal. input: outlives this.
  static std::unique_ptr<LineEditor> Make(TerminalInput& input);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Event { kLine, kInterrupt, kEnd };
  // The text that Enter ends, in UTF-8 and without the line end. kInterrupt: Ctrl-C, the text is
  // gone. kEnd: Ctrl-D where there is no text, or the terminal has hung up.
  Event Read(const std::string& prompt, std::string* text);

  // For the arrow keys and Ctrl-R.
  void AddToHistory(const std::string& text);

 private:
  struct Impl;
  explicit LineEditor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold::apps
