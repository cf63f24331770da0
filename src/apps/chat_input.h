// What a person says in a chat, message by message.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/interrupt.h"
#include "base/status.h"

namespace sixfold::apps {

// Thread rule: one thread.
class ChatInput {
 public:
  // Where stdin and stdout are a terminal: lines are edited, messages may have several lines, and
  // history comes from and goes to `history_path` ("": neither). Elsewhere each line of stdin is a
  // message, as it is. interrupts: outlives this.
  static std::unique_ptr<ChatInput> Make(InterruptWatch& interrupts,
                                         const std::string& history_path);
  virtual ~ChatInput() = default;

  // Prompts for a message and waits for it; nullopt at the end. kCancelled: stdout is gone.
  virtual Result<std::optional<std::string>> Next() = 0;
  // To be called now and then while something else is written: keeps what is typed for Next. True:
  // Ctrl-C was pressed, where that is no signal.
  virtual bool CollectKeys() { return false; }
  // Lines for /help about keys; "" where there are none of note.
  virtual std::string_view key_help() const { return ""; }
};

// A message of several lines, out of lines. A line that ends in a backslash goes on in the next
// one, as in a shell (of two backslashes both are text). Text after """ goes on until a line ends
// in """.
class MessageLines {
 public:
  // True: the message is complete.
  bool Add(std::string_view line);
  bool empty() const { return lines_ == 0; }
  const std::string& text() const { return text_; }
  // What, given as one line, would give the message again.
  std::string Source() const;

 private:
  std::string text_;
  int lines_ = 0;
  bool quoted_ = false;
};

}  // namespace sixfold::apps
