#include "apps/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "apps/history_file.h"
#include "text/utf8.h"

namespace sixfold::apps {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr size_t kPasteBytesMax = size_t{16} << 20;
// No key sends it. Comes before an interrupt, so that the cursor leaves the text at its end.
constexpr std::string_view kToTheEnd = "\x1b[9999~";
constexpr milliseconds kLookAtSize{250};
constexpr wchar_t kReplacement = 0xfffd;

wchar_t Decode(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return static_cast<wchar_t>(byte(0));
  auto code = static_cast<wchar_t>(byte(0) & (0x7f >> character.size()));
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3f);
  return code;
}

// What a paste adds to the text: line ends of every system as '\n', and no NUL, which ends strings.
std::wstring PastedText(const std::string& bytes) {
  const std::string text = ReplaceInvalidUtf8(bytes);
  std::wstring wide;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = rest.substr(0, ReadUtf8(rest).bytes);
    rest.remove_prefix(character.size());
    if (character == "\r") {
      if (rest.empty() || rest.front() != '\n') wide += L'\n';
    } else if (character.front() != '\0') {
      wide += Decode(character);
    }
  }
  return wide;
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

// libedit's callbacks get the EditLine, whose client data is the Impl.
struct LineEditor::Impl {
  explicit Impl(TerminalInput& in) : input(in) {}
  ~Impl() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }
  static Impl& Of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }

  bool Open();
  void BindKeys();
  void FollowSize();
  bool NextByte(char* byte);  // false: an interrupt, or the end
  int ReadCharacter(wchar_t* character);
  unsigned char Paste();

  TerminalInput& input;
  std::unique_ptr<std::FILE, FileCloser> nowhere;  // for what libedit says about terminals
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  bool interrupted = false, ended = false;
  bool at_the_end = false;  // of the text: kToTheEnd has been given to libedit since the interrupt
  size_t last_keys = 0;     // of kToTheEnd, that are to come
  winsize size{};
};

bool LineEditor::Impl::Open() {
  // libedit takes characters apart by the locale; ours are UTF-8 whatever the environment says.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  nowhere.reset(std::fopen("/dev/null", "we"));
  history = history_init();
  if (nowhere == nullptr || history == nullptr) return false;
  editor = el_init("sixfold", stdin, stdout, nowhere.get());
  if (editor == nullptr) return false;
  // A terminal that this machine has no description of: what nearly all understand.
  if (el_set(editor, EL_TERMINAL, nullptr) != 0) el_set(editor, EL_TERMINAL, "vt100");
  HistEvent event;
  ::history(history, &event, H_SETSIZE, HistoryFile::kEntriesMax);
  ::history(history, &event, H_SETUNIQUE, 1);
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_HIST, ::history, history);
  el_set(editor, EL_SIGNAL, 0);
  // While libedit reads, and between its lines: as TerminalInput has it.
  for (const char* mode : {"-d", "-x"})
    el_set(editor, EL_SETTY, mode, "-echo", "-icanon", "+isig", "+noflsh", "-icrnl", "-inlcr",
           "-igncr", "-ixon", "intr=", "susp=", nullptr);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(
      editor, EL_PROMPT, +[](EditLine* e) { return Of(e).prompt.data(); });
  el_set(
      editor, EL_GETCFN, +[](EditLine* e, wchar_t* c) { return Of(e).ReadCharacter(c); });
  BindKeys();
  el_source(editor, nullptr);
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return true;
}

