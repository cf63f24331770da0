// What was typed in earlier chats, in a file of the user's own.
#pragma once

#include <string>
#include <vector>

namespace sixfold::apps {

// A JSON string a line, the newest last, so that chats which run side by side may add to one file.
// Private (mode 0600). Failures are silent: a chat goes on without history. Thread rule: one
// thread.
class HistoryFile {
 public:
  static constexpr int kEntriesMax = 1000;
  static constexpr size_t kEntryBytesMax = size_t{64} << 10;  // longer texts are left out
  static constexpr size_t kBytesMax = size_t{4} << 20;        // of the file, before old ones go

  // $XDG_STATE_HOME/sixfold/run_history, else ~/.local/state/sixfold/run_history; "" where neither
  // is known.
  static std::string DefaultPath();
  // path: "" for none.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}

  // The newest entries, oldest first. Cuts the file down to them when it has grown beyond twice as
  // many or beyond its bytes.
  std::vector<std::string> Load() const;
  void Add(const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace sixfold::apps
