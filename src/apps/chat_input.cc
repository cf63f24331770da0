#include "apps/chat_input.h"

#include <unistd.h>

#include <cerrno>

#include "apps/history_file.h"
#include "apps/line_editor.h"
#include "apps/output.h"
#include "apps/terminal_input.h"

namespace sixfold::apps {
namespace {

constexpr size_t kMessageBytesMax = size_t{16} << 20;
constexpr std::string_view kQuotes = R"(""")";

// Lines as the kernel or a pipe gives them.
class PlainInput : public ChatInput {
 public:
  explicit PlainInput(InterruptWatch& interrupts) : interrupts_(interrupts) {}

  Result<std::optional<std::string>> Next() override {
    SF_RETURN_IF_ERROR(Print("\n> "));
    bool warned = false;
    while (true) {
      if (const size_t end = rest_.find('\n'); end != std::string::npos) {
        std::string line = rest_.substr(0, end);
        rest_.erase(0, end + 1);
        return std::optional<std::string>(std::move(line));
      }
      if (interrupts_.WaitForInput() == InterruptWatch::Event::kInterrupt) {
        if (warned) return std::optional<std::string>();
        warned = true;
        Remark("\n(Ctrl-C again, Ctrl-D or /bye leaves)");
        continue;
      }
      char chunk[4096];
      const ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || rest_.size() > kMessageBytesMax) return std::optional<std::string>();
      rest_.append(chunk, static_cast<size_t>(got));
    }
  }

 private:
  InterruptWatch& interrupts_;
  std::string rest_;  // read beyond the line
};

class EditedInput : public ChatInput {
 public:
  EditedInput(std::unique_ptr<TerminalInput> terminal, std::unique_ptr<LineEditor> editor,
              const std::string& history_path)
      : terminal_(std::move(terminal)), editor_(std::move(editor)), history_(history_path) {
    for (const std::string& entry : history_.Load()) editor_->AddToHistory(entry);
  }

  Result<std::optional<std::string>> Next() override {
    SF_RETURN_IF_ERROR(Print("\n"));
    MessageLines lines;
    while (true) {
      std::string line;
      const LineEditor::Event event = editor_->Read(lines.empty() ? "> " : ". ", &line);
      if (event == LineEditor::Event::kEnd) return std::optional<std::string>();
      if (event == LineEditor::Event::kInterrupt) {
        SF_RETURN_IF_ERROR(Print("^C\n"));
        lines = {};
      } else if (lines.Add(line)) {
        break;
      }
    }
    if (lines.text().find_first_not_of(" \t\r\n") != std::string::npos) {
      editor_->AddToHistory(lines.Source());
      history_.Add(lines.Source());
    }
    return std::optional<std::string>(lines.text());
  }

  bool CollectKeys() override { return terminal_->Collect(); }

  std::string_view key_help() const override {
    return "Enter sends. For several lines: end a line with \\, or press Alt-Enter, or begin with\n"
           "\"\"\" and end with \"\"\"; a paste keeps its lines and waits for Enter.\n"
           "Up and Down recall what was said, Ctrl-R searches it; Ctrl-A, Ctrl-E, Ctrl-W, Ctrl-U "
           "and\n"
           "the like edit as in a shell (libedit; ~/.editrc changes keys). Ctrl-L clears the "
           "screen.\n"
           "Ctrl-C stops an answer, or drops what is being typed. Ctrl-D leaves. Ctrl-Z suspends.\n"
           "What is typed during an answer waits for its end.\n";
  }

 private:
  std::unique_ptr<TerminalInput> terminal_;
  std::unique_ptr<LineEditor> editor_;  // uses the terminal
  HistoryFile history_;
};

// An odd number of backslashes at the end.
bool GoesOn(std::string_view line) {
  const size_t last = line.find_last_not_of('\\');
  const size_t kept = last == std::string_view::npos ? 0 : last + 1;
  return (line.size() - kept) % 2 == 1;
}

}  // namespace

std::unique_ptr<ChatInput> ChatInput::Make(InterruptWatch& interrupts,
                                           const std::string& history_path) {
  if (StdinIsTerminal() && StdoutIsTerminal()) {
    auto terminal = std::make_unique<TerminalInput>(interrupts);
    if (std::unique_ptr<LineEditor> editor = LineEditor::Make(*terminal))
      return std::make_unique<EditedInput>(std::move(terminal), std::move(editor), history_path);
  }
  return std::make_unique<PlainInput>(interrupts);
}

bool MessageLines::Add(std::string_view line) {
  if (lines_++ == 0 && line.starts_with(kQuotes)) {
    quoted_ = true;
    line.remove_prefix(kQuotes.size());
  } else if (lines_ > 1) {
    text_ += '\n';
  }
  const bool complete = quoted_ ? line.ends_with(kQuotes) : !GoesOn(line);
  if (quoted_ && complete) line.remove_suffix(kQuotes.size());
  if (!quoted_ && !complete) line.remove_suffix(1);  // the backslash
  text_ += line;
  return complete || text_.size() > kMessageBytesMax;
}

std::string MessageLines::Source() const {
  return quoted_ ? std::string(kQuotes) + text_ + std::string(kQuotes) : text_;
}

}  // namespace sixfold::apps
