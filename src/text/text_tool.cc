// The text module on the command line, without the rest of the product: the same forms as `sixfold tokenize`, `detokenize`
// and `render`, and two more that tests need (`stream`, and vocabularies given as JSON). tests/text drives it.
//
//   text_tool tokenize   MODEL [--no-special] [--no-parse-special] (--json | --jsonl)
//   text_tool detokenize MODEL [--skip-special] (--json | --jsonl)
//   text_tool render     MODEL MESSAGES.json [--now SECONDS]
//   text_tool stream     MODEL --jsonl      {"ids":[…],"stop":[…]} a line → {"deltas":[…],"stopped":…,"decoded":…}
//
// MODEL is an HF folder, or a .json file with the fields of GgufVocab. MESSAGES.json holds a list of messages, or an object
// with messages, tools, documents, add_generation_prompt and any other variables of the template.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace sixfold {
namespace {

using Json = nlohmann::ordered_json;

struct Command {
  std::string verb;
  std::string model;
  std::string messages;
  bool no_special = false;
  bool no_parse_special = false;
  bool skip_special = false;
  bool lines = false;
  std::optional<int64_t> now_s;
};

template <typename T>
std::optional<T> Field(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

GgufVocab VocabOf(const Json& json) {
  GgufVocab vocab;
  vocab.model = json.at("model");
  vocab.pre = json.value("pre", "");
  vocab.tokens = json.at("tokens").get<std::vector<std::string>>();
  vocab.token_types = json.value("token_types", std::vector<int32_t>());
  vocab.scores = json.value("scores", std::vector<float>());
  vocab.merges = json.value("merges", std::vector<std::string>());
  const auto charsmap = json.value("precompiled_charsmap", std::vector<uint8_t>());
  vocab.precompiled_charsmap.assign(charsmap.begin(), charsmap.end());
  vocab.bos_id = Field<TokenId>(json, "bos_id");
  vocab.eos_id = Field<TokenId>(json, "eos_id");
  vocab.unk_id = Field<TokenId>(json, "unk_id");
  vocab.add_bos = Field<bool>(json, "add_bos");
  vocab.add_eos = Field<bool>(json, "add_eos");
  vocab.add_space_prefix = Field<bool>(json, "add_space_prefix");
  vocab.remove_extra_whitespaces = Field<bool>(json, "remove_extra_whitespaces");
  vocab.chat_template = json.value("chat_template", "");
  return vocab;
}

std::string ReadAll(std::istream& in) {
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

Result<std::unique_ptr<Tokenizer>> Load(const std::string& model) {
  if (model.size() < 5 || model.substr(model.size() - 5) != ".json") return Tokenizer::FromHfFolder(model);
  std::ifstream in(model, std::ios::binary);
  return Tokenizer::FromGguf(VocabOf(Json::parse(ReadAll(in))));
}

Result<Json> Answer(const Command& command, const Tokenizer& tokenizer, const std::string& text) {
  const SkipSpecial skip = command.skip_special ? SkipSpecial::kYes : SkipSpecial::kNo;
  if (command.verb == "tokenize") {
    const std::string prompt = command.lines ? Json::parse(text).get<std::string>() : text;
    SF_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                        tokenizer.Encode(prompt, command.no_special ? AddSpecial::kNo : AddSpecial::kYes,
                                         command.no_parse_special ? ParseSpecial::kNo : ParseSpecial::kYes));
    return Json{{"ids", ids}};
  }
  const Json request = Json::parse(text);
  const auto ids = request.at("ids").get<std::vector<TokenId>>();
  if (command.verb == "detokenize") return Json{{"text", tokenizer.Decode(ids, skip)}};
  StreamOptions options;
  options.skip_special = skip;
  options.stop = request.value("stop", std::vector<std::string>());
  options.include_stop = request.value("include_stop", false) ? IncludeStop::kYes : IncludeStop::kNo;
  StreamDecoder decoder(&tokenizer, options);
  std::vector<std::string> deltas;
  for (const TokenId id : ids) decoder.Append(id, &deltas.emplace_back());
  decoder.Finish(&deltas.emplace_back());
  Json answer{{"deltas", deltas}, {"decoded", tokenizer.Decode(ids, skip)}};
  answer["stopped"] = decoder.stopped() ? Json(*decoder.stop_string()) : Json();
  return answer;
}

Status Work(const Command& command, const Tokenizer& tokenizer) {
  if (!command.lines) {
    SF_ASSIGN_OR_RETURN(Json answer, Answer(command, tokenizer, ReadAll(std::cin)));
    std::cout << answer.dump() << "\n";
    return OkStatus();
  }
  for (std::string line; std::getline(std::cin, line);) {
    SF_ASSIGN_OR_RETURN(Json answer, Answer(command, tokenizer, line));
    std::cout << answer.dump() << "\n";
  }
  return OkStatus();
}

Status Render(const Command& command, const Tokenizer& tokenizer) {
  std::ifstream in(command.messages, std::ios::binary);
  Json request = Json::parse(ReadAll(in));
  if (request.is_array()) request = Json{{"messages", request}, {"add_generation_prompt", true}};
  ChatTemplateOptions options;
  options.special_tokens = tokenizer.special_tokens();
  options.now_s = command.now_s;
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  const auto take = [&](const char* key) {
    const std::string json = request.contains(key) && !request[key].is_null() ? request[key].dump() : std::string();
    request.erase(key);
    return json;
  };
  request.erase("add_generation_prompt");
  const std::string messages = take("messages");
  options.tools_json = take("tools");
  options.documents_json = take("documents");
  if (!request.empty()) options.kwargs_json = request.dump();
  const std::string* found = SelectChatTemplate(tokenizer, !options.tools_json.empty());
  if (found == nullptr) return InvalidArgument(command.model + " has no chat template");
  SF_ASSIGN_OR_RETURN(std::string text, RenderChatTemplate(*found, messages, options));
  std::cout << text;
  return OkStatus();
}

std::optional<Command> Parse(int argc, char** argv) {
  Command command;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-special") command.no_special = true;
    else if (word == "--no-parse-special") command.no_parse_special = true;
    else if (word == "--skip-special") command.skip_special = true;
    else if (word == "--jsonl") command.lines = true;
    else if (word == "--now" && i + 1 < argc) command.now_s = std::atoll(argv[++i]);
    else if (word != "--json") words.push_back(word);
  }
  if (words.size() < 2) return std::nullopt;
  command.verb = words[0];
  command.model = words[1];
  const bool render = command.verb == "render";
  if (words.size() != (render ? 3u : 2u)) return std::nullopt;
  if (render) command.messages = words[2];
  return command;
}

int Main(int argc, char** argv) {
  const std::optional<Command> command = Parse(argc, argv);
  if (!command) {
    std::cerr << "usage: text_tool tokenize|detokenize|stream MODEL [flags], text_tool render MODEL MESSAGES.json\n";
    return 2;
  }
  Status status;
  try {
    auto tokenizer = Load(command->model);
    status = !tokenizer.ok()               ? tokenizer.status()
             : command->verb == "render" ? Render(*command, **tokenizer)
                                         : Work(*command, **tokenizer);
  } catch (const Json::exception& e) {
    status = InvalidArgument(e.what());
  }
  if (status.ok()) return 0;
  std::cerr << status.ToString() << "\n";
  return status.code() == StatusCode::kInvalidFile ? 3 : 2;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