void LineEditor::Impl::BindKeys() {
  using Key = unsigned char(EditLine*, int);
  Key* const paste = [](EditLine* e, int) { return Of(e).Paste(); };
  Key* const line_end = [](EditLine* e, int) -> unsigned char {
    return el_insertstr(e, "\n") == 0 ? CC_REFRESH : CC_ERROR;
  };
  Key* const to_the_end = [](EditLine* e, int) -> unsigned char {
    const LineInfo* line = el_line(e);
    el_cursor(e, static_cast<int>(line->lastchar - line->cursor));
    return CC_REFRESH;
  };
  Key* const suspend = [](EditLine* e, int) -> unsigned char {
    Of(e).input.Suspend();
    return CC_REDISPLAY;
  };
  el_set(editor, EL_ADDFN, "sixfold-paste", "takes a paste in as text", paste);
  el_set(editor, EL_ADDFN, "sixfold-line-end", "a line end within the text", line_end);
  el_set(editor, EL_ADDFN, "sixfold-to-the-end", "to the end of the text", to_the_end);
  el_set(editor, EL_ADDFN, "sixfold-suspend", "suspends the program", suspend);
  constexpr const char* kKeys[][2] = {
      {"\\e[200~", "sixfold-paste"},     {"\\e^M", "sixfold-line-end"},
      {"\\e^J", "sixfold-line-end"},     {kToTheEnd.data(), "sixfold-to-the-end"},
      {"^Z", "sixfold-suspend"},         {"^R", "em-inc-search-prev"},
      {"\\e[1;5C", "em-next-word"},      {"\\e[1;5D", "ed-prev-word"},
      {"\\e[1;3C", "em-next-word"},      {"\\e[1;3D", "ed-prev-word"},
      {"\\e[H", "ed-move-to-beg"},       {"\\e[F", "ed-move-to-end"},
      {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"},
      {"\\e[3~", "ed-delete-next-char"},
  };
  for (const auto& [key, function] : kKeys) el_set(editor, EL_BIND, key, function, nullptr);
}

// Without a signal: a window that has another size now, seen within a quarter of a second.
void LineEditor::Impl::FollowSize() {
  winsize now{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0) return;
  if (now.ws_row == size.ws_row && now.ws_col == size.ws_col) return;
  size = now;
  el_resize(editor);
}

bool LineEditor::Impl::NextByte(char* byte) {
  while (!interrupted && !ended) {
    switch (input.Read(byte, kLookAtSize)) {
      case TerminalInput::Event::kByte: return true;
      case TerminalInput::Event::kInterrupt: interrupted = true; break;
      case TerminalInput::Event::kEnd: ended = true; break;
      case TerminalInput::Event::kNothing: FollowSize();
    }
  }
  return false;
}

// As EL_GETCFN has it: 1, or 0 at the end, or -1, which ends the line as well.
int LineEditor::Impl::ReadCharacter(wchar_t* character) {
  if (last_keys > 0) {
    *character = static_cast<wchar_t>(kToTheEnd[kToTheEnd.size() - last_keys--]);
    return 1;
  }
  std::string unit;
  char byte = 0;
  while (NextByte(&byte)) {
    unit += byte;
    const Utf8Unit read = ReadUtf8(unit);
    if (read.kind == Utf8Kind::kIncomplete) continue;
    if (read.kind == Utf8Kind::kInvalid) input.PutBack(std::string_view(unit).substr(read.bytes));
    *character = read.kind == Utf8Kind::kCharacter ? Decode(unit) : kReplacement;
    return 1;
  }
  if (!interrupted || at_the_end) return interrupted ? -1 : 0;
  at_the_end = true;
  last_keys = kToTheEnd.size();
  return ReadCharacter(character);
}

// Everything up to the mark of its end, or to an interrupt.
unsigned char LineEditor::Impl::Paste() {
  std::string bytes;
  char byte = 0;
  while (NextByte(&byte)) {
    if (bytes.size() < kPasteBytesMax || byte == kPasteEnd.front()) bytes += byte;
    if (byte == kPasteEnd.back() && bytes.ends_with(kPasteEnd)) {
      bytes.resize(bytes.size() - kPasteEnd.size());
      break;
    }
  }
  const std::wstring text = PastedText(bytes);
  if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

LineEditor::LineEditor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineEditor::~LineEditor() = default;

std::unique_ptr<LineEditor> LineEditor::Make(TerminalInput& input) {
  auto impl = std::make_unique<Impl>(input);
  if (!impl->Open()) return nullptr;
  return std::unique_ptr<LineEditor>(new LineEditor(std::move(impl)));
}

LineEditor::Event LineEditor::Read(const std::string& prompt, std::string* text) {
  impl_->prompt = prompt;
  impl_->interrupted = impl_->at_the_end = false;
  int bytes = 0;
  const char* line = el_gets(impl_->editor, &bytes);
  std::fflush(stdout);
  impl_->input.TakeOver();  // libedit has set the terminal as it was
  if (impl_->interrupted) return Event::kInterrupt;
  if (line == nullptr || bytes <= 0) return Event::kEnd;
  text->assign(line, static_cast<size_t>(bytes));
  if (text->ends_with('\n')) text->pop_back();
  return Event::kLine;
}

void LineEditor::AddToHistory(const std::string& text) {
  HistEvent event;
  ::history(impl_->history, &event, H_ENTER, text.c_str());
}

}  // namespace sixfold::apps
